"""Metrics on the predictions of a whole data set, by scikit-learn and SciPy.

Every function takes labels and predictions of the same length, at least one each, and returns a float. A correlation
is nan where it is undefined: constant or non-finite values, or fewer than two rows.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.stats
import sklearn.metrics
from numpy.typing import ArrayLike

from bertjax.data.tasks import Task
from bertjax.errors import InputError


def score(task: Task, labels: ArrayLike, predictions: ArrayLike) -> dict[str, float]:
    """The task's metrics by name.

    Args:
      task: decides which metrics.
      labels: [n] class numbers or scores.
      predictions: [n] predicted class numbers or scores.

    Raises:
      InputError: no examples, or not as many predictions as labels.
    """
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    if labels.shape != predictions.shape:
        raise InputError(f"{task.name}: labels have shape {labels.shape}, predictions {predictions.shape}")
    if len(labels) == 0:
        raise InputError(f"{task.name}: no examples to score, expected at least one")
    return {name: METRICS[name](labels, predictions) for name in task.metrics}


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Share of correct classes."""
    return float(sklearn.metrics.accuracy_score(labels, predictions))


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """F1 of class 1 in a two-class problem; 0 where class 1 neither occurs nor is predicted."""
    classes = set(np.unique(labels).tolist()) | set(np.unique(predictions).tolist())
    if not classes <= {0, 1}:
        raise InputError(f"f1 is for the classes 0 and 1, got {sorted(classes)}; f1_macro takes any number of classes")
    return float(sklearn.metrics.f1_score(labels, predictions, labels=[1], average="macro", zero_division=0.0))


def f1_micro(labels: np.ndarray, predictions: np.ndarray) -> float:
    """F1 over all decisions of rows with any number of classes, [n, classes] of 0 and 1; 0 where there is no class."""
    return float(sklearn.metrics.f1_score(labels, predictions, average="micro", zero_division=0.0))


def f1_macro(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Unweighted mean of F1 over the classes that occur or are predicted."""
    return float(sklearn.metrics.f1_score(labels, predictions, average="macro", zero_division=0.0))


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Matthews correlation coefficient; 0 by convention where labels or predictions are all the same."""
    if _constant(labels) or _constant(predictions):
        return 0.0
    return float(sklearn.metrics.matthews_corrcoef(labels, predictions))


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Pearson's linear correlation."""
    return _correlation(scipy.stats.pearsonr, labels, predictions)


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Spearman's rank correlation; ties take the mean of their ranks."""
    return _correlation(scipy.stats.spearmanr, labels, predictions)


def mse(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Mean squared error; nan where a prediction is not finite."""
    labels, predictions = np.asarray(labels, np.float64), np.asarray(predictions, np.float64)
    if not (np.isfinite(labels).all() and np.isfinite(predictions).all()):
        return float("nan")
    return float(sklearn.metrics.mean_squared_error(labels, predictions))


def exact(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Share of rows that agree entirely; rows may be numbers, texts, or several columns of either."""
    same = np.asarray(labels) == np.asarray(predictions)
    return float(np.mean(same.reshape(len(same), -1).all(axis=1)))


METRICS: dict[str, Callable[[Any, Any], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "f1_macro": f1_macro,
    "f1_micro": f1_micro,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
    "mse": mse,
    "exact": exact,
}
"""Metric name -> function (labels, predictions) -> float."""


def _correlation(function: Callable[..., Any], labels: np.ndarray, predictions: np.ndarray) -> float:
    labels, predictions = np.asarray(labels, np.float64), np.asarray(predictions, np.float64)
    finite = np.isfinite(labels).all() and np.isfinite(predictions).all()
    if not finite or _constant(labels) or _constant(predictions):
        return float("nan")
    with warnings.catch_warnings():
        # Nearly constant predictions are what an untrained model gives: the number is shown, the warning helps nobody.
        warnings.simplefilter("ignore", scipy.stats.NearConstantInputWarning)
        return float(function(labels, predictions).statistic)


def _constant(values: np.ndarray) -> bool:
    values = np.asarray(values)
    return bool((values == values[0]).all())
