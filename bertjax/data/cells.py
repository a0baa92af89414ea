"""Cells as texts, numbers and class names: what a cell must be, and what messages say where it is not."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bertjax.config import nearest
from bertjax.data.records import LONGEST_ROW

UNLABELLED = "the rows are not labelled, like those of GLUE's test splits"
"""What a label of -1 means."""


def as_text(value: Any) -> str:
    """A value as text without surrounding white space; ValueError says what is wrong with it."""
    if value is None:
        raise ValueError("is missing, expected a value")
    if isinstance(value, bool):
        return str(value).lower()  # as JSON spells it
    if isinstance(value, (int, float)):
        if value != value:
            raise ValueError("is not a number (NaN), expected a value")
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"is a {type(value).__name__}, expected a text")
    text = value.strip()
    if not text:
        raise ValueError("is empty, expected a value")
    if len(text) > LONGEST_ROW:
        raise ValueError(f"has {len(text):,} characters, expected at most {LONGEST_ROW:,}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:  # half of a \u escape pair in JSON
            raise ValueError(f"has the lone surrogate {text[error.start]!r}, expected valid Unicode") from None
    if not any(letter.isprintable() and not letter.isspace() for letter in text):
        raise ValueError(f"has only invisible characters ({text[:20]!r}), expected a value")
    return text


def as_number(value: Any) -> float:
    """A value as a number that float32 can hold; ValueError says what is wrong with it."""
    text = str(value) if isinstance(value, float) else as_text(value)
    try:
        number = math.nan if "_" in text else float(text)  # Python would read 1_0 as 10
    except ValueError:
        number = math.nan
    if not abs(number) <= float(np.finfo(np.float32).max):
        raise ValueError(f"is {text!r}, expected a finite number (--data.task=classification takes names)")
    return number


def named(names: tuple[str, ...]) -> Callable[[Any], str]:
    """A function that turns class numbers into names; ValueError where a number is none."""

    def as_label(value: Any) -> str:
        if not isinstance(value, int) or isinstance(value, bool):
            return as_text(value)
        if value == -1:
            raise ValueError(f"is -1: {UNLABELLED}, expected one of {listed(names)}")
        if not 0 <= value < len(names):
            raise ValueError(f"is {value}, expected 0 to {len(names) - 1}: {listed(names)}")
        return names[value]

    return as_label


def class_name(names: tuple[str, ...], numbered: tuple[str, ...]) -> Callable[[Any], str]:
    """A function that takes the name of a class or its number among `numbered`; ValueError where it is neither."""

    def as_label(value: Any) -> str:
        whole = isinstance(value, float) and value.is_integer()  # a column of numbers with gaps is read as decimals
        text = as_text(int(value) if whole else value)
        if text in names:
            return text
        if text == "-1":
            raise ValueError(f"is -1: {UNLABELLED}, expected one of {listed(names)}")
        if text.isdecimal() and int(text) < len(numbered):
            return numbered[int(text)]
        raise ValueError(
            f"is {text!r}, expected one of {listed(names)}, or its number from 0{did_you_mean(text, names)}"
        )

    return as_label


def several(one: Callable[[Any], str], separator: str) -> Callable[[Any], tuple[str, ...]]:
    """A function that takes a list of labels, or one text with a separator, by a function for each; sorted."""

    def as_labels(value: Any) -> tuple[str, ...]:
        if value is None:
            raise ValueError("is missing, expected a list of labels (an empty one for none)")
        parts = value if isinstance(value, (list, tuple)) else str(value).split(separator)
        return tuple(sorted({one(part) for part in parts if part is None or str(part).strip()}))

    return as_labels


def listed(names: Sequence[str]) -> str:
    """Names for a message, at most 20 of them."""
    shown = ", ".join(names[:20])
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """A hint for a message that lists the names already; empty where none is similar."""
    hint = nearest(name, names)
    return hint if "did you mean" in hint else ""
