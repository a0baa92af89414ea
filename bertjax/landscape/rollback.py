"""Rollback: the trained model with one group of layers reset to where it started, without further training.

Groups of layers default to thirds, as in Hao et al. 2019; single layers and the embeddings as a group of their own are
a choice of this project. All cases run through one compiled program, as points whose parameters are selected
bit by bit from θ₀ and θ₁.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from bertjax.errors import InputError
from bertjax.landscape.blocks import Prepared
from bertjax.landscape.directions import Ends
from bertjax.landscape.evaluate import point_mesh, program_memory, scan_examples
from bertjax.landscape.examples import WORD_TABLE, EvaluationSet, model_loss
from bertjax.landscape.store import to_dataset
from bertjax.tree import flatten, unflatten

NONE, ALL, EMBEDDINGS, POOLER, HEAD = "none", "all", "embeddings", "pooler", "head"


@dataclasses.dataclass(frozen=True)
class Group:
    """A part of the encoder that is rolled back together."""

    name: str
    layers: tuple[int, ...]
    embeddings: bool = False
    pooler: bool = False
    head: bool = False


def layer_groups(depth: int, parts: int | None = None, singles: bool = True) -> list[Group]:
    """The trained model, embeddings, `parts` groups of layers, single layers, the pooler, and everything at once.

    `parts` is 3 if it is None, or fewer where there are fewer layers.
    """
    parts = min(3, depth) if parts is None else parts
    if not 1 <= parts <= depth:
        raise InputError(f"--groups={parts}: the model has {depth} layers, expected 1 to {depth}")
    groups = [Group(NONE, ()), Group(EMBEDDINGS, (), embeddings=True)]
    for part in np.array_split(np.arange(depth), parts):
        low, high = int(part[0]), int(part[-1])
        groups.append(Group(f"layer {low}" if low == high else f"layers {low}-{high}", tuple(part.tolist())))
    if singles and parts < depth:
        groups += [Group(f"layer {i}", (i,)) for i in range(depth) if f"layer {i}" not in {g.name for g in groups}]
    groups.append(Group(POOLER, (), pooler=True))
    groups.append(Group(ALL, tuple(range(depth)), embeddings=True, pooler=True, head=True))
    return groups


def prepare(ends: Ends, groups: list[Group], evaluation: EvaluationSet) -> Prepared:
    """The computation of all groups, one at a time, on one device.

    The head keeps its trained values; so does a pooler that started fresh. With head=move both go back with "all".
    """
    depth = ends.subject.model.config.num_hidden_layers
    start, end = (_only_words(tree, evaluation.words) for tree in (flatten(ends.start), flatten(ends.end)))
    loss = model_loss(ends.subject.model, ends.subject.head, evaluation.words)

    def case(masks: dict[str, Any], start: Any, end: Any, batches: Any) -> dict[str, jax.Array]:
        chosen = {}
        for path, trained in end.items():
            chosen[path] = trained
            if ends.moves(path):
                mask = masks[_part(path)]
                wide = mask.reshape(mask.shape + (1,) * (trained.ndim - mask.ndim))
                chosen[path] = jnp.where(wide, start[path], trained)
        return scan_examples(loss, unflatten(chosen), batches)

    def masks(group: Group) -> dict[str, np.ndarray]:
        return {
            "layers": np.isin(np.arange(depth), group.layers),
            EMBEDDINGS: np.array(group.embeddings),
            POOLER: np.array(group.pooler),
            HEAD: np.array(group.head),
        }

    mesh = point_mesh(jax.devices()[:1])
    with jax.set_mesh(mesh):
        batches = jax.tree.map(jnp.asarray, evaluation.examples.groups)
        compiled = jax.jit(case).lower(masks(groups[0]), start, end, batches).compile()

    def compute(numbers: np.ndarray) -> dict[str, np.ndarray]:
        with jax.set_mesh(mesh):
            out = compiled(masks(groups[numbers[0]]), start, end, batches)
        return {name: np.asarray(x)[None, evaluation.examples.order] for name, x in out.items()}

    return Prepared(compute, len(groups), block=1, memory=program_memory(compiled))


def rollback_dataset(
    values: dict[str, np.ndarray],
    ends: Ends,
    groups: list[Group],
    evaluation: EvaluationSet,
    attributes: dict[str, Any],
) -> xr.Dataset:
    """Arranges the values of `prepare`.

    Returns:
      Dataset over (split, group): `loss`, `error` and `score` (accuracy, where there is an error rate), each with its
      standard error, and `moved`, the L2 norm of the group's part of θ₁ − θ₀.
    """
    dataset = to_dataset(values, {"group": np.array([g.name for g in groups])}, evaluation.split, attributes)
    if "error" in dataset:
        dataset["score"], dataset["score_se"] = 1.0 - dataset["error"], dataset["error_se"]
    dataset["moved"] = ("group", [_moved(ends, group) for group in groups])
    return dataset


def _part(path: str) -> str:
    for part in ("layers", POOLER):
        if path.startswith(f"encoder/{part}/"):
            return part
    return EMBEDDINGS if path.startswith("encoder/") else HEAD


def _only_words(flat: dict[str, Any], words: np.ndarray) -> dict[str, Any]:
    return flat | {WORD_TABLE: jnp.take(flat[WORD_TABLE], words, axis=0)}


def _moved(ends: Ends, group: Group) -> float:
    start, end = flatten(ends.start), flatten(ends.end)
    total = 0.0
    for path, trained in end.items():
        part = _part(path)
        if not ends.moves(path) or not (part == "layers" or getattr(group, part, False)):
            continue
        step = np.asarray(trained, np.float64) - np.asarray(start[path], np.float64)
        total += float(np.square(step[list(group.layers)] if part == "layers" else step).sum())
    return float(np.sqrt(total))
