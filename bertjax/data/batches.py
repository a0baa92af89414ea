"""Batches of fixed shapes: rows padded to a few lengths, an endless shuffled stream to train on, a list to evaluate.

A batch is a dictionary of arrays for B rows padded to L word pieces:

  input_ids       [B, L] int32
  attention_mask  [B, L] bool     True at word pieces
  token_type_ids  [B, L] int32
  labels          [B]    int32 or float32; [B, classes] float32 where a row has any number of classes
  weights         [B]    float32  1 or its weight for a row of the data, 0 for a padding row
  index           [B]    int32    position among the features, -1 for a padding row

Packed batches are described in packing.py.
"""

import functools
from collections.abc import Sequence
from typing import Any

import grain
import numpy as np

from bertjax.config import DataOptions
from bertjax.data import packing
from bertjax.data.features import Features
from bertjax.errors import InputError

Batch = dict[str, np.ndarray]

# "Endless": grain's own endless repetition overflows when it is cut into batches of one row.
PASSES = 1 << 30


def bucket_lengths(options: DataOptions) -> tuple[int, ...]:
    """The lengths to which batches are padded: options.buckets below options.max_length, and max_length itself."""
    for bucket in options.buckets:
        if bucket < 1:
            raise InputError(f"--data.buckets: expected lengths of at least 1, got {bucket}")
    below = {bucket for bucket in options.buckets if bucket < options.max_length}
    return (*sorted(below), options.max_length)


def collate(
    features: Features, indices: Sequence[int] | np.ndarray, length: int, batch_size: int, *, pad_id: int = 0
) -> Batch:
    """The rows at `indices`, at most `batch_size`, as one batch padded to `length` word pieces.

    Missing rows become padding rows. Such a row keeps its first word piece, so that no row is masked entirely: a
    softmax over nothing is not a number, and its gradient would spoil the others'.
    """
    indices = np.asarray(indices, np.int64)
    rows = len(indices)
    if not 0 < rows <= batch_size:
        raise ValueError(f"a batch of {batch_size} rows takes 1 to {batch_size} rows, got {rows}")
    lengths = features.lengths[indices]
    if lengths.max() > length:
        raise ValueError(f"row {indices[lengths.argmax()]} has {lengths.max()} word pieces, the batch only {length}")
    taken = features.take(indices)
    ids, types = taken.pieces()
    mask = np.zeros((batch_size, length), bool)
    mask[:rows] = np.arange(length) < lengths[:, None]
    input_ids = np.full((batch_size, length), pad_id, np.int32)
    input_ids[mask] = ids
    token_type_ids = np.zeros((batch_size, length), np.int32)
    token_type_ids[mask] = types
    input_ids[rows:, 0] = ids[0]
    mask[rows:, 0] = True
    return {
        "input_ids": input_ids,
        "attention_mask": mask,
        "token_type_ids": token_type_ids,
        "labels": _extended(taken.labels, batch_size, 0),
        "weights": _extended(np.ones(rows, np.float32) if taken.weights is None else taken.weights, batch_size, 0),
        "index": _extended(indices.astype(np.int32), batch_size, -1),
    }


def train_batches(
    features: Features,
    *,
    batch_size: int,
    buckets: Sequence[int],
    seed: int,
    pad_id: int = 0,
    window: int = 1,
    pack: int = 0,
) -> grain.DatasetIterator:
    """Endless batches in an order drawn anew for every pass over the rows.

    With `window` > 1 the rows of so many batches are ordered by length before they are cut, and those batches are
    shuffled: batches of similar lengths need less padding. A window that spans two passes mixes them.

    With `pack` > 0 the rows of a batch are packed into few of the largest bucket, their number a multiple
    of `pack`.

    Each row comes exactly once a pass; a batch may hold the end of one pass and the start of the next, so batches are
    always full. `get_state` and `set_state` of the iterator continue exactly.
    """
    _check(features, batch_size, buckets)
    if window < 1:
        raise InputError(f"--data.group_by_length={window}: expected at least 1")
    if not 0 <= seed < 2**32:
        raise InputError(f"--train.seed={seed}: expected 0 to {2**32 - 1}")
    lengths = features.lengths

    def batch(indices: np.ndarray) -> Batch:
        if pack:
            return packing.train_batch(features, indices, max(buckets), pack, pad_id=pad_id)
        return collate(features, indices, _bucket(buckets, lengths[indices].max()), batch_size, pad_id=pad_id)

    indices = grain.MapDataset.range(len(features)).seed(seed).shuffle().repeat(PASSES).batch(batch_size * window)
    if window > 1:
        indices = _LengthOrdered(indices, lengths, window, seed)
    # The rows are in memory: more threads would only compete for the interpreter.
    reading = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
    return iter(indices.map(batch).to_iter_dataset(reading))


class _LengthOrdered(grain.MapDataset):
    """Cuts windows of rows into batches of similar lengths; a batch is a pure function of its number."""

    def __init__(self, windows: grain.MapDataset, lengths: np.ndarray, window: int, seed: int) -> None:
        super().__init__(windows)
        self._lengths, self._window, self._seed = lengths, window, seed
        # Its batches are asked for one after the other.
        self._ordered = functools.lru_cache(maxsize=2)(self._order)

    def __len__(self) -> int:
        return len(self._parent) * self._window

    def __getitem__(self, number: Any) -> Any:
        which, part = divmod(number, self._window)
        return self._ordered(which)[np.random.default_rng((self._seed, which)).permutation(self._window)[part]]

    def _order(self, which: int) -> np.ndarray:
        """[window, rows of a batch]: the rows of a window by length."""
        rows = self._parent[which]
        return rows[np.argsort(self._lengths[rows], kind="stable")].reshape(self._window, -1)


def eval_batches(
    features: Features, *, batch_size: int, buckets: Sequence[int], pad_id: int = 0, packed: bool = False
) -> list[Batch]:
    """All rows once, ordered by length and cut into batches; at most one, the first, holds padding rows.

    With `packed`, batches of `batch_size` rows of the largest bucket, each with as many rows of the data as fit.
    """
    _check(features, batch_size, buckets)
    if packed:
        return packing.eval_batches(features, max(buckets), batch_size, pad_id=pad_id)
    order = np.argsort(features.lengths, kind="stable")
    batches = []
    # The batch that is not full comes first, where rows are shortest.
    stops = range(len(order) % batch_size or batch_size, len(order) + 1, batch_size)
    for start, stop in zip((0, *stops), stops, strict=False):
        rows = order[start:stop]
        length = _bucket(buckets, int(features.lengths[rows[-1]]))
        batches.append(collate(features, rows, length, batch_size, pad_id=pad_id))
    return batches


def without_index(batch: Batch) -> Batch:
    """The arrays of a batch that a model reads."""
    return {name: value for name, value in batch.items() if name != "index"}


def _check(features: Features, batch_size: int, buckets: Sequence[int]) -> None:
    if batch_size < 1:
        raise InputError(f"the batch size must be at least 1, got {batch_size}")
    if len(features) == 0:
        raise InputError("there are no rows to make batches of")
    longest = int(features.lengths.max())
    if longest > max(buckets):
        raise InputError(f"the longest row has {longest} word pieces, the largest bucket only {max(buckets)}")


def _bucket(buckets: Sequence[int], length: int) -> int:
    return min(bucket for bucket in buckets if bucket >= length)


def _extended(values: np.ndarray, size: int, fill: Any) -> np.ndarray:
    return np.concatenate([values, np.full((size - len(values), *values.shape[1:]), fill, values.dtype)])
