"""Where a training went, seen from a plane: coordinates of each snapshot, its distance from the plane, its losses.

Two kinds of coordinates. Hao et al. 2019, section 3: ``a = ⟨δ, δ₁⟩/‖δ₁‖²`` and b, the length of the whole part of
δ = θ − θ₀ orthogonal to δ₁, in units of ‖δ₁‖ (their formula ``√((‖δ‖/‖δ₁‖)² − a²)`` loses all digits near the end, so
b is taken as the norm of the residual). And the position in the drawn plane, by least squares on both directions, with
the distance off the plane. One snapshot is in memory at a time.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from bertjax.landscape import plane as planes
from bertjax.landscape.blocks import Prepared
from bertjax.landscape.directions import Ends, difference
from bertjax.landscape.evaluate import point_mesh, program_memory, scan_examples
from bertjax.landscape.examples import WORD_TABLE, EvaluationSet, model_loss
from bertjax.landscape.store import to_dataset
from bertjax.tree import flatten, unflatten

Tree = Any

COORDINATES = {
    "a": "⟨δ, δ₁⟩ / ‖δ₁‖²",
    "b": "‖δ − a·δ₁‖ / ‖δ₁‖",
    "alpha": "least-squares coordinate on δ₁",
    "beta": "least-squares coordinate on δ₂",
    "length": "‖δ‖, L2 norm over the parameters that the plane moves",
    "off_plane": "‖δ − α·δ₁ − β·δ₂‖, L2 norm",
}
FINAL_HEAD = "_final_head"


class Projection:
    """Coordinates of points in a plane.

    Args:
      first: direction δ₁, a pytree; None leaves do not move.
      second: direction δ₂ of the same structure.

    Raises:
      InputError: the directions are zero or parallel.
    """

    def __init__(self, first: Tree, second: Tree) -> None:
        self._first, self._second = first, second
        self._norms = (planes.norm(first), planes.norm(second))
        self._cosine = planes.check_independent(first, second)

    def coordinates(self, step: Tree) -> dict[str, float]:
        """The values that `COORDINATES` names, for the point ``origin + step``; None leaves of the step are zero."""
        n1, n2 = self._norms
        on_first, on_second = planes.inner(step, self._first) / n1, planes.inner(step, self._second) / n2
        # Normal equations of unit vectors with this cosine.
        square = 1 - self._cosine**2
        u1, u2 = (on_first - self._cosine * on_second) / square, (on_second - self._cosine * on_first) / square
        a, alpha, beta = on_first / n1, u1 / n1, u2 / n2
        return {
            "a": a,
            "b": self._residual(step, a, 0.0) / n1,
            "alpha": alpha,
            "beta": beta,
            "length": planes.norm(step),
            "off_plane": self._residual(step, alpha, beta),
        }

    def _residual(self, step: Tree, alpha: float, beta: float) -> float:
        """Norm of ``step − α·δ₁ − β·δ₂``, leaf by leaf in float64."""
        total = 0.0
        leaves = (jax.tree.leaves(tree, is_leaf=lambda x: x is None) for tree in (step, self._first, self._second))
        for x, *directions in zip(*leaves, strict=True):
            value = np.zeros(()) if x is None else np.asarray(x, np.float64)
            for scale, leaf in zip((alpha, beta), directions, strict=True):
                if leaf is not None and scale:
                    value = value - scale * np.asarray(leaf, np.float64)
            total += float(np.square(value).sum())
        return float(np.sqrt(total))


def prepare(ends: Ends, directions: Sequence[Tree], evaluation: EvaluationSet) -> Prepared:
    """The computation of all snapshots, one at a time, on one device: losses under both heads, and coordinates."""
    projection, subject = Projection(*directions), ends.subject
    loss = model_loss(subject.model, subject.head, evaluation.words)
    start = ends.mask(ends.start)
    mesh = point_mesh(jax.devices()[:1])

    def few_words(params: Tree) -> Tree:
        flat = flatten(params)
        return unflatten(flat | {WORD_TABLE: jnp.take(flat[WORD_TABLE], evaluation.words, axis=0)})

    with jax.set_mesh(mesh):
        batches = jax.tree.map(jnp.asarray, evaluation.examples.groups)
        program = jax.jit(lambda params, batches: scan_examples(loss, params, batches))
        compiled = program.lower(few_words(ends.end), batches).compile()

    def compute(numbers: np.ndarray) -> dict[str, np.ndarray]:
        params, own_head = subject.params(subject.snapshots[numbers[0]])
        with jax.set_mesh(mesh):
            own = compiled(few_words(params), batches)
            final = compiled(few_words(ends.with_final_head(params)), batches)
        place = projection.coordinates(difference(ends.mask(params), start))
        values = own | {f"{name}{FINAL_HEAD}": x for name, x in final.items()}
        return {name: np.asarray(x)[None, evaluation.examples.order] for name, x in values.items()} | {
            "coordinates": np.array([[*(place[name] for name in COORDINATES), own_head]])
        }

    return Prepared(compute, len(subject.snapshots), block=1, memory=program_memory(compiled))


def trajectory_dataset(
    values: dict[str, np.ndarray], ends: Ends, evaluation: EvaluationSet, attributes: dict[str, Any]
) -> xr.Dataset:
    """Arranges the values of `prepare`.

    Returns:
      Dataset over snapshots: the variables of `COORDINATES`, `step`, and (split, snapshot) `loss` and `error` with the
      snapshot's own head (NaN where it has none) and `loss_final_head`, `error_final_head` with the trained head.
    """
    subject = ends.subject
    coordinates = values.pop("coordinates")
    axes = {"snapshot": np.array([snapshot.name for snapshot in subject.snapshots])}
    dataset = to_dataset(values, axes, evaluation.split, attributes)
    dataset["step"] = ("snapshot", [snapshot.step for snapshot in subject.snapshots])
    for column, (name, meaning) in enumerate(COORDINATES.items()):
        dataset[name] = ("snapshot", coordinates[:, column], {"long_name": meaning})
    dataset["own_head"] = ("snapshot", coordinates[:, -1].astype(np.int8))
    for name in list(dataset.data_vars):
        if str(name).removesuffix("_se").removeprefix("example_") in ("loss", "error"):
            dataset[name] = dataset[name].where(dataset["own_head"] == 1)
    return dataset
