"""Tables written piece by piece, so that they may be larger than memory: CSV, TSV and Parquet."""

import contextlib
import csv
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def _csv_writer(path: Path, dialect: str = "excel") -> Iterator[Callable[[dict[str, list[Any]]], None]]:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, dialect)

        def write(table: dict[str, list[Any]]) -> None:
            if not file.tell():
                writer.writerow(table)
            writer.writerows(zip(*table.values(), strict=True))

        yield write


@contextlib.contextmanager
def _parquet_writer(path: Path) -> Iterator[Callable[[dict[str, list[Any]]], None]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with contextlib.ExitStack() as stack:
        writers: list[Any] = []

        def write(table: dict[str, list[Any]]) -> None:
            rows = pa.table(table)
            if not writers:
                writers.append(stack.enter_context(pq.ParquetWriter(path, rows.schema)))
            writers[0].write_table(rows)

        yield write


WRITERS: dict[str, Callable[[Path], Any]] = {
    ".csv": _csv_writer,
    ".tsv": functools.partial(_csv_writer, dialect="excel-tab"),
    ".parquet": _parquet_writer,
}
"""Ending of a file -> context manager that yields a function which appends columns."""
