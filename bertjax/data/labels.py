"""Labels of rows as class numbers or scores: which classes there are, and which rows have one of them."""

import bisect
import dataclasses
from array import array
from collections.abc import Sequence

import numpy as np

from bertjax.config import DataOptions
from bertjax.data.cells import UNLABELLED, did_you_mean, listed
from bertjax.data.rows import BadRow, Rows, refuse
from bertjax.errors import InputError


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
                f"{rows.path}: column {rows.fields.label!r} is -1 in all {len(rows):,} rows: {UNLABELLED}, expected "
                "scores"
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
        refuse(bad[0], len(bad) - 1)
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
