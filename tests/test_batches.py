"""Batches hold every row once, unchanged, in few shapes; the training stream continues exactly where it stopped."""

import itertools
import subprocess
import sys

import numpy as np
import pytest

from bertjax.config import DataOptions
from bertjax.data.batches import bucket_lengths, collate, eval_batches, train_batches
from bertjax.data.features import Features
from bertjax.errors import InputError

BUCKETS = (4, 8, 16)
CLS = 2


def made(n: int, seed: int = 0, longest: int = 16) -> Features:
    """Rows of random lengths from 3 to `longest` that begin with [CLS] and hold no padding id."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(3, longest + 1, n)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = draw.integers(5, 100, offsets[-1]).astype(np.int32)
    ids[offsets[:-1]] = CLS
    return Features(
        ids=ids,
        offsets=offsets,
        types=draw.integers(0, 2, offsets[-1]).astype(np.int8),
        labels=draw.integers(0, 3, n).astype(np.int32),
        rows=np.arange(n) * 10,
        cut=np.zeros(n, bool),
    )


def check(features: Features, batch, batch_size: int) -> None:
    """A batch has the promised types and shapes, and each of its rows is that of the features."""
    length = batch["input_ids"].shape[1]
    assert {name: (array.shape, array.dtype.name) for name, array in batch.items()} == {
        "input_ids": ((batch_size, length), "int32"),
        "attention_mask": ((batch_size, length), "bool"),
        "token_type_ids": ((batch_size, length), "int32"),
        "labels": ((batch_size,), features.labels.dtype.name),
        "weights": ((batch_size,), "float32"),
        "index": ((batch_size,), "int32"),
    }
    for row in range(batch_size):
        i, mask = batch["index"][row], batch["attention_mask"][row]
        if i < 0:
            assert batch["weights"][row] == 0
            assert mask.tolist() == [True] + [False] * (length - 1)
            assert batch["input_ids"][row, 0] == CLS
            continue
        start, stop = features.offsets[i : i + 2]
        assert batch["weights"][row] == 1
        assert mask.tolist() == [True] * (stop - start) + [False] * (length - (stop - start))
        assert np.array_equal(batch["input_ids"][row, mask], features.ids[start:stop])
        assert np.array_equal(batch["token_type_ids"][row, mask], features.types[start:stop])
        assert not batch["token_type_ids"][row, ~mask].any()
        assert batch["labels"][row] == features.labels[i]


def test_collate_pads_rows_and_fills_up_with_padding_rows():
    features = made(10)
    batch = collate(features, [7, 2, 2], 16, 5, pad_id=77)
    check(features, batch, 5)
    assert batch["index"].tolist() == [7, 2, 2, -1, -1]
    assert set(batch["input_ids"][~batch["attention_mask"]]) == {77}


def test_collate_keeps_scores_as_numbers():
    scores = np.linspace(0, 5, 10, dtype=np.float32)
    features = Features(**{**vars(made(10)), "labels": scores})
    batch = collate(features, [9, 4], 16, 3)
    check(features, batch, 3)
    assert batch["labels"].tolist() == [scores[9], scores[4], 0]


def test_collate_refuses_what_does_not_fit():
    features = made(10)
    with pytest.raises(ValueError, match="takes 1 to 2 rows, got 3"):
        collate(features, [0, 1, 2], 16, 2)
    with pytest.raises(ValueError, match="takes 1 to 2 rows, got 0"):
        collate(features, [], 16, 2)
    with pytest.raises(ValueError, match="word pieces, the batch only 2"):
        collate(features, [0], 2, 2)


@pytest.mark.parametrize(("n", "batch_size"), [(1, 1), (1, 4), (3, 8), (10, 4), (12, 4), (101, 7)])
def test_every_pass_has_each_row_once_in_a_new_order(n, batch_size):
    features = made(n)
    stream = train_batches(features, batch_size=batch_size, buckets=BUCKETS, seed=3)
    passes = 4
    batches = list(itertools.islice(stream, -(-passes * n // batch_size)))
    for batch in batches:
        check(features, batch, batch_size)
        assert batch["weights"].all()
        longest = batch["attention_mask"].sum(axis=1).max()
        assert batch["input_ids"].shape[1] == min(bucket for bucket in BUCKETS if bucket >= longest)
    order = np.concatenate([batch["index"] for batch in batches])[: passes * n].reshape(passes, n)
    assert np.array_equal(np.sort(order, axis=1), np.tile(np.arange(n), (passes, 1)))
    if n > 9:
        assert len({tuple(row) for row in order}) == passes


def test_the_seed_decides_the_order():
    def order(seed):
        stream = train_batches(made(48), batch_size=8, buckets=BUCKETS, seed=seed)
        return np.stack([batch["index"] for batch in itertools.islice(stream, 24)]).reshape(4, 48)

    first, second = order(0), order(1)
    assert np.array_equal(first, order(0))
    # Neither the same passes nor, shifted by one, those of the neighbouring seed.
    assert not any(np.array_equal(a, b) for a in first for b in second)


@pytest.mark.parametrize("done", [0, 1, 7, 30])
def test_a_restored_stream_continues_exactly(done):
    def stream():
        return train_batches(made(23), batch_size=5, buckets=BUCKETS, seed=1)

    first = stream()
    for _ in range(done):
        next(first)
    state = first.get_state()
    expected = list(itertools.islice(first, 12))
    second = stream()
    next(second)
    second.set_state(state)
    for a, b in zip(expected, itertools.islice(second, 12), strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(("n", "batch_size"), [(1, 1), (1, 4), (10, 4), (64, 8), (101, 7), (101, 200)])
def test_evaluation_has_every_row_once(n, batch_size):
    features = made(n, seed=n)
    batches = eval_batches(features, batch_size=batch_size, buckets=BUCKETS[::-1])
    for batch in batches:
        check(features, batch, batch_size)
    index = np.concatenate([batch["index"] for batch in batches])
    weights = np.concatenate([batch["weights"] for batch in batches])
    assert sorted(index[weights == 1]) == list(range(n))
    order = index[weights == 1]
    assert np.array_equal(order, np.argsort(features.lengths, kind="stable"))
    for batch in batches:
        longest = features.lengths[batch["index"][batch["weights"] == 1]].max()
        assert batch["input_ids"].shape[1] == min(bucket for bucket in BUCKETS if bucket >= longest)
    assert len(batches) == -(-n // batch_size)  # so padding rows fill at most one batch
    assert all(batch["weights"].all() for batch in batches[1:])


def test_bucket_lengths_end_at_the_limit():
    assert bucket_lengths(DataOptions(max_length=48, buckets=(64, 16, 48, 32, 16))) == (16, 32, 48)
    assert bucket_lengths(DataOptions(max_length=50, buckets=(16, 64))) == (16, 50)
    assert bucket_lengths(DataOptions(max_length=8, buckets=())) == (8,)
    with pytest.raises(InputError, match=r"--data\.buckets: expected lengths of at least 1, got 0"):
        bucket_lengths(DataOptions(buckets=(0, 16)))


def test_unusable_arguments_are_refused():
    features = made(3)
    for batches in (eval_batches, lambda *a, **k: train_batches(*a, seed=0, **k)):
        with pytest.raises(InputError, match="batch size must be at least 1, got 0"):
            batches(features, batch_size=0, buckets=BUCKETS)
        with pytest.raises(InputError, match="no rows"):
            batches(features.take([]), batch_size=1, buckets=BUCKETS)
        with pytest.raises(InputError, match="the largest bucket only 2"):
            batches(features, batch_size=1, buckets=(1, 2))
    with pytest.raises(InputError, match=r"--train\.seed=-1"):
        train_batches(features, batch_size=1, buckets=BUCKETS, seed=-1)


def test_importing_and_iterating_is_silent_and_needs_no_tensorflow():
    program = """
import sys
import numpy as np
from bertjax.data.batches import train_batches
from bertjax.data.features import Features
ones = np.ones(3, np.int32)
types, cut = ones.astype(np.int8), ones > 1
rows = Features(ids=ones, offsets=np.arange(4), types=types, labels=ones, rows=np.arange(3), cut=cut)
stream = train_batches(rows, batch_size=2, buckets=(4,), seed=0)
for _ in range(5):
    next(stream)
loaded = [name for name in ("tensorflow", "torch") if name in sys.modules]
sys.exit(f"imported {loaded}" if loaded else 0)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("n", "batch_size", "window"), [(103, 8, 4), (64, 8, 8), (5, 8, 3), (40, 4, 10)])
def test_grouping_by_length_keeps_every_row_and_saves_padding(n, batch_size, window):
    features = made(n)

    def stream(w):
        return train_batches(features, batch_size=batch_size, buckets=range(1, 65), seed=3, window=w)

    count = -(-n // (batch_size * window)) * window
    batches = list(itertools.islice(stream(window), count))
    order = np.concatenate([batch["index"] for batch in batches])
    times = np.bincount(order, minlength=n)
    assert times.min() >= count * batch_size // n and times.max() <= -(-count * batch_size // n)
    plain = list(itertools.islice(stream(1), count))
    area = [sum(batch["input_ids"].size for batch in some) for some in (batches, plain)]
    assert area[0] <= area[1]
    again = stream(window)
    for _ in range(3):
        next(again)
    resumed = stream(window)
    resumed.set_state(again.get_state())
    for _ in range(4):
        expected, got = next(again), next(resumed)
        assert all(np.array_equal(expected[name], got[name]) for name in expected)
