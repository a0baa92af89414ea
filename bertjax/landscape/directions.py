"""Directions in parameter space, by name, and which parameters they move.

`DIRECTIONS` names them: `between` (from the start of a run to its end), `task:RUN2` (from the same start to the end of
another run; Hao et al. 2019, section 3) and `random` (Gaussian, filter-normalized; Li et al. 2018, section 4).
"""

import dataclasses
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp

from bertjax.config import nearest
from bertjax.errors import InputError
from bertjax.landscape import plane
from bertjax.model.heads import HEAD_GROUPS
from bertjax.run import Run
from bertjax.tree import flatten, unflatten

Tree = Any

# Path pattern -> the axes that together make one filter: an output unit of a dense map, a row of an embedding table, a
# head of an attention map. Other axes (layers among them) number the filters. The first pattern that fits decides.
FILTER_AXES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("*embeddings/word", (-1,)),
    ("*embeddings/position", (-1,)),
    ("*embeddings/token_type", (-1,)),
    ("*attention/output/kernel", (-2, -1)),  # [layer, heads, head_dim, hidden]
    ("*attention/*/kernel", (-3, -1)),  # [layer, hidden, heads, head_dim]
    ("*/kernel", (-2,)),  # [(layer,) inputs, outputs]
)


@dataclasses.dataclass(frozen=True)
class Ends:
    """Start and end of a run's training, and how its head is treated."""

    run: Run
    start: Tree
    end: Tree
    head: Literal["fixed", "move"]
    seed: int

    def moves(self, path: str) -> bool:
        """Whether the plane moves the parameter at `path`.

        With head=fixed the classifier, fusion and normalization stand still, and the pooler too where it started fresh
        beside a pre-trained encoder (a pooler that was pre-trained belongs to the encoder).
        """
        if self.head == "move":
            return True
        fresh_pooler = self.run.config.model.init == "pretrained" and "encoder/pooler/kernel" in self.run.info["fresh"]
        return path.split("/")[0] not in HEAD_GROUPS and not (fresh_pooler and path.startswith("encoder/pooler/"))

    def mask(self, tree: Tree) -> Tree:
        """The tree with None in place of what does not move."""
        return unflatten({path: x if self.moves(path) else None for path, x in flatten(tree).items()})

    def origin(self) -> Tree:
        """θ₀ where the plane moves, the trained values elsewhere."""
        start, end = flatten(self.start), flatten(self.end)
        return unflatten({path: start[path] if self.moves(path) else end[path] for path in end})


def load_ends(run: Run, head: Literal["fixed", "move"], seed: int = 0) -> Ends:
    """Reads θ₀ and θ₁ of a finished run."""
    first, last = run.ends()
    return Ends(run, run.params(first), run.params(last), head, seed)


def difference(a: Tree, b: Tree) -> Tree:
    """a − b, leaf by leaf."""
    return jax.tree.map(jnp.subtract, a, b)


def random_direction(
    key: jax.Array,
    params: Tree,
    *,
    normalization: Literal["filter", "layer", "none"] = "filter",
    vectors: Literal["zero", "scale"] = "zero",
) -> Tree:
    """A Gaussian direction, normalized to the parameters.

    Args:
      key: typed PRNG key.
      params: nested dictionary of arrays.
      normalization: filter: each filter of `FILTER_AXES` gets the norm of the same filter of the parameters (Li et al.
        2018). layer: each array does. none: as drawn.
      vectors: what happens to arrays that are no filters (biases, layer norms): zero, or scaled as a whole (one per
        layer of a stack).

    Returns:
      A tree of the same structure; None where nothing moves.
    """
    flat = flatten(params)
    direction: dict[str, Any] = {}
    for number, (path, leaf) in enumerate(sorted(flat.items())):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            direction[path] = None
            continue
        axes = next((axes for pattern, axes in FILTER_AXES if fnmatch(path, pattern)), None)
        if axes is None and vectors == "zero":
            direction[path] = None
            continue
        drawn = jax.random.normal(jax.random.fold_in(key, number), leaf.shape, leaf.dtype)
        if normalization == "none":
            direction[path] = drawn
            continue
        over = None if normalization == "layer" else axes or (-1,)
        size = jnp.sqrt(jnp.sum(jnp.square(leaf), axis=over, keepdims=True))
        length = jnp.sqrt(jnp.sum(jnp.square(drawn), axis=over, keepdims=True))
        direction[path] = drawn * (size / jnp.where(length > 0, length, jnp.ones_like(length)))
    return unflatten(direction)


def _between(ends: Ends, argument: str) -> tuple[Tree, str]:
    return ends.mask(difference(ends.end, ends.start)), "from start to end of training"


def _task(ends: Ends, argument: str) -> tuple[Tree, str]:
    if not argument:
        raise InputError("direction task: expected task:RUN2, the folder of another run from the same start")
    other = Run.open(Path(argument))
    first, last = other.ends()
    start, end = flatten(other.params(first)), flatten(other.params(last))
    own = flatten(ends.start)
    direction: dict[str, Any] = {}
    for path, x in own.items():
        if not path.startswith("encoder/"):
            direction[path] = None  # the heads of two tasks have nothing in common
            continue
        if path not in start or start[path].shape != x.shape:
            raise InputError(
                f"{argument} and {ends.run.folder} are of different architectures: {path} is "
                f"{start[path].shape if path in start else 'absent'} and {x.shape}"
            )
        if not bool((start[path] == x).all()):
            raise InputError(f"{argument} and {ends.run.folder} have another start: {path} differs at step {first}")
        direction[path] = end[path] - start[path] if ends.moves(path) else None
    return unflatten(direction), f"from the same start to the end of {other.config.name}"


def _random(ends: Ends, argument: str) -> tuple[Tree, str]:
    normalization = argument or "filter"
    if normalization not in ("filter", "layer", "none"):
        raise InputError(f"direction random:{argument}: expected random:filter, random:layer or random:none")
    key = jax.random.key(ends.seed)
    direction = random_direction(key, ends.end, normalization=normalization)  # type: ignore[arg-type]
    return ends.mask(direction), f"random, normalization {normalization}, seed {ends.seed}"


DIRECTIONS: dict[str, Callable[[Ends, str], tuple[Tree, str]]] = {
    "between": _between,
    "task": _task,
    "random": _random,
}


def direction(spec: str, ends: Ends) -> tuple[Tree, str]:
    """The direction `NAME[:ARGUMENT]` and what it is in words.

    Raises:
      InputError: an unknown name, or a direction that is zero.
    """
    name, _, argument = spec.partition(":")
    if name not in DIRECTIONS:
        raise InputError(f"direction {name!r} is not known{nearest(name, DIRECTIONS)}")
    tree, words = DIRECTIONS[name](ends, argument)
    if not plane.norm(tree) > 0:
        raise InputError(f"direction {spec} of {ends.run.folder} is zero: start and end are the same")
    return tree, words
