"""Rows of text files by number: CSV, TSV and JSON lines behind one random-access protocol.

Every row knows the line on which it starts, so that whoever finds fault with a row can name the place. A line ends at
LF, CR LF or CR and at nothing else: U+2028 and U+0085 are ordinary characters of a text.
"""

import codecs
import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from bertjax import paths
from bertjax.config import nearest
from bertjax.errors import InputError


class Source(Protocol):
    """Rows that can be read in any order."""

    columns: tuple[str, ...]
    """Column names in the order of the file."""
    fingerprint: str
    """Hexadecimal SHA-256 of the file's bytes."""

    def __len__(self) -> int:
        """Number of rows."""

    def __getitem__(self, i: int) -> dict[str, Any]:
        """Row `i` as column name -> value: text; in JSON lines also numbers, and None where a key is missing."""

    def where(self, i: int) -> str:
        """The file and line at which row `i` starts, as ``path:line``."""


def open_source(
    path: str, *, columns: tuple[str, ...] = (), encoding: str = "utf-8", encoding_errors: str = "strict"
) -> Source:
    """Reads a file whose ending is in `FORMATS`.

    Args:
      path: plain path or ``package://MODULE/file``; messages show it as given.
      columns: column names of a file without a header line.
      encoding: text encoding; utf-8 also accepts a byte order mark.
      encoding_errors: "strict" or "replace".

    Raises:
      InputError: the file is missing, empty, undecodable or malformed; the message names the line.
    """
    file = paths.resolve(path)
    suffix = file.suffix.lower()
    if suffix not in FORMATS:
        ending = f"the ending {file.suffix!r}" if file.suffix else "no ending"
        raise InputError(f"{path}: has {ending}, expected one of {', '.join(FORMATS)}")
    raw = _read_bytes(file, path)
    text = _decode(raw, path, encoding, encoding_errors)
    names, rows = FORMATS[suffix](text, path, tuple(columns))
    if not rows:
        raise InputError(f"{path}: has no rows" + ("" if columns or suffix == ".jsonl" else " after its header line"))
    return _FileSource(path, names, rows, hashlib.sha256(raw).hexdigest())


class Row(NamedTuple):
    """One record and the line on which it starts (counted from 1)."""

    line: int
    values: tuple[Any, ...]


class _FileSource:
    def __init__(self, path: str, columns: tuple[str, ...], rows: list[Row], fingerprint: str):
        self.columns = columns
        self.fingerprint = fingerprint
        self._path = path
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return dict(zip(self.columns, self._rows[i].values, strict=True))

    def where(self, i: int) -> str:
        return f"{self._path}:{self._rows[i].line}"


def _csv_rows(text: str, path: str, columns: tuple[str, ...]) -> tuple[tuple[str, ...], list[Row]]:
    # A cell may be longer than the module's default limit of 128 KiB; the limit is global, so it is put back.
    limit = csv.field_size_limit(max(len(text), 1))
    try:
        return _table(_csv_records(text, path), path, columns)
    finally:
        csv.field_size_limit(limit)


def _csv_records(text: str, path: str) -> Iterator[Row]:
    start = None  # the first line that the reader takes for the current record

    def feed() -> Iterator[str]:
        nonlocal start
        for number, line in _lines(text):
            start = number if start is None else start
            yield line

    reader = csv.reader(feed(), strict=True)
    while True:
        start = None
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            cause = 'a quote (") opened here is never closed' if "unexpected end" in str(error) else str(error)
            raise InputError(
                f"{path}:{start}: not valid CSV: {cause}. Expected cells with commas, quotes or line breaks to be "
                'quoted and a quote inside them to be doubled (""); files without quoting are .tsv'
            ) from None
        if values:
            yield Row(start, tuple(values))


def _tsv_rows(text: str, path: str, columns: tuple[str, ...]) -> tuple[tuple[str, ...], list[Row]]:
    records = (Row(number, tuple(line.rstrip("\r\n").split("\t"))) for number, line in _lines(text) if line.strip())
    return _table(records, path, columns)


def _table(records: Iterable[Row], path: str, columns: tuple[str, ...]) -> tuple[tuple[str, ...], list[Row]]:
    """Column names (from the first record unless given) and rows of a table, each with as many fields as names."""
    records = iter(records)
    source = "--data.columns"
    if not columns:
        header = next(records, None)
        if header is None:
            raise InputError(f"{path}: is empty, expected a header line and rows")
        columns = tuple(name.strip() for name in header.values)
        source = f"the header ({path}:{header.line})"
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise InputError(
            f"{path}: {source} has the column name {twice[0]!r} {columns.count(twice[0])} times, expected different "
            "names (a file without a header line needs --data.columns)"
        )
    rows = []
    for row in records:
        if len(row.values) != len(columns):
            raise InputError(
                f"{path}:{row.line}: {_fields(len(row.values))}, expected {len(columns)} as in {source}: "
                f"{', '.join(columns)}"
            )
        rows.append(row)
    return columns, rows


def _jsonl_rows(text: str, path: str, columns: tuple[str, ...]) -> tuple[tuple[str, ...], list[Row]]:
    if columns:
        raise InputError(f"{path}: .jsonl rows name their columns themselves, expected no --data.columns")
    records = []
    for number, line in _lines(text):
        if not line.strip():
            continue
        try:
            value = json.loads(line, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
            raise InputError(f"{path}:{number}: not valid JSON: {reason}") from None
        if not isinstance(value, dict):
            raise InputError(f"{path}:{number}: a JSON {_json_kind(value)}, expected an object with columns as keys")
        records.append((number, value))
    names = tuple(dict.fromkeys(name for _, record in records for name in record))
    return names, [Row(number, tuple(record.get(name) for name in names)) for number, record in records]


FORMATS: dict[str, Callable[[str, str, tuple[str, ...]], tuple[tuple[str, ...], list[Row]]]] = {
    ".csv": _csv_rows,
    ".tsv": _tsv_rows,
    ".jsonl": _jsonl_rows,
}
"""File ending -> function (text, path for messages, column names) -> column names and rows."""


def _read_bytes(file: Path, path: str) -> bytes:
    try:
        raw = file.read_bytes()
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, expected a {', '.join(FORMATS)} file") from None
    except FileNotFoundError:
        siblings = []
        if file.parent.is_dir():
            siblings = [p.name for p in sorted(file.parent.iterdir()) if p.suffix.lower() in FORMATS]
        hint = nearest(file.name, siblings[:20]) if siblings else ""
        raise InputError(f"{path}: does not exist{hint}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if not raw.strip():
        raise InputError(f"{path}: is empty, expected rows")
    return raw


def _decode(raw: bytes, path: str, encoding: str, errors: str) -> str:
    try:
        name = codecs.lookup(encoding).name
        codec = "utf-8-sig" if name == "utf-8" else name
        return raw.decode(codec, errors)
    except LookupError:
        raise InputError(
            f"--data.encoding={encoding}: no such text encoding, expected for example utf-8, utf-16, latin-1 or cp1252"
        ) from None
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode(codec, "replace")
        line = 1 + before.count("\n" if "\n" in raw.decode(codec, "replace") else "\r")
        guess = "utf-16" if raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "latin-1"
        raise InputError(
            f"{path}:{line}: byte 0x{error.object[error.start]:02x} is not valid {encoding}. Give the file's encoding, "
            f"for example --data.encoding={guess}, or replace such bytes by --data.encoding_errors=replace"
        ) from None


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines with their endings.

    The number counts LF where the file has any, as editors and grep do, so that a stray CR within a cell does not
    shift the numbers; it counts CR in files that have nothing else.
    """
    unit = "\n" if "\n" in text else "\r"
    number = 1
    for line in io.StringIO(text, newline=""):  # unlike str.splitlines: ends at LF, CR LF and CR only
        yield number, line
        number += line.endswith(unit)


def _fields(n: int) -> str:
    return "1 field" if n == 1 else f"{n} fields"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} occurs twice")
    return record


def _json_kind(value: Any) -> str:
    kinds = {list: "array", str: "string", int: "number", float: "number", bool: "boolean"}
    return kinds.get(type(value), "null")
