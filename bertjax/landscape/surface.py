"""Curves and surfaces of any loss over any parameters, as xarray Datasets.

    surface(loss_fn, params, [d1, d2], x=np.linspace(-1, 1, 21), y=np.linspace(-1, 1, 21), data=examples)

`loss_fn` is a pure function, `params` any pytree; nothing here knows BERT.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from bertjax.errors import InputError
from bertjax.landscape import plane as planes
from bertjax.landscape.evaluate import Examples, LossFunction, evaluate
from bertjax.landscape.store import to_dataset

Tree = Any


def surface(
    loss_fn: Any,
    params: Tree,
    directions: Sequence[Tree],
    *,
    x: Any,
    y: Any = None,
    data: Any = None,
    batch_size: int | None = None,
    points_per_step: int | None = None,
    store: Path | None = None,
    attributes: dict[str, Any] | None = None,
) -> xr.Dataset:
    """Evaluates a loss on a grid ``params + α·directions[0] (+ β·directions[1])``.

    Args:
      loss_fn: with `data`, ``loss_fn(params, batch)`` returns the loss of each example, [batch], or a dictionary of
        such arrays with the key "loss"; without, ``loss_fn(params)`` returns a scalar or a dictionary of scalars.
      params: any pytree of arrays: the origin.
      directions: one pytree for a curve, two for a surface; None leaves do not move.
      x: [nx] coordinates α, strictly increasing.
      y: [ny] coordinates β, strictly increasing; only with two directions.
      data: pytree of arrays [examples, ...], the same at every point.
      batch_size: examples per batch; None: all in one.
      points_per_step: points evaluated together by `vmap`; None: measured.
      store: Zarr folder that keeps finished blocks, so that an interrupted grid continues.
      attributes: stored with the result.

    Returns:
      Dataset with `loss` and `loss_se` (standard error of the mean over examples) over (split, [beta,] alpha),
      `status`, and `example_loss` over ([beta,] alpha, example); the same for every other key of the dictionary.

    Raises:
      InputError: directions, coordinates or data that do not fit; no examples.
    """
    if len(directions) not in (1, 2) or (y is not None) != (len(directions) == 2):
        raise InputError(
            f"{len(directions)} directions with y {'given' if y is not None else 'absent'}: expected one "
            "direction and x (a curve), or two directions, x and y (a surface)"
        )
    axes = {"alpha": coordinates("x", x)} | ({"beta": coordinates("y", y)} if y is not None else {})
    plane = planes.make_plane(params, directions)
    examples, count = _examples(data, batch_size)
    identity = {"axes": {name: list(values) for name, values in axes.items()}, "examples": count}
    values = evaluate(
        _per_example(loss_fn, data is not None),
        plane,
        grid_points(axes),
        examples,
        store=store,
        identity=identity | (attributes or {}),
        points_per_step=points_per_step,
    )
    return to_dataset(values, axes, np.array(["all"] * count), attributes or {})


def coordinates(name: str, values: Any) -> np.ndarray:
    """Checks grid coordinates: [n] finite, strictly increasing numbers."""
    array = np.atleast_1d(np.asarray(values, np.float64))
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all() or not (np.diff(array) > 0).all():
        raise InputError(f"{name}: expected finite, strictly increasing coordinates, got {values!r}")
    return array


def line(low: float, high: float, count: int, name: str = "alpha") -> np.ndarray:
    """`count` evenly spaced coordinates from `low` to `high`, and 0 and 1 besides where they lie between.

    Raises:
      InputError: there are none; `name` is the option that gave the ends.
    """
    if count < 1 or not (math.isfinite(low) and math.isfinite(high)) or low > high or (count > 1 and low == high):
        raise InputError(
            f"--{name} {low:g} {high:g} with {count} points: expected the lower end first, both finite, and at least 1 "
            "point"
        )
    values = np.linspace(low, high, count)
    for wanted in (0.0, 1.0):
        if low <= wanted <= high:
            near = np.abs(values - wanted) < 1e-9
            values = np.where(near, wanted, values) if near.any() else np.sort(np.append(values, wanted))
    return values


def grid_points(axes: dict[str, np.ndarray]) -> np.ndarray:
    """Coefficients [points, axes] of a grid; alpha (the first axis) runs fastest."""
    if len(axes) == 1:
        return axes["alpha"][:, None]
    beta, alpha = np.meshgrid(axes["beta"], axes["alpha"], indexing="ij")
    return np.stack([alpha.ravel(), beta.ravel()], axis=1)


def _examples(data: Any, batch_size: int | None) -> tuple[Examples, int]:
    """Batches of a pytree [examples, ...]; the last is filled up with repeats that `order` leaves out."""
    if data is None:
        return Examples((np.zeros((1, 1), np.int8),), np.arange(1)), 1
    sizes = {np.shape(leaf)[0] if np.ndim(leaf) else None for leaf in jax.tree.leaves(data)}
    if len(sizes) != 1 or None in sizes or 0 in sizes:
        raise InputError(f"data: expected arrays with one common first axis of at least one example, got sizes {sizes}")
    count = sizes.pop()
    size = min(batch_size or count, count)
    if size < 1:
        raise InputError(f"batch_size is {batch_size}, expected at least 1")
    batches = -(-count // size)
    index = np.minimum(np.arange(batches * size), count - 1).reshape(batches, size)
    return Examples((jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], data),), np.arange(count)), count


def _per_example(loss_fn: Any, with_data: bool) -> LossFunction:
    def loss(params: Tree, batch: Any) -> dict[str, jax.Array]:
        result = loss_fn(params, batch) if with_data else loss_fn(params)
        values = result if isinstance(result, dict) else {"loss": result}
        if "loss" not in values:
            raise InputError(f"the loss function returned the keys {sorted(values)}, expected 'loss' among them")
        if not with_data:
            return {name: jnp.reshape(value, (1,)) for name, value in values.items()}
        count = jax.tree.leaves(batch)[0].shape[0]
        for name, value in values.items():
            if jnp.shape(value) != (count,):
                raise InputError(
                    f"the loss function returned {name} of shape {jnp.shape(value)}, expected one value per "
                    f"example, ({count},)"
                )
        return values

    return loss
