"""What all sources of rows have in common: a record, a part (a file, or a split of a data set), how text is read."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from bertjax.errors import InputError

LONGEST_ROW = 1_000_000
"""Most characters of a row of a text file, and of a text; more is taken for a fault of the file."""


class Record(NamedTuple):
    """One row, usable or not."""

    place: int
    """The line on which it starts, counted from 1; in Parquet and TFDS the row, counted from 0."""
    values: tuple[Any, ...] | None
    """Values of the columns that were asked for; None where the row is malformed."""
    problem: str = ""
    """What is wrong with it."""


class Part(Protocol):
    """Rows from one place. Its constructor raises InputError for faults of the whole: no file, no header, damage."""

    path: str
    """What messages call it: the path as given, or an address."""
    columns: tuple[str, ...]
    """Column names in their order."""
    open_ended: bool
    """True where a later row may have more columns than `columns` (JSON lines)."""
    class_names: Mapping[str, tuple[str, ...]]
    """Column -> names of the classes for which its integers stand; columns without such names are left out."""
    reading: tuple[str, ...]
    """What the contents of texts depend on besides the bytes and the chosen columns."""

    def records(self, columns: tuple[str, ...]) -> Iterator[Record]:
        """All rows in order, with the values of these columns: texts, numbers, booleans, None where there is none."""

    def where(self, place: int) -> str:
        """The place of a row for messages."""

    def fingerprint(self) -> str:
        """Hexadecimal SHA-256 of the bytes from which the rows come."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """How text files are read."""

    columns: tuple[str, ...] = ()
    """Column names of a file without a header line."""
    encoding: str = "utf-8"
    """Text encoding; utf-8 also accepts a byte order mark."""
    encoding_errors: str = "strict"
    """"strict" or "replace"."""


def named_once(columns: tuple[str, ...], path: str, named_by: str) -> tuple[str, ...]:
    """The column names; InputError if one occurs twice (`named_by` says where they stand)."""
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise InputError(
            f"{path}: {named_by} has the column name {twice[0]!r} {columns.count(twice[0])} times, expected different "
            "names (a file without a header line needs --data.columns)"
        )
    return columns


def decoded(value: bytes) -> str:
    """Bytes of a data set as text; ValueError if they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"has the byte 0x{value[error.start]:02x}, which is not valid utf-8") from None
