"""Rows of CSV, TSV (also named .txt) and JSON lines files, plain or compressed, read one by one in bounded memory.

A row knows the line on which it starts. A line ends at LF, CR LF or CR and at nothing else: U+2028 and U+0085 are
ordinary characters of a text. A malformed row does not end the reading: it comes out with what is wrong with it.
"""

import bz2
import codecs
import csv
import gzip
import hashlib
import io
import itertools
import json
import lzma
import operator
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from bertjax.data.records import LONGEST_ROW, Reading, Record, named_once
from bertjax.errors import InputError, first_line

Line = tuple[int, str | None]
"""Number and text with its ending; None: the line is longer than LONGEST_ROW."""
Parsed = tuple[int, Any, str]
"""Line on which a record starts, its fields (a list, in JSON lines a dictionary) and what is wrong with it."""

_HEAD = 1 << 20  # characters that decide what ends a line, and JSON rows (a thousandth) that decide the columns
_TOO_LONG = f"is longer than {LONGEST_ROW:,} characters"


class TextPart:
    """One file as rows by line; see `records.Part`."""

    class_names: dict[str, tuple[str, ...]]

    def __init__(self, file: Path, path: str, reading: Reading) -> None:
        """Opens the file and reads its column names; `path` is the file as messages show it."""
        self.path, self.class_names = path, {}
        self._file, self._reading = file, reading
        name = file.name.lower()
        self._compression = next((ending for ending in COMPRESSIONS if name.endswith(ending)), "")
        self._format = Path(name.removesuffix(self._compression)).suffix
        self.reading = (self._format, reading.encoding, reading.encoding_errors, *reading.columns)
        self.open_ended = self._format == ".jsonl"
        self._codec = _codec(reading.encoding)
        start = self._head()
        self._utf16 = start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        self._unit = "\n" if "\n" in start.decode(self._codec, "replace") else "\r"
        parsed = self._parsed()
        self.columns = self._keys(parsed) if self.open_ended else self._header(parsed)

    def records(self, columns: tuple[str, ...]) -> Iterator[Record]:
        parsed = self._parsed()
        if self.open_ended:
            for line, record, problem in parsed:
                yield Record(line, None if problem else tuple(map(record.get, columns)), problem)
            return
        if not self._reading.columns:
            next(parsed)
        places, wanted = [self.columns.index(name) for name in columns], len(self.columns)
        pick = operator.itemgetter(*places) if len(places) > 1 else lambda fields: tuple(fields[i] for i in places)
        for line, fields, problem in parsed:
            if not problem and len(fields) != wanted:
                problem = f"{_fields(len(fields))}, expected {wanted} as in {self._named_by}: {', '.join(self.columns)}"
            yield Record(line, None if problem else pick(fields), problem)

    def where(self, place: int) -> str:
        return f"{self.path}:{place}"

    def fingerprint(self) -> str:
        with self._file.open("rb") as raw:
            return hashlib.file_digest(raw, "sha256").hexdigest()

    def _open(self) -> BinaryIO:
        try:
            return COMPRESSIONS[self._compression](self._file) if self._compression else self._file.open("rb")
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror or first_line(error)}") from None

    def _head(self) -> bytes:
        with self._open() as raw:
            try:
                return raw.read(_HEAD)
            except _DAMAGE as error:
                raise self._damaged(error, 1) from None

    def _lines(self) -> Iterator[Line]:
        """Numbered lines with their endings.

        The number counts LF where the file has any, as editors and grep do, so that a stray CR within a cell does not
        shift the numbers; it counts CR in files that have nothing else.
        """
        errors = _MARK if self._reading.encoding_errors == "strict" else self._reading.encoding_errors
        number, unit, limit = 1, self._unit, LONGEST_ROW + 2
        with io.TextIOWrapper(self._open(), self._codec, errors, newline="") as text:
            try:
                while line := text.readline(limit):
                    if number == 1:
                        line = line.removeprefix("\ufeff")
                    if len(line) < limit or line[-1] in "\r\n":
                        yield number, line
                    else:
                        while len(line := text.readline(limit)) == limit and line[-1] not in "\r\n":
                            pass
                        yield number, None
                    number += line.endswith(unit)
            except _DAMAGE as error:
                raise self._damaged(error, number) from None
            except UnicodeError as error:  # of a codec that gives up before it decodes, as utf-16 without a mark
                encoding = self._reading.encoding
                raise InputError(
                    f"{self.path}:{number}: is not --data.encoding={encoding}: {first_line(error)}"
                ) from None

    def _damaged(self, error: Exception, line: int) -> InputError:
        kind = f"not a whole {self._compression} file" if self._compression else "cannot be read"
        return InputError(f"{self.path}:{line}: {kind}: {first_line(error)}")

    def _parsed(self) -> Iterator[Parsed]:
        for line, fields, problem, text in FORMATS[self._format](self._lines()):
            if not text.isascii():
                problem = self._misread(text) or problem
            yield line, fields, problem

    def _misread(self, text: str) -> str:
        """What is wrong with the characters of a row, if anything is."""
        if found := _MARKED.search(text):
            return (
                f"byte 0x{ord(found[0]) - 0xDC00:02x} is not valid {self._reading.encoding}. Give the file's encoding, "
                f"for example --data.encoding={'utf-16' if self._utf16 else 'latin-1'}, or replace such bytes by "
                "--data.encoding_errors=replace"
            )
        return "starts with a byte order mark, as where files were joined" if text[0] == "\ufeff" else ""

    def _header(self, parsed: Iterator[Parsed]) -> tuple[str, ...]:
        self._named_by, columns = "--data.columns", self._reading.columns
        if not columns:
            line, fields, problem = next(parsed, (0, [], ""))
            if not line:
                raise InputError(f"{self.path}: is empty, expected a header line and rows")
            if problem:
                raise InputError(f"{self.path}:{line}: {problem}")
            self._named_by, columns = f"the header ({self.path}:{line})", tuple(name.strip() for name in fields)
        return named_once(columns, self.path, self._named_by)

    def _keys(self, parsed: Iterator[Parsed]) -> tuple[str, ...]:
        if self._reading.columns:
            raise InputError(f"{self.path}: .jsonl rows name their columns themselves, expected no --data.columns")
        first = list(itertools.islice(parsed, 1000))
        if not first:
            raise InputError(f"{self.path}: is empty, expected rows")
        if all(problem for _, _, problem in first):
            line, _, problem = first[0]
            raise InputError(f"{self.path}:{line}: {problem} (nor is any of the first {len(first):,} rows usable)")
        return tuple(dict.fromkeys(key for _, row, problem in first if not problem for key in row))


class _TooLong(Exception):
    pass


class _Feed:
    """Lines for csv.reader that remembers those of the current record, so that they can be read again."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._lines, self._again = iter(lines), deque[Line]()
        self.start()

    def start(self) -> None:
        """Begins a record."""
        self.held: list[Line] = []
        self._size = 0

    def back(self, first: int) -> None:
        """Lets the lines of the record from the one numbered `first` on be read again."""
        self._again.extendleft(reversed(self.held[first:]))

    def __iter__(self) -> "_Feed":
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else next(self._lines)
        self.held.append(line)
        text = line[1]
        if text is None:
            raise _TooLong
        self._size += len(text)
        if self._size > LONGEST_ROW + 2:
            raise _TooLong
        return text


def _csv_rows(lines: Iterator[Line]) -> Iterator[tuple[int, Any, str, str]]:
    """After a malformed record reading goes on at the line after its first: an open quote swallows no good rows."""
    feed = _Feed(lines)
    reader = csv.reader(feed, strict=True)
    while True:
        feed.start()
        fields, problem = [], ""
        try:
            fields = next(reader)
        except StopIteration:
            return
        except (csv.Error, _TooLong) as error:
            if "larger than field limit" in str(error):
                feed.back(0)
                fields, problem = _wide_row(feed)
            else:
                problem = _csv_problem(error, len(feed.held))
        if problem:
            feed.back(1)
        if problem or fields:
            shown = feed.held[:1] if problem else feed.held
            yield feed.held[0][0], fields, problem, "".join(text or "" for _, text in shown)


def _wide_row(feed: _Feed) -> tuple[list[str], str]:
    """Reads a record with a cell above the csv module's limit (128 KiB), which is global: it is put back."""
    limit = csv.field_size_limit(LONGEST_ROW + 2)
    feed.start()
    try:
        return next(csv.reader(feed, strict=True)), ""
    except (csv.Error, _TooLong) as error:
        return [], _csv_problem(error, len(feed.held))
    finally:
        csv.field_size_limit(limit)


def _csv_problem(error: Exception, lines: int) -> str:
    unclosed = 'a quote (") opened here is never closed'
    if isinstance(error, _TooLong):
        return _TOO_LONG if lines == 1 else f"{_TOO_LONG}, or {unclosed}"
    cause = unclosed if "unexpected end" in str(error) else str(error)
    return (
        f"not valid CSV: {cause}. Expected cells with commas, quotes or line breaks to be quoted and a quote inside "
        'them to be doubled (""); files without quoting are .tsv'
    )


def _tsv_rows(lines: Iterator[Line]) -> Iterator[tuple[int, Any, str, str]]:
    for number, line in lines:
        if line is None:
            yield number, [], _TOO_LONG, ""
        elif line.strip():
            yield number, line.rstrip("\r\n").split("\t"), "", line


def _jsonl_rows(lines: Iterator[Line]) -> Iterator[tuple[int, Any, str, str]]:
    for number, line in lines:
        if line is None:
            yield number, {}, _TOO_LONG, ""
        elif line.strip():
            value, problem = {}, ""
            try:
                value = json.loads(line, object_pairs_hook=_unique)
            except (ValueError, RecursionError) as error:
                reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
                problem = f"not valid JSON: {reason}"
            if not isinstance(value, dict):
                problem = f"a JSON {_json_kind(value)}, expected an object with columns as keys"
            yield number, value, problem, line


FORMATS: dict[str, Callable[[Iterator[Line]], Iterator[tuple[int, Any, str, str]]]] = {
    ".csv": _csv_rows,
    ".tsv": _tsv_rows,
    ".txt": _tsv_rows,
    ".jsonl": _jsonl_rows,
}
"""File ending -> function that makes of lines: first line, fields, what is wrong, and the text that was read."""


def _zstandard(file: Path) -> BinaryIO:
    import pyarrow

    return pyarrow.input_stream(str(file), compression="zstd")


COMPRESSIONS: dict[str, Callable[[Path], BinaryIO]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _zstandard,
}
"""Last file ending -> function that opens such a file for reading bytes."""

_DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError)


def _mark(error: UnicodeError) -> tuple[str, int]:
    """Undecodable bytes become U+DC00 + byte, which no valid text has, so that each row can be judged by itself."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "".join(chr(0xDC00 + byte) for byte in error.object[error.start : error.end]), error.end


_MARK = "bertjax.mark"
_MARKED = re.compile("[\udc00-\udcff]")
codecs.register_error(_MARK, _mark)


def _codec(encoding: str) -> str:
    try:
        info = codecs.lookup(encoding)
        io.TextIOWrapper(io.BytesIO(), info.name)  # refuses codecs that are no text encodings
    except LookupError:
        raise InputError(
            f"--data.encoding={encoding}: no such text encoding, expected for example utf-8, utf-16, latin-1 or cp1252"
        ) from None
    return info.name


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
