"""The plane of a landscape: an origin and one or two directions in parameter space.

A point of it is ``origin + Σ c_k · direction_k``. Leaves that no direction moves are carried from the origin as they
are, and so are leaves that are not floating point numbers.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.errors import InputError

Tree = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Plane:
    """Origin and directions in parameter space; make one with `make_plane`."""

    origin: Tree
    """Parameters at (0, 0)."""
    directions: tuple[tuple[jax.Array | None, ...], ...]
    """For each direction one entry per leaf of the origin; None where the leaf does not move."""

    def at(self, coefficients: jax.Array) -> Tree:
        """The parameters at one point; coefficients [number of directions]."""
        leaves, structure = jax.tree.flatten(self.origin)
        moved = []
        for i, leaf in enumerate(leaves):
            steps = [c[i] for c in self.directions]
            value = leaf
            if any(step is not None for step in steps):
                value = leaf.astype(jnp.float32)
                for k, step in enumerate(steps):
                    if step is not None:
                        value = value + coefficients[k] * step.astype(jnp.float32)
            moved.append(value.astype(leaf.dtype))
        return jax.tree.unflatten(structure, moved)


def make_plane(origin: Tree, directions: Sequence[Tree]) -> Plane:
    """Builds a plane.

    Args:
      origin: any pytree of arrays.
      directions: pytrees of the same structure and shapes; a leaf may be None where nothing moves.

    Raises:
      InputError: a direction of another structure or shape, with values that are not finite, or zero everywhere.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(origin)
    moving = []
    for number, direction in enumerate(directions, 1):
        try:
            steps = structure.flatten_up_to(direction)
        except ValueError as error:
            raise InputError(f"direction {number} has another structure than the parameters: {error}") from None
        kept = []
        for (path, leaf), step in zip(paths, steps, strict=True):
            name = jax.tree_util.keystr(path)
            if step is None or not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
                kept.append(None)
                continue
            if jnp.shape(step) != jnp.shape(leaf):
                raise InputError(f"direction {number}, {name}: shape {jnp.shape(step)}, expected {jnp.shape(leaf)}")
            values = np.asarray(step)  # on the host: eager operations would compile for every shape
            if not np.isfinite(values).all():
                raise InputError(f"direction {number}, {name}: has values that are not finite")
            kept.append(jnp.asarray(step) if values.any() else None)
        if all(step is None for step in kept):
            raise InputError(f"direction {number} is zero everywhere: there is nothing to draw along it")
        moving.append(tuple(kept))
    if not moving:
        raise InputError("a plane needs at least one direction")
    return Plane(jax.tree.map(jnp.asarray, origin), tuple(moving))


def norm(direction: Tree) -> float:
    """L2 norm over all leaves, summed in float64; None counts as zero."""
    return float(np.sqrt(inner(direction, direction)))


def inner(a: Tree, b: Tree) -> float:
    """Inner product over all leaves, summed in float64 leaf by leaf; None counts as zero."""
    total = 0.0
    for x, y in zip(_leaves(a), _leaves(b), strict=True):
        if x is not None and y is not None:
            total += float(np.dot(np.asarray(x, np.float64).ravel(), np.asarray(y, np.float64).ravel()))
    return total


def cosine(a: Tree, b: Tree) -> float:
    """Cosine of the angle between two directions."""
    return inner(a, b) / (norm(a) * norm(b))


def check_independent(first: Tree, second: Tree) -> float:
    """The cosine of two directions; InputError if one is zero or they are parallel: they span no plane."""
    if not min(norm(first), norm(second)) > 0:
        raise InputError("a plane needs two directions that are not zero")
    found = cosine(first, second)
    if not 1 - abs(found) > 1e-9:
        raise InputError(f"the two directions are parallel (cosine {found:.9f}): there is no plane")
    return found


def rescale(direction: Tree, length: float) -> Tree:
    """The direction with another L2 norm; InputError if it is zero."""
    size = norm(direction)
    if not size > 0 or not np.isfinite(size):
        raise InputError(f"a direction of norm {size} cannot be scaled")
    factor = length / size
    return jax.tree.map(lambda x: np.asarray(x) * np.asarray(factor, x.dtype), direction)


def _leaves(tree: Tree) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=lambda x: x is None)
