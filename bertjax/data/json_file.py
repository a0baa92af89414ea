"""Rows of a JSON file that is read as a whole: a list of objects, or an object of objects."""

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertjax.data.records import Record
from bertjax.errors import InputError, first_line

_LARGEST = 1 << 30  # bytes; more should be JSON lines, which are read row by row


class JsonPart:
    """One file as rows by number; see `records.Part`.

    Accepted are a list of objects, an object whose values are all objects (their keys are left out), and an object
    whose key `data` holds one of these.
    """

    open_ended = True
    reading = (".json",)
    class_names: Mapping[str, tuple[str, ...]]

    def __init__(self, file: Path, path: str) -> None:
        """Reads the file; `path` is the file as messages show it."""
        self.path, self.class_names, self._file = path, {}, file
        rows = self._rows
        if not rows:
            raise InputError(f"{path}: is empty, expected rows")
        if not any(isinstance(row, dict) for row in rows):
            raise InputError(f"{path}: row 0 is {json.dumps(rows[0])[:40]}, expected an object with columns as keys")
        self.columns = tuple(dict.fromkeys(key for row in rows[:1000] if isinstance(row, dict) for key in row))

    def records(self, columns: tuple[str, ...]) -> Iterator[Record]:
        for place, row in enumerate(self._rows):
            if isinstance(row, dict):
                yield Record(place, tuple(map(row.get, columns)))
            else:
                yield Record(place, None, f"is {json.dumps(row)[:40]}, expected an object with columns as keys")

    def where(self, place: int) -> str:
        return f"{self.path}: row {place}"

    def fingerprint(self) -> str:
        return hashlib.sha256(self._file.read_bytes()).hexdigest()

    @functools.cached_property
    def _rows(self) -> list[Any]:
        size = self._file.stat().st_size
        if size > _LARGEST:
            raise InputError(f"{self.path}: has {size:,} bytes, which are read at once; expected .jsonl for so much")
        try:
            values = json.loads(self._file.read_text("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise InputError(f"{self.path}: byte {error.start:,} is not valid utf-8, expected JSON in UTF-8") from None
        except json.JSONDecodeError as error:
            raise InputError(f"{self.path}:{error.lineno}: not valid JSON: {error.msg}, column {error.colno}") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"{self.path}: not valid JSON: {first_line(error)}") from None
        if isinstance(values, dict) and isinstance(values.get("data"), (list, dict)):
            values = values["data"]
        if isinstance(values, dict) and all(isinstance(value, dict) for value in values.values()):
            values = list(values.values())
        if not isinstance(values, list):
            raise InputError(
                f"{self.path}: is a JSON {type(values).__name__}, expected a list of objects or an object of objects"
            )
        return values
