"""Rows of Parquet files, with the class names that Hugging Face's `datasets` leaves in their metadata."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertjax.data.records import Record, decoded, named_once
from bertjax.errors import InputError, first_line

_ROWS = 4096  # rows that are Python objects at a time


class ParquetPart:
    """One file as rows by number; see `records.Part`.

    Args:
      file: the file.
      path: the file as messages show it.
      class_names: names of the classes for which a column's integers stand, where the file itself says none.
    """

    open_ended = False
    reading: tuple[str, ...] = (".parquet",)

    def __init__(self, file: Path, path: str, class_names: Mapping[str, tuple[str, ...]] | None = None) -> None:
        self.path, self._file = path, file
        with self._opened() as parquet:
            schema = parquet.schema_arrow
        self.columns = named_once(tuple(schema.names), path, "it")
        known = dict(class_names or {}) | _class_names(schema.metadata or {})
        self.class_names = {column: names for column, names in known.items() if column in self.columns}

    def records(self, columns: tuple[str, ...]) -> Iterator[Record]:
        import pyarrow

        place = 0
        with self._opened() as parquet:
            try:
                for batch in parquet.iter_batches(_ROWS, columns=list(columns)):
                    # A nested column comes back under its own name too, so names find the columns again.
                    cells = [batch.column(batch.schema.get_field_index(name)).to_pylist() for name in columns]
                    for values in zip(*cells, strict=True):
                        yield _record(place, values)
                        place += 1
            except (pyarrow.ArrowException, OSError) as error:
                raise InputError(f"{self.path}: is damaged after row {place}: {first_line(error)}") from None

    def where(self, place: int) -> str:
        return f"{self.path}: row {place}"

    def fingerprint(self) -> str:
        with self._file.open("rb") as raw:
            return hashlib.file_digest(raw, "sha256").hexdigest()

    def _opened(self) -> Any:
        import pyarrow
        import pyarrow.parquet

        try:
            return pyarrow.parquet.ParquetFile(self._file)
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError(f"{self.path}: is no readable Parquet file: {first_line(error)}") from None


def _record(place: int, values: tuple[Any, ...]) -> Record:
    if any(type(value) is bytes for value in values):
        try:
            values = tuple(decoded(value) if type(value) is bytes else value for value in values)
        except ValueError as error:
            return Record(place, None, f"a cell {error}")
    return Record(place, values)


def _class_names(metadata: Mapping[bytes, bytes]) -> dict[str, tuple[str, ...]]:
    """Class names in the metadata that `datasets` writes, {"info": {"features": {column: {"names": [...]}}}}."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        return {
            column: tuple(map(str, feature["names"]))
            for column, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
        }
    except (ValueError, AttributeError, TypeError):
        return {}  # someone else's metadata under this name
