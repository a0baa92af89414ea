"""Columns of a file as checked texts and labels: what is unusable is an error that names its line."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from bertjax.config import DataOptions, nearest
from bertjax.data.sources import Source, open_source
from bertjax.data.tasks import Task
from bertjax.errors import InputError

Text = tuple[str, str | None]
"""A text and its second text, None where texts are single."""


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """All rows of a file."""

    path: str
    """The file as the user gave it."""
    source: Source
    """Where the rows come from."""
    texts: list[Text]
    """Texts without surrounding white space."""
    labels: list[str] | list[float]
    """Class names, or finite numbers."""


def read_rows(path: str, options: DataOptions, task: Task) -> Rows:
    """Reads the text and label columns that the options name.

    Raises:
      InputError: the file or a column is missing, a text or label is missing or empty, or a label is not a number
        where the task needs one.
    """
    source = open_source(
        path, columns=options.columns, encoding=options.encoding, encoding_errors=options.encoding_errors
    )
    for option in ("text", "text_pair", "label"):
        column = getattr(options, option)
        if column not in source.columns and (column or option != "text_pair"):
            raise InputError(
                f"{path}: no column {column!r} (--data.{option}), expected one of {listed(source.columns)}"
                f"{_did_you_mean(column, source.columns)}. A file without a header line needs --data.columns"
            )
    rows = [source[i] for i in range(len(source))]
    first = _cells(source, rows, options.text, _as_text)
    second = _cells(source, rows, options.text_pair, _as_text) if options.text_pair else [None] * len(rows)
    labels = _cells(source, rows, options.label, _as_number if task.numeric_label else _as_text)
    return Rows(path, source, list(zip(first, second, strict=True)), labels)


def label_names(rows: Rows, options: DataOptions, stored: Sequence[str] | None) -> tuple[str, ...]:
    """The names of the classes: those stored with a model, else the options', else all labels of the rows, sorted.

    Raises:
      InputError: the options contradict the model, or there are fewer than two classes.
    """
    found = tuple(sorted(set(rows.labels)))
    if stored is not None:
        if options.labels and tuple(options.labels) != tuple(stored):
            raise InputError(
                f"--data.labels: got {listed(options.labels)}, expected the labels of the model in its order: "
                f"{listed(stored)}"
            )
        return tuple(stored)
    if len(found) < 2:
        raise InputError(
            f"{rows.path}: all {len(rows.labels):,} rows have the label {found[0]!r}, expected at least two labels"
        )
    if len(set(options.labels)) < len(options.labels) or len(options.labels) == 1:
        raise InputError(f"--data.labels: got {listed(options.labels)}, expected at least two different names")
    return tuple(options.labels) or found


def label_array(rows: Rows, names: tuple[str, ...]) -> np.ndarray:
    """Labels as [n] int32 class numbers, or as float32 scores where there are no names.

    Raises:
      InputError: a row has a label that is none of the names.
    """
    if not names:
        return np.array(rows.labels, np.float32)
    number = {name: i for i, name in enumerate(names)}
    _raise_for(
        f"{rows.source.where(i)}: label {label!r}, expected one of {listed(names)}{_did_you_mean(label, names)}"
        for i, label in enumerate(rows.labels)
        if label not in number
    )
    return np.array([number[label] for label in rows.labels], np.int32)


def listed(names: Sequence[str]) -> str:
    """Names for a message, at most 20 of them."""
    shown = ", ".join(names[:20])
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown


def _cells(source: Source, rows: list[dict[str, Any]], column: str, convert: Callable[[Any], Any]) -> list[Any]:
    """One column, converted; the first cell that cannot be is an error that says how many more there are."""
    values, problems = [], []
    for i, row in enumerate(rows):
        try:
            values.append(convert(row[column]))
        except ValueError as error:
            problems.append(f"{source.where(i)}: column {column!r} {error}")
    _raise_for(problems)
    return values


def _as_text(value: Any) -> str:
    if value is None:
        raise ValueError("is missing, expected a value")
    if isinstance(value, bool):
        return str(value).lower()  # as JSON spells it
    if isinstance(value, (int, float)):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"is a {type(value).__name__}, expected a text")
    if not value.strip():
        raise ValueError("is empty, expected a value")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half of a \u escape pair in JSON
        raise ValueError(f"has the lone surrogate {value[error.start]!r}, expected valid Unicode") from None
    return value.strip()


def _as_number(value: Any) -> float:
    text = _as_text(value)
    try:
        number = math.nan if "_" in text else float(text)  # Python would read 1_0 as 10
    except ValueError:
        number = math.nan
    if not abs(number) <= float(np.finfo(np.float32).max):
        raise ValueError(f"is {text!r}, expected a finite number (--data.task=classification takes names)")
    return number


def _raise_for(problems: Iterable[str]) -> None:
    problems = list(problems)
    if problems:
        raise InputError(problems[0] + (f" ({len(problems) - 1:,} more such rows)" if len(problems) > 1 else ""))


def _did_you_mean(name: str, names: Sequence[str]) -> str:
    hint = nearest(name, names)
    return hint if "did you mean" in hint else ""  # the names themselves are in the message already
