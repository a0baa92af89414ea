"""Packing: several short rows of the data behind each other in one row of a batch.

A packed batch of R rows of L word pieces has S slots in each row, whether filled or not. Slot s of row r is place
r * S + s of the arrays per example, so that whoever splits the rows over devices splits the examples with them.

  input_ids       [R, L] int32
  attention_mask  [R, L] bool     True at word pieces
  token_type_ids  [R, L] int32
  segment_ids     [R, L] int32    1 ... S: the slot plus one, 0 at padding; a word piece attends within its segment
  position_ids    [R, L] int32    start anew in every segment
  cls             [R, S] int32    where the segment of the slot starts; 0 for an empty slot
  labels, weights, index [R * S]  as in an ordinary batch, an empty slot like a padding row
"""

import itertools

import numpy as np

from bertjax.data.features import Features

Batch = dict[str, np.ndarray]

PER_SLOT = 8  # word pieces of a row for each slot; shorter rows of the data are rare
_STEPS = 4  # numbers of rows between powers of two: few shapes, little waste


def slots(length: int) -> int:
    """Slots in a row of `length` word pieces."""
    return max(1, length // PER_SLOT)


def row_count(needed: int, unit: int, most: int) -> int:
    """The number of rows that a training batch which needs `needed` rows is given: one of a few multiples of `unit`.

    These are unit times 1, 2, ... 8, 10, 12, 14, 16, 20 and so on, but at most `most`, which has to be enough.
    """
    units = -(-needed // unit)
    step = max(1, (1 << (units - 1).bit_length()) // (2 * _STEPS))
    return min(-(-units // step) * step * unit, most)


def place(lengths: np.ndarray, length: int, slots: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Best-fit decreasing: the longest first, each into the fullest row that has room and a slot for it.

    Returns:
      [n] row, slot and first position of each, and the number of rows.
    """
    row, slot, start = (np.zeros(len(lengths), np.int64) for _ in range(3))
    room: list[list[int]] = [[] for _ in range(length + 1)]  # rows by the room they have left
    roomy = 0  # bit r is set where room[r] is not empty
    filled: list[int] = []
    for i in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[i])
        fitting = roomy >> size
        if fitting:
            left = size + (fitting & -fitting).bit_length() - 1
            chosen = room[left].pop()
            if not room[left]:
                roomy &= ~(1 << left)
        else:
            chosen, left = len(filled), length
            filled.append(0)
        row[i], slot[i], start[i] = chosen, filled[chosen], length - left
        filled[chosen] += 1
        if filled[chosen] < slots and left > size:
            room[left - size].append(chosen)
            roomy |= 1 << (left - size)
    return row, slot, start, len(filled)


def collate(
    features: Features,
    indices: np.ndarray,
    where: tuple[np.ndarray, np.ndarray, np.ndarray],
    length: int,
    rows: int,
    *,
    pad_id: int = 0,
) -> Batch:
    """The rows of the data at `indices` as one packed batch of `rows` rows; `where` is row, slot and start of each."""
    row, slot, start = where
    per_row = slots(length)
    taken, lengths = features.take(indices), features.lengths[indices]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    at = (np.repeat(row, lengths), np.repeat(start, lengths) + within)

    def laid(values: np.ndarray, fill: int = 0) -> np.ndarray:
        table = np.full((rows, length), fill, np.int32)
        table[at] = values
        return table

    ids, types = taken.pieces()
    segments = laid(np.repeat(slot + 1, lengths))
    cls = np.zeros((rows, per_row), np.int32)
    cls[row, slot] = start
    per_example = {
        "labels": (taken.labels, 0),
        "weights": (np.ones(len(indices), np.float32) if taken.weights is None else taken.weights, 0),
        "index": (np.asarray(indices, np.int32), -1),
    }
    flat = {}
    for name, (values, fill) in per_example.items():
        flat[name] = np.full((rows * per_row, *values.shape[1:]), fill, values.dtype)
        flat[name][row * per_row + slot] = values
    return {
        "input_ids": laid(ids, pad_id),
        "attention_mask": segments > 0,
        "token_type_ids": laid(types),
        "segment_ids": segments,
        "position_ids": laid(within),
        "cls": cls,
        **flat,
    }


def train_batch(features: Features, indices: np.ndarray, length: int, unit: int, *, pad_id: int = 0) -> Batch:
    """Exactly these rows of the data, packed; at most as many rows as there are `indices`, a multiple of `unit`."""
    *where, needed = place(features.lengths[indices], length, slots(length))
    rows = row_count(needed, unit, len(indices))
    return collate(features, indices, tuple(where), length, rows, pad_id=pad_id)


def eval_batches(features: Features, length: int, batch_size: int, *, pad_id: int = 0) -> list[Batch]:
    """All rows of the data once, packed together into batches of `batch_size` rows."""
    row, slot, start, needed = place(features.lengths, length, slots(length))
    order = np.argsort(row, kind="stable")
    bounds = np.searchsorted(row[order], np.arange(0, needed + batch_size, batch_size))
    batches = []
    for number, (first, last) in enumerate(itertools.pairwise(bounds)):
        some = order[first:last]
        if len(some):
            where = (row[some] - number * batch_size, slot[some], start[some])
            batches.append(collate(features, some, where, length, batch_size, pad_id=pad_id))
    return batches
