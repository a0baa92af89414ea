"""Metrics of a run on disk: metrics.jsonl, timing.jsonl and TensorBoard."""

import contextlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax import paths
from bertjax.progress import say


def _line(record: dict[str, Any]) -> str:
    return json.dumps(paths.finite_or_none(record), allow_nan=False) + "\n"


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Records of a JSONL file; no file: no records.

    A last line that is none is left out: a kill may have cut it short. Others are left out too, and said.
    """
    if not path.exists():
        return []
    records, bad = [], []
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, 1):
        record = None
        with contextlib.suppress(ValueError):
            record = json.loads(line)
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            records.append(record)
        elif number < len(lines):
            bad.append(number)
    if bad:
        more = f" and {len(bad) - 1} more lines" if len(bad) > 1 else ""
        say(f"damaged {path}: line {bad[0]}{more} cannot be read and is left out")
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
        self._metrics, self._timing = folder / "metrics.jsonl", folder / "timing.jsonl"
        for path in (self._metrics, self._timing):
            kept = [line for line in read_jsonl(path) if resumed is not None and line["step"] <= resumed]
            paths.write_text(path, "".join(_line(line) for line in kept))
        self._board = _Board(folder / "tensorboard", resumed)
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
            self._board.add({"timing/examples_per_second": rate}, step)
        self._rows, self._mark = 0, time.perf_counter()

    def write(self, record: dict[str, Any]) -> None:
        """Appends a record to metrics.jsonl and TensorBoard."""
        self._append(self._metrics, record)
        self._board.add({name: value for name, value in record.items() if name != "step"}, record["step"])
        self.restart_clock()

    def restart_clock(self) -> None:
        """The time until now does not count in the training speed."""
        self._mark = time.perf_counter()

    def close(self) -> None:
        """Ends the writing."""
        self._board.close()

    @staticmethod
    def _append(path: Path, record: dict[str, Any]) -> None:
        with path.open("a") as file:
            file.write(_line(record))


class _Board:
    """TensorBoard events, written at once and in this thread: a full disk is noticed here, and ends only them.

    What they hold is in metrics.jsonl and timing.jsonl all the same.

    Args:
      folder: where the events go.
      resumed: step from which on TensorBoard forgets what earlier files hold; None: nothing is forgotten.
    """

    def __init__(self, folder: Path, resumed: int | None) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self._event, self._writer = Event, None
        with self._heard():
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = EventsWriter(str(folder / "events"))
            if resumed is not None:
                self._write(step=resumed, session_log=SessionLog(status=SessionLog.START))

    def add(self, values: dict[str, float], step: int) -> None:
        """Adds a point to the curve of each value."""
        from tensorboardX.summary import scalar

        with self._heard():
            for name, value in values.items():
                self._write(step=step, summary=scalar(name, value))
            if self._writer is not None:
                self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        with self._heard():
            if self._writer is not None:
                self._writer.close()

    def _write(self, **contents: Any) -> None:
        if self._writer is not None:
            self._writer.write_event(self._event(wall_time=time.time(), **contents))

    @contextlib.contextmanager
    def _heard(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            say(f"warning TensorBoard events cannot be written: {error.strerror}")
            writer, self._writer = self._writer, None
            with contextlib.suppress(OSError):
                if writer is not None:
                    writer.close()
