"""Predictions for the dev rows at the end of a run, from which its scores were computed."""

from pathlib import Path
from typing import Any

import numpy as np

from bertjax import paths
from bertjax.data.features import Splits
from bertjax.data.writers import WRITERS

FILE = Path("predictions") / "dev.csv"


def write_predictions(
    folder: Path, splits: Splits, predictions: np.ndarray, losses: np.ndarray, separator: str
) -> None:
    """Writes FILE in a run's folder: place of each dev row, its label, the prediction, and its loss.

    Columns: `part` (number of the file, where there are several), `row` (line of the file, or row number), `true`,
    `prediction` and `loss`.

    Args:
      folder: the run's folder.
      splits: the run's rows.
      predictions: [dev rows] class numbers or scores, or [dev rows, classes] of 0 and 1.
      losses: [dev rows].
      separator: stands between the classes of a row that has several.
    """
    source, dev = splits.sources["dev"], splits.dev
    rows = dev.rows.tolist()
    table: dict[str, list[Any]] = {}
    if len(source.source.parts) > 1:
        table["part"] = [source.part(row) for row in rows]
    table["row"] = [source.places[row] for row in rows]
    table["true"] = _names(dev.labels, splits.labels, separator)
    table["prediction"] = _names(predictions, splits.labels, separator)
    table["loss"] = losses.tolist()
    with paths.replacing(folder / FILE) as temporary, WRITERS[".csv"](temporary) as write:
        write(table)


def _names(values: np.ndarray, names: tuple[str, ...], separator: str) -> list[Any]:
    if values.ndim > 1:
        return [separator.join(names[i] for i in np.flatnonzero(row > 0)) for row in values]
    return [names[i] for i in values] if names else values.tolist()
