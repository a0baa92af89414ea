"""Labels of rows as class numbers or scores: which classes there are, and which rows have one of them."""

import bisect
import dataclasses
from array import array
from collections.abc import Sequence
from typing import Any

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
    found = tuple(sorted({name for label in set(rows.labels) for name in classes(label)}))
    if stored is not None:
        if options.labels and tuple(options.labels) != tuple(stored):
            raise InputError(
                f"--data.labels: got {listed(options.labels)}, expected the labels of the model in its order: "
                f"{listed(stored)}"
            )
        return tuple(stored)
    if len(found) < 2:
        raise InputError(
            f"{rows.path}: all {len(rows.labels):,} rows have {f'the label {found[0]!r}' if found else 'no label'}, "
            "expected at least two labels"
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
    unknown = {label: bad for label in set(rows.labels) if (bad := [c for c in classes(label) if c not in names])}
    if not unknown:
        return rows
    kept = [i for i, label in enumerate(rows.labels) if label not in unknown]
    bad = [
        BadRow(
            rows.part(i),
            rows.places[i],
            rows.where(i),
            f"label {unknown[label][0]!r}, expected one of {listed(names)}{did_you_mean(unknown[label][0], names)}",
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
        texts=rows.texts.taken(kept),
        labels=[rows.labels[i] for i in kept],
        places=array("q", (rows.places[i] for i in kept)),
        starts=[bisect.bisect_left(kept, start) for start in rows.starts],
        bad=tuple(sorted((*rows.bad, *bad))),
    )


def label_array(rows: Rows, names: tuple[str, ...]) -> np.ndarray:
    """Labels as arrays; see `as_array`."""
    return as_array(rows.labels, names)


def as_array(labels: Sequence[Any], names: Sequence[str], many: bool | None = None) -> np.ndarray:
    """Labels as [n] int32 class numbers, [n] float32 scores, or [n, classes] float32, 1 where a row has the class.

    Args:
      labels: class names, numbers, or tuples of class names.
      names: the classes, to which all must belong; empty: labels are numbers.
      many: whether labels are tuples; None: the first one says.
    """
    if not names:
        return np.array(labels, np.float32)
    number = {name: i for i, name in enumerate(names)}
    if not (isinstance(labels[0], tuple) if many is None else many):
        return np.array([number[label] for label in labels], np.int32)
    table = np.zeros((len(labels), len(names)), np.float32)
    for row, label in zip(table, labels, strict=True):
        row[[number[name] for name in label]] = 1
    return table


def class_weights(labels: np.ndarray, names: Sequence[str], options: DataOptions) -> np.ndarray | None:
    """Weights of rows in the training loss, [n] float32; None: all are 1.

    Args:
      labels: [n] class numbers.
      names: the classes.
      options: the weight of each class, or that they are balanced.

    Raises:
      InputError: weights that do not fit the classes, or where a row has not one class.
    """
    if not options.class_weights and not options.balanced:
        return None
    if options.class_weights and options.balanced:
        raise InputError("--data.class_weights and --data.balanced: expected one of them")
    if not names or labels.ndim > 1:
        option = "class_weights" if options.class_weights else "balanced"
        raise InputError(f"--data.{option}: is for tasks with one class a row, the task is {options.task}")
    weights = np.array(options.class_weights, np.float64)
    if options.balanced:
        counts = np.bincount(labels, minlength=len(names))
        weights = len(labels) / (len(names) * np.maximum(counts, 1))
    elif len(weights) != len(names) or not (np.isfinite(weights).all() and (weights > 0).all()):
        raise InputError(
            f"--data.class_weights={' '.join(map(str, options.class_weights))}: expected a positive number for each of "
            f"{listed(names)}"
        )
    return weights[labels].astype(np.float32)


def classes(label: Any) -> tuple[str, ...]:
    """The classes of a row: one, or any number."""
    return label if isinstance(label, tuple) else (label,)
