"""Rows as checked texts and labels: what is unusable is an error that names its line, or is left out and listed."""

import bisect
import dataclasses
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertjax.config import DataOptions
from bertjax.data.cells import UNLABELLED, as_number, as_text, did_you_mean, listed, named
from bertjax.data.records import Reading
from bertjax.data.sources import Role, Source, open_source, shown
from bertjax.data.tasks import Task
from bertjax.errors import InputError

Text = tuple[str, str | None]
"""A text and its second text, None where texts are single."""

Paths = str | Sequence[str]
"""What `sources.open_source` opens: a file, pattern, folder or address, or several of them."""


class BadRow(NamedTuple):
    """A row that cannot be used."""

    part: int
    """Number of the file among the source's."""
    place: int
    """Line or row number in it."""
    where: str
    """Both, for messages."""
    reason: str
    """What is wrong with it."""


class Row(NamedTuple):
    """A usable row."""

    part: int
    """Number of the file among the source's."""
    place: int
    """The line on which it starts, or its row number in Parquet and TFDS."""
    text: Text
    """The text and its second text, without surrounding white space."""
    label: str | float | None
    """Class name or finite number; None where labels are not read."""


class RowReader:
    """Usable rows one after the other, in bounded memory; each iteration reads from the start.

    Attributes:
      source: where the rows come from.
      labelled: whether labels are read.
      bad: the rows that the last iteration left out (only with on_bad_row=skip).
    """

    def __init__(
        self,
        path: Paths,
        options: DataOptions,
        task: Task,
        *,
        split: str = "",
        role: Role = "data",
        labelled: bool | None = True,
    ) -> None:
        """Opens the source; its columns are known and checked, its rows are not read.

        Args:
          path: see `sources.open_source`.
          options: columns, encoding, and what happens to unusable rows.
          task: decides whether labels are numbers.
          split: of a folder or tfds:// address; empty: the one that fits the role, or the only one.
          role: what the rows are for.
          labelled: True: every row needs a label. False: labels are not read. None: they are if there is the column.

        Raises:
          InputError: no such source, or no such column.
        """
        reading = Reading(options.columns, options.encoding, options.encoding_errors)
        self.source = open_source(path, reading, split=split, role=role, data_dir=options.data_dir)
        self.labelled = options.label in self.source.columns if labelled is None else labelled
        self.bad: list[BadRow] = []
        self._skip = options.on_bad_row == "skip"
        self._text, self._pair, self._label = options.text, options.text_pair, options.label
        for option in ("text", *(["text_pair"] if options.text_pair else []), *(["label"] if self.labelled else [])):
            self._check_column(option, getattr(options, option))
        names = () if task.numeric_label else self.source.class_names.get(options.label, ())
        self._as_label = as_number if task.numeric_label else named(names) if names else as_text

    def __iter__(self) -> Iterator[Row]:
        """Raises InputError at the first unusable row, or leaves it out and lists it, as the options say."""
        self.bad.clear()
        return self.rows(self.bad.append if self._skip else _refuse)

    def rows(self, on_bad: Callable[[BadRow], None]) -> Iterator[Row]:
        """Usable rows; `on_bad` is told of each other row."""
        columns = [self._text, *([self._pair] if self._pair else []), *([self._label] if self.labelled else [])]
        pair, label = (1 if self._pair else None), (len(columns) - 1 if self.labelled else None)
        as_label = self._as_label
        for part, (place, values, problem) in self.source.records(columns):
            column = ""
            try:
                if values is None:
                    raise ValueError(problem)
                column = self._text
                first, second, value = as_text(values[0]), None, None
                if pair is not None:
                    column = self._pair
                    second = as_text(values[pair])
                if label is not None:
                    column = self._label
                    value = as_label(values[label])
            except ValueError as error:
                reason = f"column {column!r} {error}" if column else str(error)
                on_bad(BadRow(part, place, self.source.where(part, place), reason))
            else:
                yield Row(part, place, (first, second), value)

    def refuse(self, part: int, place: int, reason: str) -> None:
        """A row that came out of the last iteration cannot be used after all: an error, or left out and listed."""
        (self.bad.append if self._skip else _refuse)(BadRow(part, place, self.source.where(part, place), reason))

    def _check_column(self, option: str, column: str) -> None:
        for part in self.source.parts:
            if column not in part.columns:
                table = part.reading[0] in (".csv", ".tsv")
                headless = ". A file without a header line needs --data.columns" if table else ""
                raise InputError(
                    f"{part.path}: no column {column!r} (--data.{option}), expected one of {listed(part.columns)}"
                    f"{did_you_mean(column, part.columns)}{headless}"
                )


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """All usable rows of a source."""

    path: str
    """The source as the user gave it."""
    source: Source
    """Where the rows come from."""
    texts: list[Text]
    """Texts without surrounding white space."""
    labels: list[str] | list[float]
    """Class names, or finite numbers; empty where labels are not read."""
    places: Sequence[int]
    """Line or row number of each row in its part."""
    starts: list[int]
    """Position of the first row of each part."""
    class_names: tuple[str, ...] = ()
    """Names of the classes that the data set declares, in their order; empty where it declares none."""
    bad: tuple[BadRow, ...] = ()
    """Rows that were left out."""

    def __len__(self) -> int:
        return len(self.texts)

    def part(self, i: int) -> int:
        """Number of the part from which row `i` comes."""
        return bisect.bisect_right(self.starts, i) - 1

    def where(self, i: int) -> str:
        """File and line of row `i` for messages."""
        return self.source.where(self.part(i), self.places[i])


def read_rows(
    path: Paths,
    options: DataOptions,
    task: Task,
    *,
    split: str = "",
    role: Role = "data",
    labelled: bool | None = True,
) -> Rows:
    """Reads all rows; the arguments are those of `RowReader`.

    Raises:
      InputError: there is no such source or column, or no usable row; without on_bad_row=skip also if a row's text or
        label is missing or empty, or a label is not a number where the task needs one.
    """
    reader = RowReader(path, options, task, split=split, role=role, labelled=labelled)
    bad: list[BadRow] = []
    skip, more = options.on_bad_row == "skip", 0

    def on_bad(row: BadRow) -> None:
        nonlocal more
        if skip or not bad:
            bad.append(row)
        else:
            more += 1

    texts, labels, places, starts = [], [], array("q"), []
    same: dict[Any, Any] = {}  # equal labels are one object
    for row in reader.rows(on_bad):
        while len(starts) <= row.part:
            starts.append(len(texts))
        texts.append(row.text)
        places.append(row.place)
        if reader.labelled:
            labels.append(same.setdefault(row.label, row.label))
    if bad and not skip:
        _refuse(bad[0], more)
    if not texts:
        raise InputError(
            f"{shown(path)}: none of its {len(bad):,} rows can be used, for example {bad[0].where}: {bad[0].reason}"
        )
    starts += [len(texts)] * (len(reader.source.parts) - len(starts))
    names = () if task.numeric_label else reader.source.class_names.get(options.label, ())
    return Rows(shown(path), reader.source, texts, labels, places, starts, names, tuple(bad))


def label_names(rows: Rows, options: DataOptions, stored: Sequence[str] | None) -> tuple[str, ...]:
    """The names of the classes: those stored with a model, else the options', else the data set's, else all, sorted.

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
    return tuple(options.labels) or rows.class_names or found


def known_labels(rows: Rows, names: tuple[str, ...], options: DataOptions) -> Rows:
    """The rows whose labels are among the names; all where there are no names.

    Raises:
      InputError: a row has another label, and on_bad_row is not skip; or no row is left; or all scores are -1.
    """
    if not names:
        if len(rows) > 1 and set(rows.labels) == {-1.0}:
            raise InputError(
                f"{rows.path}: column {options.label!r} is -1 in all {len(rows):,} rows: {UNLABELLED}, expected scores"
            )
        return rows
    unknown = set(rows.labels).difference(names)
    if not unknown:
        return rows
    kept = [i for i, label in enumerate(rows.labels) if label not in unknown]
    bad = [
        BadRow(
            rows.part(i),
            rows.places[i],
            rows.where(i),
            f"label {label!r}, expected one of {listed(names)}{did_you_mean(label, names)}",
        )
        for i, label in enumerate(rows.labels)
        if label in unknown
    ]
    if options.on_bad_row != "skip":
        _refuse(bad[0], len(bad) - 1)
    if not kept:
        raise InputError(f"{rows.path}: no row has a known label, for example {bad[0].where}: {bad[0].reason}")
    return dataclasses.replace(
        rows,
        texts=[rows.texts[i] for i in kept],
        labels=[rows.labels[i] for i in kept],
        places=array("q", (rows.places[i] for i in kept)),
        starts=[bisect.bisect_left(kept, start) for start in rows.starts],
        bad=tuple(sorted((*rows.bad, *bad))),
    )


def label_array(rows: Rows, names: tuple[str, ...]) -> np.ndarray:
    """Labels as [n] int32 class numbers (all must be among the names), or as float32 scores where there are none."""
    if not names:
        return np.array(rows.labels, np.float32)
    number = {name: i for i, name in enumerate(names)}
    return np.array([number[label] for label in rows.labels], np.int32)


def _refuse(row: BadRow, more: int = 0) -> None:
    others = f" ({more:,} more such row{'s' * (more > 1)})" if more else ""
    raise InputError(f"{row.where}: {row.reason}{others}; --data.on_bad_row=skip leaves such rows out")
