"""The fixed evaluation set of landscapes, and its loss, as `evaluate` wants them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.data import batches as batching
from bertjax.data.features import Features
from bertjax.errors import InputError
from bertjax.landscape.evaluate import Examples, LossFunction
from bertjax.landscape.plane import Plane
from bertjax.landscape.subject import Subject
from bertjax.model.heads import HEADS, TaskModel
from bertjax.training.steps import outputs

WORD_TABLE = "encoder/embeddings/word"


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """Rows of each split, the same at every point."""

    examples: Examples
    split: np.ndarray
    """[examples] name of the split."""
    row: np.ndarray
    """[examples] row number in its file."""
    words: np.ndarray
    """Word pieces that occur, ascending; the batches hold positions in this list."""

    def counts(self) -> dict[str, int]:
        """Examples of each split."""
        return {name: int((self.split == name).sum()) for name in dict.fromkeys(self.split.tolist())}


def evaluation_set(subject: Subject, train: int, dev: int, batch_size: int = 32, seed: int = 0) -> EvaluationSet:
    """Draws rows of each split once; all of a split where it has no more than asked for.

    Args:
      subject: what has the rows.
      train: rows of each split other than dev; 0: none.
      dev: rows of the split dev; 0: none.
      batch_size: rows per batch on the device.
      seed: decides the draw.

    Raises:
      InputError: no rows are asked for.
    """
    if train < 0 or dev < 0 or train + dev == 0:
        raise InputError(f"{train} training and {dev} dev examples: expected at least one example")
    groups, order, names, rows = [], [], [], []
    offset = 0
    for name, features in subject.splits.items():
        count = dev if name == "dev" else train
        if count:
            chosen = _draw(features, count, seed)
            cut, places = _batches(subject, chosen, batch_size)
            groups += cut
            order.append(places + offset)
            offset += sum(group["weights"].size for group in cut)
            names += [name] * len(chosen)
            rows.append(chosen.rows)
    if not groups:
        raise InputError(f"there are no rows of which {train} training and {dev} dev examples could be drawn")
    words = np.unique(np.concatenate([group["input_ids"].ravel() for group in groups]))
    for group in groups:
        group["input_ids"] = np.searchsorted(words, group["input_ids"]).astype(np.int32)
    return EvaluationSet(Examples(tuple(groups), np.concatenate(order)), np.array(names), np.concatenate(rows), words)


def model_loss(model: TaskModel, head: str, words: np.ndarray) -> LossFunction:
    """(params, batch) -> loss and, where the head has one, error of each row; dropout off.

    The parameters hold the rows `words` of the word embedding table only (see `only_words`).
    """
    model = model.clone(config=dataclasses.replace(model.config, vocab_size=len(words)))

    def loss(params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        z = outputs(model, params, batch)
        values = {"loss": HEADS[head].loss(z, batch["labels"])}
        if HEADS[head].error is not None:
            values["error"] = HEADS[head].error(z, batch["labels"])
        return values

    return loss


def only_words(plane: Plane, words: np.ndarray) -> Plane:
    """The plane with just these rows of the word embedding table, which are all that the examples read.

    The losses are the same to the bit; interpolating the other rows at every point would be wasted.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(plane.origin)
    index = next(i for i, (path, _) in enumerate(paths) if "/".join(str(key.key) for key in path) == WORD_TABLE)
    leaves = [jnp.take(leaf, words, axis=0) if i == index else leaf for i, (_, leaf) in enumerate(paths)]
    directions = tuple(
        tuple(jnp.take(step, words, axis=0) if i == index and step is not None else step for i, step in enumerate(d))
        for d in plane.directions
    )
    return Plane(jax.tree.unflatten(structure, leaves), directions)


def _draw(features: Features, count: int, seed: int) -> Features:
    if count >= len(features):
        return features
    return features.take(np.sort(np.random.default_rng(seed).choice(len(features), count, replace=False)))


def _batches(subject: Subject, features: Features, batch_size: int) -> tuple[list[dict[str, np.ndarray]], np.ndarray]:
    """Batches stacked by length, [batches, batch, ...], and where each row lies in their concatenation."""
    cut = batching.eval_batches(
        features,
        batch_size=min(batch_size, len(features)),
        buckets=subject.buckets,
        pad_id=subject.model.config.pad_token_id,
        packed=subject.packed,
    )
    by_length: dict[int, list[dict[str, np.ndarray]]] = {}
    for batch in cut:
        by_length.setdefault(batch["input_ids"].shape[1], []).append(batch)
    groups, places, offset = [], np.full(len(features), -1), 0
    for length in sorted(by_length):
        group = {name: np.stack([b[name] for b in by_length[length]]) for name in by_length[length][0]}
        index = group.pop("index").ravel()
        places[index[index >= 0]] = offset + np.flatnonzero(index >= 0)
        offset += index.size
        groups.append(group)
    return groups, places
