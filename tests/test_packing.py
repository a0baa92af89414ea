"""Packed rows give every example what it has alone: loss and gradient, in evaluation and training, on devices."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_batches import made
from test_model import assert_close_trees
from tiny import tiny_config, tiny_params

from bertjax.config import MeshOptions, OptimOptions
from bertjax.data import packing
from bertjax.data.batches import eval_batches, train_batches, without_index
from bertjax.model.bert import Numerics
from bertjax.model.heads import TaskModel
from bertjax.training import sharding
from bertjax.training.steps import loss_per_example, make_steps
from bertjax.tree import flatten, unflatten

LENGTH = 32
BUCKETS = (8, 16, LENGTH)


def features(n=37, seed=0):
    rows = made(n, seed, longest=24)
    return dataclasses.replace(rows, ids=rows.ids % 90 + 3)


def model(**changes):
    config = tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **changes)
    return TaskModel(config, 3), unflatten(tiny_params(config, 3))


def losses(rows, batches):
    network, params = model()
    loss = jax.jit(lambda batch: loss_per_example(network, "classification", params, batch))
    out = np.full(len(rows), np.nan)
    for batch in batches:
        real = batch["weights"] > 0
        out[batch["index"][real]] = np.asarray(loss(without_index(batch)))[real]
    return out


@pytest.mark.parametrize("seed", range(3))
def test_places_fit_and_are_few(seed):
    lengths = np.random.default_rng(seed).integers(1, 33, 200)
    row, slot, start, rows = packing.place(lengths, 32, 4)
    taken = np.zeros((rows, 32), int)
    for r, first, size in zip(row, start, lengths, strict=True):
        taken[r, first : first + size] += 1
    assert taken.max() == 1 and taken.sum() == lengths.sum()
    assert len(set(zip(row.tolist(), slot.tolist(), strict=True))) == 200 and slot.max() < 4
    assert set(row.tolist()) == set(range(rows))
    assert (taken.sum(1) + lengths.min() > 16).sum() >= rows - 1, "no two rows are half empty"


def test_numbers_of_rows_are_few_and_enough():
    counts = [packing.row_count(needed, 8, 512) for needed in range(1, 513)]
    assert all(count >= needed and count % 8 == 0 for needed, count in enumerate(counts, 1))
    assert all(count <= max(1.25 * needed, needed + 8) for needed, count in enumerate(counts, 1))
    assert len(set(counts)) <= 24
    assert packing.row_count(9, 4, 12) == 12 and packing.row_count(9, 1, 9) == 9


def test_packed_bucketed_and_single_evaluation_agree():
    rows = features()
    packed = eval_batches(rows, batch_size=4, buckets=BUCKETS, packed=True)
    assert sum(batch["input_ids"].size for batch in packed) < 37 * 24
    index = np.concatenate([batch["index"][batch["weights"] > 0] for batch in packed])
    assert sorted(index) == list(range(37))
    for batch in packed:
        real = batch["weights"] > 0
        assert np.array_equal(batch["labels"][real], rows.labels[batch["index"][real]])
    expected = losses(rows, eval_batches(rows, batch_size=1, buckets=(LENGTH,)))
    np.testing.assert_allclose(losses(rows, packed), expected, rtol=1e-6, atol=1e-6)
    bucketed = eval_batches(rows, batch_size=8, buckets=BUCKETS)
    np.testing.assert_allclose(losses(rows, bucketed), expected, rtol=1e-6, atol=1e-6)


def test_an_example_does_not_depend_on_its_neighbours():
    rows = features()
    batch = eval_batches(rows, batch_size=16, buckets=BUCKETS, packed=True)[0]
    network, params = model()
    loss = jax.jit(lambda b: loss_per_example(network, "classification", params, b))
    before = np.asarray(loss(without_index(batch))).reshape(16, -1)
    first = batch["segment_ids"] == 1
    other = np.where(first | (batch["segment_ids"] == 0), batch["input_ids"], 90 - batch["input_ids"] % 80)
    after = np.asarray(loss(without_index(batch | {"input_ids": other.astype(np.int32)}))).reshape(16, -1)
    real = batch["weights"].reshape(16, -1) > 0
    assert np.array_equal(before[real[:, 0], 0], after[real[:, 0], 0])
    assert (before[:, 1:][real[:, 1:]] != after[:, 1:][real[:, 1:]]).all()
    noise = np.where(batch["segment_ids"] == 0, 50, batch["input_ids"]).astype(np.int32)
    padded = np.asarray(loss(without_index(batch | {"input_ids": noise}))).reshape(16, -1)
    assert np.array_equal(padded[real], before[real])


@pytest.mark.parametrize("window", [1, 4])
def test_training_batches_have_the_same_rows_and_continue(window):
    rows = features()

    def stream(pack):
        return train_batches(rows, batch_size=12, buckets=BUCKETS, seed=5, window=window, pack=pack)

    plain, packed = (list(itertools.islice(stream(pack), 9)) for pack in (0, 2))
    for a, b in zip(plain, packed, strict=True):
        real = b["weights"] > 0
        assert sorted(a["index"]) == sorted(b["index"][real])
        assert len(b["input_ids"]) % 2 == 0 and len(b["input_ids"]) <= 12
    first, second = stream(2), stream(2)
    for _ in range(5):
        next(first)
    second.set_state(first.get_state())
    assert all(np.array_equal(x, packed[5][name]) for name, x in next(second).items())


@pytest.mark.parametrize(("accumulate", "axes"), [(1, {"data": 8}), (2, {"data": 2, "fsdp": 2, "tensor": 2})])
def test_the_first_step_is_that_of_padded_rows(accumulate, axes):
    network, params = model()
    options = OptimOptions(accumulate=accumulate)
    mesh = sharding.make_mesh(MeshOptions(**axes))
    steps = make_steps(network, "classification", options, 4, mesh)
    results = {}
    unit = sharding.row_count(mesh) * accumulate
    for pack in (0, unit):
        batch = next(train_batches(features(64), batch_size=32, buckets=BUCKETS, seed=1, pack=pack))
        assert pack == 0 or len(batch["input_ids"]) < 32
        state = steps.init(jnp.asarray(0, jnp.uint32), {k: jnp.asarray(v) for k, v in flatten(params).items()})
        _, values = steps.train(state, sharding.put_batch(without_index(batch), mesh))
        results[pack] = {name: float(value) for name, value in values.items()}
    for name in ("loss", "grad_norm"):
        np.testing.assert_allclose(results[unit][name], results[0][name], rtol=1e-5)


@pytest.mark.parametrize("numerics", [Numerics(), Numerics(remat=True, unroll=2)], ids=["plain", "remat"])
def test_gradients_equal_those_of_padded_rows(numerics):
    network, params = model()
    network = network.clone(numerics=numerics)

    @jax.jit
    def gradient(batch):
        return jax.grad(lambda p: jnp.sum(loss_per_example(network, "classification", p, batch) * batch["weights"]))(
            params
        )

    plain, packed = (
        gradient(without_index(next(train_batches(features(), batch_size=16, buckets=BUCKETS, seed=1, pack=pack))))
        for pack in (0, 1)
    )
    assert_close_trees(packed, plain, 1e-5)


@pytest.mark.parametrize("several", [False, True])
def test_weights_and_several_labels_stay_with_their_rows(several):
    draw = np.random.default_rng(0)
    rows = dataclasses.replace(features(), weights=draw.uniform(0.5, 2, 37).astype(np.float32))
    if several:
        rows = dataclasses.replace(rows, labels=draw.integers(0, 2, (37, 3)).astype(np.float32))
    for batch in eval_batches(rows, batch_size=4, buckets=BUCKETS, packed=True):
        real = batch["index"] >= 0
        assert np.array_equal(batch["weights"][real], rows.weights[batch["index"][real]])
        assert np.array_equal(batch["labels"][real], rows.labels[batch["index"][real]])
        assert not batch["weights"][~real].any()


@pytest.mark.slow
def test_accumulated_packed_rows_of_several_labels_are_one_batch():
    rows = features(64)
    rows = dataclasses.replace(rows, labels=np.random.default_rng(0).integers(0, 2, (64, 3)).astype(np.float32))
    network, params = model()
    mesh = sharding.make_mesh(MeshOptions(data=2), jax.devices()[:2])
    batch = next(train_batches(rows, batch_size=32, buckets=BUCKETS, seed=1, pack=4))
    found = []
    for accumulate in (1, 2):
        steps = make_steps(network, "multilabel", OptimOptions(accumulate=accumulate), 4, mesh)
        state = steps.init(jnp.asarray(0, jnp.uint32), {k: jnp.asarray(v) for k, v in flatten(params).items()})
        found.append(
            {k: float(v) for k, v in steps.train(state, sharding.put_batch(without_index(batch), mesh))[1].items()}
        )
    for name in ("loss", "grad_norm"):
        np.testing.assert_allclose(found[1][name], found[0][name], rtol=1e-5)
