"""Metrics of a run on disk: metrics.jsonl, timing.jsonl and TensorBoard."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from bertjax import paths


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Records of a JSONL file; a last line cut short by a kill is left out; no file gives no records."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text().splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


class Records:
    """Writes a run's records. A step's values are read from the device only when they are written.

    metrics.jsonl holds what the run determines, so that an interrupted and continued run has the same file as one that
    went through; seconds are in timing.jsonl.

    Args:
      folder: the run's folder.
      resumed: step at which the run continues: later records are dropped. None: all are.
    """

    def __init__(self, folder: Path, resumed: int | None) -> None:
        from tensorboardX import SummaryWriter

        self._metrics, self._timing = folder / "metrics.jsonl", folder / "timing.jsonl"
        self.last_scores: dict[str, float] = {}
        for path in (self._metrics, self._timing):
            kept = [line for line in read_jsonl(path) if resumed is not None and line["step"] <= resumed]
            paths.write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
            self.last_scores |= {k.removeprefix("dev/"): v for line in kept for k, v in line.items() if "dev/" in k}
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=resumed)
        self._pending: list[tuple[int, dict[str, Any]]] = []
        self._rows, self._seconds = 0, 0.0
        self._mark = time.perf_counter()

    def collect(self, step: int, values: dict[str, Any], rows: int) -> None:
        """Keeps the values of a training step, still on the device."""
        self._pending.append((step, values))
        self._rows += rows

    def compiled(self, step: int, seconds: float) -> None:
        """Notes how long the first step took, and leaves it out of the speed."""
        self._append(self._timing, {"step": step, "compile_seconds": round(seconds, 3)})
        self._rows, self._mark = 0, time.perf_counter()

    def flush(self, step: int) -> None:
        """Writes the mean loss of the steps since the last flush, and the last step's gradient norm and rate."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        losses = [float(values["loss"]) for _, values in pending]
        seconds, rows = time.perf_counter() - self._mark, self._rows
        last = {f"train/{name}": float(value) for name, value in pending[-1][1].items()}
        self.write({"step": step} | last | {"train/loss": float(np.mean(losses))})
        if rows:
            rate = round(rows / seconds, 2)
            self._append(self._timing, {"step": step, "seconds": round(seconds, 3), "examples_per_second": rate})
            self._board.add_scalar("timing/examples_per_second", rate, step)
        self._rows, self._mark = 0, time.perf_counter()

    def write(self, record: dict[str, Any]) -> None:
        """Appends a record to metrics.jsonl and TensorBoard; the clock of the training speed starts anew."""
        self._append(self._metrics, record)
        for name, value in record.items():
            if name != "step":
                self._board.add_scalar(name, value, record["step"])
        self._mark = time.perf_counter()

    def close(self) -> None:
        """Flushes TensorBoard."""
        self._board.close()

    @staticmethod
    def _append(path: Path, record: dict[str, Any]) -> None:
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")
