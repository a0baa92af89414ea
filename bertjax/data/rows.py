"""Rows as checked texts and labels: what is unusable is an error that names its line, or is left out and listed."""

import bisect
import dataclasses
import functools
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertjax.config import DataOptions
from bertjax.data import splits
from bertjax.data.cells import as_number, as_text, class_name, did_you_mean, listed, named, several
from bertjax.data.records import Reading
from bertjax.data.sources import Role, Source, open_source, shown
from bertjax.data.tasks import Fields, Task, find_layout, given_fields
from bertjax.data.texts import Text, Texts
from bertjax.errors import InputError

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
    label: str | float | tuple[str, ...] | None
    """Class name, finite number, or several class names; None where labels are not read."""


class RowReader:
    """Usable rows one after the other, in bounded memory; each iteration reads from the start.

    Attributes:
      source: where the rows come from.
      labelled: whether labels are read.
      fields: the columns that are read.
      bad: the rows that the last iteration left out (only with on_bad_row=skip).
      unlabelled: how many rows the last iteration left out because they say that they have no label.
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
        empty_texts: bool = False,
    ) -> None:
        """Opens the source; its columns are known and checked, its rows are not read.

        Args:
          path: see `sources.open_source`.
          options: columns, encoding, and what happens to unusable rows.
          task: decides whether labels are numbers.
          split: of a folder or tfds:// address; empty: the one that fits the role, or the only one.
          role: what the rows are for.
          empty_texts: whether texts without words are usable.
          labelled: True: every row needs a label. False: labels are not read. None: they are if there is the column.

        Raises:
          InputError: no such source, or no such column.
        """
        reading = Reading(options.columns, options.encoding, options.encoding_errors)
        opened = functools.partial(open_source, path, split=split, role=role, data_dir=options.data_dir)
        headers = [] if reading.columns else [layout.header for layout in task.layouts if layout.header]
        try:
            self.source = opened(reading)
        except InputError:
            if not headers:
                raise
            # Its first line is no header line: cells that are empty or occur twice.
            self.source = opened(dataclasses.replace(reading, columns=headers[0]))
        given = given_fields(task, options.text, options.text_pair, options.label)
        if given is None:
            layout = find_layout(task, self.source.columns, bool(labelled), self.source.path, options.label)
            if layout.header:
                self.source = opened(dataclasses.replace(reading, columns=layout.header))
            given = Fields(layout.text, options.text_pair or layout.text_pair, layout.label)
        self.fields = given
        self.labelled = given.label in self.source.columns if labelled is None else labelled
        self.bad: list[BadRow] = []
        self.unlabelled = 0
        self._skip, self._no_label = options.on_bad_row == "skip", task.unlabelled
        self._text, self._pair, self._label = given.text, given.text_pair, given.label
        self._check_column("text", given.text)
        if given.text_pair:
            self._check_column("text_pair", given.text_pair)
        if self.labelled:
            self._check_column("label", given.label)
        self._as_label = self._label_reader(task, options.label_separator)
        self._as_text = _text_or_empty if empty_texts else as_text

    def __iter__(self) -> Iterator[Row]:
        """Raises InputError at the first unusable row, or leaves it out and lists it, as the options say."""
        self.bad.clear()
        self.unlabelled = 0
        return self.rows(self.bad.append if self._skip else refuse)

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
                first, second, value = self._as_text(values[0]), None, None
                if pair is not None:
                    column = self._pair
                    second = self._as_text(values[pair])
                if label is not None:
                    column = self._label
                    if self._no_label and str(values[label]).strip() in self._no_label:
                        self.unlabelled += 1
                        continue
                    value = as_label(values[label])
            except ValueError as error:
                reason = f"column {column!r} {error}" if column else str(error)
                on_bad(BadRow(part, place, self.source.where(part, place), reason))
            else:
                yield Row(part, place, (first, second), value)

    def _label_reader(self, task: Task, separator: str) -> Callable[[Any], Any]:
        if task.numeric_label:
            return as_number
        declared = self.source.class_names.get(self._label, ())
        if not task.labels:
            one = named(declared) if declared else as_text
            return several(one, separator) if task.several_labels else one
        if unknown := [name for name in declared if name not in task.labels]:
            raise InputError(
                f"{self.source.path}: column {self._label!r} has the class {unknown[0]!r}, expected those of the task "
                f"{task.name}: {listed(task.labels)}"
            )
        return class_name(task.labels, declared or task.labels)

    def refuse(self, part: int, place: int, reason: str) -> None:
        """A row that came out of the last iteration cannot be used after all: an error, or left out and listed."""
        (self.bad.append if self._skip else refuse)(BadRow(part, place, self.source.where(part, place), reason))

    def _check_column(self, option: str, column: str) -> None:
        for part in self.source.parts:
            if column not in part.columns:
                table = part.reading[0] in (".csv", ".tsv", ".txt")
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
    fields: Fields
    """The columns that were read."""
    source: Source
    """Where the rows come from."""
    texts: Texts
    """Texts without surrounding white space."""
    labels: list[str] | list[float] | list[tuple[str, ...]]
    """Class names, finite numbers, or several class names each; empty where labels are not read."""
    places: Sequence[int]
    """Line or row number of each row in its part."""
    starts: list[int]
    """Position of the first row of each part."""
    class_names: tuple[str, ...] = ()
    """Names of the classes that the data set declares, in their order; empty where it declares none."""
    bad: tuple[BadRow, ...] = ()
    """Rows that were left out."""
    unlabelled: int = 0
    """Rows that were left out because they say that they have no label."""

    def __len__(self) -> int:
        return len(self.texts)

    @functools.cached_property
    def keys(self) -> np.ndarray:
        """[n] uint64: equal where texts are; see `splits.keys`."""
        return splits.keys(self.texts)

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

    texts, labels, places, starts = Texts(options.cache), [], array("q"), []
    same: dict[Any, Any] = {}  # equal labels are one object
    for row in reader.rows(on_bad):
        while len(starts) <= row.part:
            starts.append(len(texts))
        texts.append(row.text)
        places.append(row.place)
        if reader.labelled:
            labels.append(same.setdefault(row.label, row.label))
    if bad and not skip:
        refuse(bad[0], more)
    if not texts:
        raise InputError(
            f"{shown(path)}: none of its {len(bad):,} rows can be used, for example {bad[0].where}: {bad[0].reason}"
        )
    starts += [len(texts)] * (len(reader.source.parts) - len(starts))
    names = () if task.numeric_label else task.labels or reader.source.class_names.get(reader.fields.label, ())
    return Rows(
        shown(path),
        reader.fields,
        reader.source,
        texts,
        labels,
        places,
        starts,
        names,
        tuple(bad),
        reader.unlabelled,
    )


def _text_or_empty(value: Any) -> str:
    return "" if value is None or not str(value).strip() else as_text(value)


def refuse(row: BadRow, more: int = 0) -> None:
    others = f" ({more:,} more such row{'s' * (more > 1)})" if more else ""
    raise InputError(f"{row.where}: {row.reason}{others}; --data.on_bad_row=skip leaves such rows out")
