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
from bertjax.landscape.directions import Ends
from bertjax.landscape.evaluate import point_mesh, scan_examples
from bertjax.landscape.examples import WORD_TABLE, EvaluationSet, model_loss
from bertjax.landscape.surface import to_dataset
from bertjax.progress import bar
from bertjax.tree import flatten, unflatten

NONE, ALL, EMBEDDINGS, POOLER = "none", "all", "embeddings", "pooler"


@dataclasses.dataclass(frozen=True)
class Group:
    """A part of the encoder that is rolled back together."""

    name: str
    layers: tuple[int, ...]
    embeddings: bool = False
    pooler: bool = False


def layer_groups(depth: int, parts: int = 3, singles: bool = True) -> list[Group]:
    """The trained model, embeddings, `parts` groups of layers, single layers, the pooler, and everything at once."""
    if not 1 <= parts <= depth:
        raise InputError(f"{parts} groups of {depth} layers: expected 1 to {depth}")
    groups = [Group(NONE, ()), Group(EMBEDDINGS, (), embeddings=True)]
    for part in np.array_split(np.arange(depth), parts):
        low, high = int(part[0]), int(part[-1])
        groups.append(Group(f"layer {low}" if low == high else f"layers {low}-{high}", tuple(part.tolist())))
    if singles and parts < depth:
        groups += [Group(f"layer {i}", (i,)) for i in range(depth) if f"layer {i}" not in {g.name for g in groups}]
    groups.append(Group(POOLER, (), pooler=True))
    groups.append(Group(ALL, tuple(range(depth)), embeddings=True, pooler=True))
    return groups


def rollback(ends: Ends, groups: list[Group], evaluation: EvaluationSet, attributes: dict[str, Any]) -> xr.Dataset:
    """Loss, error and score of the trained model with each group at its start values.

    The head keeps its trained values; so does a pooler that started fresh.

    Returns:
      Dataset over (split, group): `loss`, `error` and `score` (accuracy, where there is an error rate), each with its
      standard error, and `moved`, the L2 norm of the group's part of θ₁ − θ₀.
    """
    depth = ends.run.model.config.num_hidden_layers
    start, end = (_only_words(tree, evaluation.words) for tree in (flatten(ends.start), flatten(ends.end)))
    movable = {path for path in end if ends.moves(path)}
    loss = model_loss(ends.run.model, ends.run.head, evaluation.words)

    def select(masks: dict[str, jax.Array]) -> Any:
        chosen = {}
        for path, trained in end.items():
            if path not in movable:
                chosen[path] = trained
                continue
            mask = masks[_part(path)]
            wide = mask.reshape(mask.shape + (1,) * (trained.ndim - mask.ndim))
            chosen[path] = jnp.where(wide, start[path], trained)
        return unflatten(chosen)

    @jax.jit
    def case(masks: dict[str, jax.Array], batches: Any) -> dict[str, jax.Array]:
        return scan_examples(loss, select(masks), batches)

    values: dict[str, list[np.ndarray]] = {}
    progress = bar(len(groups), "rollback", "group")
    with jax.set_mesh(point_mesh(jax.devices()[:1])):
        batches = jax.tree.map(jnp.asarray, evaluation.examples.groups)
        for group in groups:
            masks = {
                "layers": np.isin(np.arange(depth), group.layers),
                EMBEDDINGS: np.array(group.embeddings),
                POOLER: np.array(group.pooler),
            }
            for name, array in case(masks, batches).items():
                values.setdefault(name, []).append(np.asarray(array)[evaluation.examples.order])
            progress.update()
    progress.close()
    stacked = {name: np.stack(rows) for name, rows in values.items()}
    finite = np.all([np.isfinite(x).all(axis=1) for x in stacked.values()], axis=0)
    dataset = to_dataset(
        stacked | {"status": np.where(finite, 1, 2).astype(np.int8)},
        {"group": np.array([g.name for g in groups])},
        evaluation.split,
        attributes,
    )
    if "error" in dataset:
        dataset["score"], dataset["score_se"] = 1.0 - dataset["error"], dataset["error_se"]
    dataset["moved"] = ("group", [_moved(ends, group) for group in groups])
    return dataset


def _part(path: str) -> str:
    for part in ("layers", POOLER):
        if path.startswith(f"encoder/{part}/"):
            return part
    return EMBEDDINGS if path.startswith("encoder/") else ALL


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
