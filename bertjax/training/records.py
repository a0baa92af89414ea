"""Metrics of a run on disk: metrics.jsonl, timing.jsonl and TensorBoard."""

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax import paths
from bertjax.progress import say


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Records of a JSONL file, up to the first line that is none: a kill may have cut it short. No file: no records."""
    if not path.exists():
        return []
    records = []
    for line in path.read_bytes().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            break
        if not isinstance(record, dict) or not isinstance(record.get("step"), int):
            break
        records.append(record)
    return records


class Records:
    """Writes a run's records. A step's values are read from the device only when they are written.

    metrics.jsonl holds what the run determines, so that an interrupted and continued run has the same file as one that
    went through; seconds are in timing.jsonl.

    Args:
      folder: the run's folder.
      resumed: step at which the run continues: later records are dropped. None: all are.
      pending: values of steps before it that were not written yet (see `pending`).
    """

    def __init__(self, folder: Path, resumed: int | None, pending: Sequence[dict[str, float]] = ()) -> None:
        from tensorboardX import SummaryWriter

        self._metrics, self._timing = folder / "metrics.jsonl", folder / "timing.jsonl"
        for path in (self._metrics, self._timing):
            kept = [line for line in read_jsonl(path) if resumed is not None and line["step"] <= resumed]
            paths.write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=resumed)
        self._pending: list[tuple[dict[str, Any], np.ndarray | None]] = [(values, None) for values in pending]
        self._rows, self._seconds = 0, 0.0
        self._mark = time.perf_counter()

    def collect(self, values: dict[str, Any], rows: np.ndarray) -> None:
        """Keeps the values of a training step, still on the device, and which training rows its batch holds."""
        self._pending.append((values, rows))
        self._rows += len(rows)

    def pending(self) -> list[dict[str, float]]:
        """Values of the steps that are not written yet, oldest first; waits for the device."""
        self._pending = [({k: float(v) for k, v in values.items()}, rows) for values, rows in self._pending]
        return [values for values, _ in self._pending]

    def rows_of(self, number: int) -> np.ndarray | None:
        """Rows of the batch of pending step `number`; None where it was before an interruption."""
        return self._pending[number][1]

    def compiled(self, step: int, seconds: float) -> None:
        """Notes how long the first step took, and leaves it out of the speed."""
        self._append(self._timing, {"step": step, "compile_seconds": round(seconds, 3)})
        self._rows, self._mark = 0, time.perf_counter()

    def flush(self, step: int) -> None:
        """Writes the mean loss of the steps since the last flush, and the last step's other values.

        Steps that were skipped, because their loss was not finite, do not count in the mean.
        """
        pending = self.pending()
        if not pending:
            return
        self._pending = []
        losses = [values["loss"] for values in pending if math.isfinite(values["loss"])]
        seconds, rows = time.perf_counter() - self._mark, self._rows
        last = {f"train/{name}": value for name, value in pending[-1].items() if math.isfinite(value)}
        mean = {"train/loss": float(np.mean(losses))} if losses else {}
        self.write({"step": step} | last | mean)
        if rows:
            rate = round(rows / seconds, 2)
            self._append(self._timing, {"step": step, "seconds": round(seconds, 3), "examples_per_second": rate})
            self._board.add_scalar("timing/examples_per_second", rate, step)
        self._rows, self._mark = 0, time.perf_counter()

    def write(self, record: dict[str, Any]) -> None:
        """Appends a record to metrics.jsonl and TensorBoard."""
        self._append(self._metrics, record)
        for name, value in record.items():
            if name != "step":
                self._board.add_scalar(name, value, record["step"])
        self.restart_clock()

    def restart_clock(self) -> None:
        """The time until now does not count in the training speed."""
        self._mark = time.perf_counter()

    def close(self) -> None:
        """Flushes TensorBoard. What it cannot write is in metrics.jsonl all the same."""
        try:
            self._board.close()
        except OSError as error:
            say(f"warning TensorBoard events cannot be written: {error.strerror}")

    @staticmethod
    def _append(path: Path, record: dict[str, Any]) -> None:
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")
