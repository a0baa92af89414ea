"""Directions in parameter space, by name, and which parameters they move.

`DIRECTIONS` names them: `between` (from the start of a training to its end), `task:RUN2` (from the same start to the
end of another run or model; Hao et al. 2019, section 3) and `random` (Gaussian, filter-normalized; Li et al. 2018,
section 4).
"""

import dataclasses
from collections.abc import Callable
from fnmatch import fnmatch
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import nearest
from bertjax.errors import InputError
from bertjax.landscape import plane
from bertjax.landscape.model_folders import open_other
from bertjax.landscape.store import END, OTHER_END
from bertjax.landscape.subject import Subject
from bertjax.model.heads import HEAD_GROUPS
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
    """Start and end of a training, and how the head is treated."""

    subject: Subject
    start: Tree
    end: Tree
    head: Literal["fixed", "move"]
    seed: int

    def is_head(self, path: str) -> bool:
        """Whether the parameter belongs to the head: classifier, fusion, normalization.

        So does the pooler where it started fresh beside a pre-trained encoder (a pooler that was pre-trained belongs to
        the encoder).
        """
        fresh_pooler = self.subject.pretrained and "encoder/pooler/kernel" in self.subject.fresh
        return path.split("/")[0] in HEAD_GROUPS or (fresh_pooler and path.startswith("encoder/pooler/"))

    def moves(self, path: str) -> bool:
        """Whether the plane moves the parameter at `path`: with head=fixed all but the head."""
        return self.head == "move" or not self.is_head(path)

    def mask(self, tree: Tree) -> Tree:
        """The tree with None in place of what does not move."""
        return unflatten({path: x if self.moves(path) else None for path, x in flatten(tree).items()})

    def origin(self) -> Tree:
        """θ₀ where the plane moves, the trained values elsewhere."""
        start, end = flatten(self.start), flatten(self.end)
        return unflatten({path: start[path] if self.moves(path) else end[path] for path in end})

    def with_final_head(self, params: Tree) -> Tree:
        """Other parameters under the trained head."""
        flat, end = flatten(params), flatten(self.end)
        return unflatten({path: end[path] if self.is_head(path) else flat[path] for path in end})


def load_ends(subject: Subject, head: Literal["fixed", "move"], seed: int = 0) -> Ends:
    """Reads θ₀ and θ₁; InputError if the head is to move and its start is not known."""
    ends = Ends(subject, subject.start, subject.end, head, seed)
    unknown = sorted(subject.unknown)
    if head == "move" and unknown:
        raise InputError(
            f"--head move: the start of {subject.name} has no {', '.join(unknown)}, so there is no line to move "
            "them on; use --head fixed, which keeps the trained values"
        )
    stuck = [path for path in unknown if ends.moves(path)]
    if stuck:
        raise InputError(f"the start of {subject.name} has no {', '.join(stuck)}")
    return ends


def difference(a: Tree, b: Tree) -> Tree:
    """a − b, leaf by leaf, on the host: eager operations would compile for every shape."""
    return jax.tree.map(lambda x, y: np.subtract(np.asarray(x), np.asarray(y)), a, b)


def random_direction(
    key: jax.Array,
    params: Tree,
    *,
    normalization: Literal["filter", "layer", "none"] = "filter",
    vectors: Literal["zero", "scale"] = "zero",
) -> Tree:
    """A Gaussian direction, normalized to the parameters; drawn by NumPy on the host.

    Args:
      key: typed PRNG key; equal keys and parameters give equal directions.
      params: nested dictionary of arrays.
      normalization: filter: each filter of `FILTER_AXES` gets the norm of the same filter of the parameters (Li et al.
        2018). layer: each array does. none: as drawn.
      vectors: what happens to arrays that are no filters (biases, layer norms): zero, or scaled as a whole (one per
        layer of a stack).

    Returns:
      A tree of the same structure; None where nothing moves.
    """
    seed = np.asarray(jax.random.key_data(key)).tolist()
    direction: dict[str, Any] = {}
    for number, (path, value) in enumerate(sorted(flatten(params).items())):
        leaf = np.asarray(value)
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            direction[path] = None
            continue
        axes = next((axes for pattern, axes in FILTER_AXES if fnmatch(path, pattern)), None)
        if axes is None and vectors == "zero":
            direction[path] = None
            continue
        # A stream for each leaf: what one draws does not depend on the others.
        drawn = np.random.default_rng([*seed, number]).standard_normal(leaf.shape, np.float32).astype(leaf.dtype)
        if normalization == "none":
            direction[path] = drawn
            continue
        over = None if normalization == "layer" else axes or (-1,)
        size = np.sqrt(np.sum(np.square(leaf), axis=over, keepdims=True))
        length = np.sqrt(np.sum(np.square(drawn), axis=over, keepdims=True))
        direction[path] = drawn * (size / np.where(length > 0, length, np.ones_like(length)))
    return unflatten(direction)


def _between(ends: Ends, argument: str, axis: str) -> tuple[Tree, str]:
    return ends.mask(difference(ends.end, ends.start)), "from start to end of training"


def _task(ends: Ends, argument: str, axis: str) -> tuple[Tree, str]:
    other, subject = open_other(_other_path(argument, ends.subject)), ends.subject
    first, last = other.load()
    start, end = None if first is None else flatten(first), flatten(last)
    own = flatten(ends.start)
    direction: dict[str, Any] = {}
    for path, x in own.items():
        if not path.startswith("encoder/"):
            direction[path] = None  # the heads of two tasks have nothing in common
            continue
        if path not in end or end[path].shape != x.shape:
            raise InputError(
                f"{other.name} and {subject.name} are of different architectures: {path} is "
                f"{end[path].shape if path in end else 'absent'} and {x.shape}"
            )
        if start is not None and not np.array_equal(start[path], x):
            raise InputError(f"{other.name} and {subject.name} have another start: {path} differs")
        direction[path] = difference(end[path], x) if ends.moves(path) else None
    return unflatten(direction), f"from the same start to the end of {other.name}"


def _other_path(argument: str, subject: Subject) -> str:
    path = argument or subject.other
    if not path:
        raise InputError(
            "direction task: expected task:RUN2, the folder of another run (or model) from the same start, or --other"
        )
    return path


def _random(ends: Ends, argument: str, axis: str) -> tuple[Tree, str]:
    normalization = argument or "filter"
    if normalization not in ("filter", "layer", "none"):
        raise InputError(f"direction random:{argument}: expected random:filter, random:layer or random:none")
    key = jax.random.key(ends.seed)
    key = key if axis == "y" else jax.random.fold_in(key, 1)  # two axes have two directions
    direction = random_direction(key, ends.end, normalization=normalization)  # type: ignore[arg-type]
    return ends.mask(direction), f"random, normalization {normalization}, seed {ends.seed}"


@dataclasses.dataclass(frozen=True)
class Direction:
    """How a direction is made, and whether its length means something."""

    make: Callable[[Ends, str, str], tuple[Tree, str]]
    """(ends, argument, "x" or "y") -> the direction, and what it is in words."""
    own_scale: Callable[[str], bool]
    """Argument -> whether it has a scale of its own; if not, it is rescaled to the length of the first direction."""
    leads_to: str = ""
    """Name of the model at its tip; empty: none."""


DIRECTIONS: dict[str, Direction] = {
    "between": Direction(_between, lambda argument: True, END),
    "task": Direction(_task, lambda argument: False, OTHER_END),  # Hao et al. rescale it to ‖δ₁‖
    # The scale of the filters or layers it is normalized to.
    "random": Direction(_random, lambda argument: argument != "none"),
}


def direction(spec: str, ends: Ends, axis: Literal["x", "y"]) -> tuple[Tree, str]:
    """The direction `NAME[:ARGUMENT]` of an axis and what it is in words; a random one is another on each axis.

    Raises:
      InputError: an unknown name, or a direction that is zero.
    """
    entry, argument = _parse(spec)
    tree, words = entry.make(ends, argument, axis)
    if not plane.norm(tree) > 0:
        raise InputError(f"direction {spec} of {ends.subject.name} is zero: start and end are the same")
    return tree, words


def leads_to(spec: str) -> str:
    """Name of the model at the tip of a direction as it was made; empty: none."""
    return _parse(spec)[0].leads_to


def scale_of(spec: str, choice: Literal["auto", "own", "first"]) -> Literal["own", "first"]:
    """How the second direction `spec` is scaled: "own" as it is, "first" to the length of the first direction."""
    entry, argument = _parse(spec)
    if choice == "auto":
        return "own" if entry.own_scale(argument) else "first"
    return choice


def other_digest(spec: str, subject: Subject) -> str:
    """Hash of the other model that a direction needs; empty: it needs none."""
    name, _, argument = spec.partition(":")
    return open_other(_other_path(argument, subject)).digest if name == "task" else ""


def _parse(spec: str) -> tuple[Direction, str]:
    name, _, argument = spec.partition(":")
    if name not in DIRECTIONS:
        raise InputError(f"direction {name!r} is not known{nearest(name, DIRECTIONS)}")
    return DIRECTIONS[name], argument
