"""Training: the same on any number of devices, however the model is computed; options act on what they name."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.config import MeshOptions, OptimOptions
from bertjax.errors import InputError
from bertjax.model.bert import Numerics
from bertjax.model.config import BertConfig
from bertjax.model.heads import TaskModel
from bertjax.training import sharding
from bertjax.training.optim import (
    PARAMETER_GROUPS,
    decay_mask,
    learning_rate_schedule,
    make_optimizer,
    parameter_groups,
)
from bertjax.training.steps import init_params, make_steps
from bertjax.tree import flatten

CONFIG = BertConfig(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=24,
)
OPTIONS = OptimOptions(learning_rate=1e-3)
NUMERICS = Numerics(activation_spec=sharding.ACTIVATIONS)


def batches(count, rows=16, length=12, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        ids = rng.integers(1, CONFIG.vocab_size, (rows, length)).astype(np.int32)
        lengths = rng.integers(3, length + 1, rows)
        yield {
            "input_ids": ids,
            "attention_mask": np.arange(length)[None] < lengths[:, None],
            "token_type_ids": np.zeros_like(ids),
            "labels": (ids[:, 0] % 3).astype(np.int32),
            "weights": np.ones(rows, np.float32),
        }


def run(steps_count, mesh_options=None, devices=None, numerics=NUMERICS, options=OPTIONS, config=CONFIG, head=None):
    """Losses of `steps_count` steps and the parameters after them."""
    mesh = sharding.make_mesh(mesh_options or MeshOptions(), devices or jax.devices()[:1])
    model = TaskModel(config, 1 if head == "regression" else 3, numerics)
    steps = make_steps(model, head or "classification", options, 100, mesh)
    state = steps.init(jnp.uint32(7), {})
    losses = []
    for batch in batches(steps_count):
        state, values = steps.train(state, sharding.put_batch(batch, mesh))
        losses.append(float(values["loss"]))
    return np.array(losses), flatten(jax.tree.map(np.asarray, state.params)), steps


def assert_close(a, b, tolerance=1e-5):
    for path, x in a.items():
        np.testing.assert_allclose(x, b[path], atol=tolerance, rtol=0, err_msg=path)


LAYOUTS = {
    "data": MeshOptions(data=8),
    "fsdp": MeshOptions(data=1, fsdp=8),
    "tensor": MeshOptions(data=2, tensor=4),
    "all": MeshOptions(data=2, fsdp=2, tensor=2),
}


@functools.cache
def one_device(steps_count):
    return run(steps_count)


# The mesh of all axes is tested at once, those of one axis among the slow tests.
@pytest.mark.parametrize(
    "layout", [name if name == "all" else pytest.param(name, marks=pytest.mark.slow) for name in LAYOUTS]
)
def test_eight_devices_train_like_one(layout):
    losses, params, steps = run(5, LAYOUTS[layout], jax.devices())
    expected_losses, expected, _ = one_device(5)
    np.testing.assert_allclose(losses, expected_losses, atol=1e-5, rtol=0)
    assert_close(params, expected)
    kernel = steps.abstract.params["encoder"]["layers"]["intermediate"]["kernel"]
    whole = np.prod(kernel.shape)
    shard = np.prod(kernel.sharding.shard_shape(kernel.shape))
    o = LAYOUTS[layout]
    assert whole == shard * o.fsdp * o.tensor


def test_losses_of_a_hundred_steps_agree():
    losses, _, _ = run(100, MeshOptions(data=8), jax.devices())
    expected, _, _ = one_device(100)
    np.testing.assert_allclose(losses, expected, atol=1e-5, rtol=0)
    assert expected[-10:].mean() < 0.9 * expected[:10].mean()  # and something was learnt


@pytest.mark.parametrize("change", [{"unroll": 3}, {"unroll": 2, "remat": True}])
def test_scan_unroll_and_remat_train_alike(change):
    losses, params, _ = run(5, numerics=dataclasses.replace(NUMERICS, **change))
    expected_losses, expected, _ = one_device(5)
    np.testing.assert_allclose(losses, expected_losses, atol=1e-5, rtol=0)
    assert_close(params, expected)


@pytest.mark.parametrize("devices", [1, 8])
def test_accumulated_parts_are_one_batch(devices):
    config = CONFIG.with_dropout(0.0, 0.0)
    whole_losses, whole, _ = run(3, config=config)
    options = dataclasses.replace(OPTIONS, accumulate=2)
    losses, params, _ = run(3, config=config, options=options, devices=jax.devices()[:devices])
    np.testing.assert_allclose(losses, whole_losses, atol=1e-5, rtol=0)
    assert_close(params, whole)


def test_rows_of_weight_zero_change_nothing():
    config = CONFIG.with_dropout(0.0, 0.0)
    mesh = sharding.make_mesh(MeshOptions(), jax.devices()[:1])
    steps = make_steps(TaskModel(config, 3, NUMERICS), "classification", OPTIONS, 10, mesh)
    batch = next(batches(1))
    batch["weights"][10:] = 0.0
    other = {name: x.copy() for name, x in batch.items()}
    other["input_ids"][10:], other["labels"][10:] = 5, 0
    results = []
    for rows in (batch, other):
        state, values = steps.train(steps.init(jnp.uint32(0), {}), sharding.put_batch(rows, mesh))
        results.append((float(values["loss"]), flatten(jax.tree.map(np.asarray, state.params))))
    assert results[0][0] == pytest.approx(results[1][0], abs=1e-6)
    assert_close(results[0][1], results[1][1], 1e-6)


def test_same_seed_repeats_and_another_differs():
    first, params, _ = run(3)
    again, same, _ = run(3)
    assert first.tolist() == again.tolist()
    assert all((params[path] == same[path]).all() for path in params)
    mesh = sharding.make_mesh(MeshOptions(), jax.devices()[:1])
    steps = make_steps(TaskModel(CONFIG, 3, NUMERICS), "classification", OPTIONS, 100, mesh)
    batch = next(batches(1))
    _, values = steps.train(steps.init(jnp.uint32(8), {}), sharding.put_batch(batch, mesh))
    assert float(values["loss"]) != first[0]


def test_regression_learns_a_number():
    losses, _, _ = run(30, head="regression")
    assert losses[-5:].mean() < 0.5 * losses[:5].mean()


@pytest.mark.slow
def test_types_of_parameters_and_computation_are_apart():
    numerics = dataclasses.replace(NUMERICS, dtype=jnp.dtype("bfloat16"))
    losses, params, _ = run(2, numerics=numerics)
    assert {x.dtype for x in params.values()} == {np.dtype("float32")}
    np.testing.assert_allclose(losses, one_device(5)[0][:2], atol=2e-2)
    _, params, _ = run(2, numerics=dataclasses.replace(numerics, param_dtype=jnp.dtype("bfloat16")))
    assert {str(x.dtype) for x in params.values()} == {"bfloat16"}


# -- optimizer ---------------------------------------------------------------------------------------------------------


def parameters(config=CONFIG):
    shapes = jax.eval_shape(lambda key: init_params(TaskModel(config, 3), key), jax.random.key(0))
    return jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), shapes)


def test_decay_acts_on_kernels_and_tables_only():
    decayed = {path for path, decays in flatten(decay_mask(parameters())).items() if decays}
    layer = "encoder/layers"
    assert decayed == {
        *(f"encoder/embeddings/{table}" for table in ("word", "position", "token_type")),
        *(f"{layer}/attention/{part}/kernel" for part in ("query", "key", "value", "output")),
        f"{layer}/intermediate/kernel",
        f"{layer}/output/kernel",
        "encoder/pooler/kernel",
        "head/kernel",
    }


def test_decay_shrinks_exactly_what_it_should():
    params = parameters()
    options = OptimOptions(learning_rate=0.1, warmup=0.0, weight_decay=0.5)
    optimizer = make_optimizer(options, 10)
    zero = jax.tree.map(jnp.zeros_like, params)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = optimizer.update(zero, optimizer.init(params), params)
    for path, update in flatten(updates).items():
        expected = -0.1 * 0.5 if parameter_groups(params)[path] == "decay" else 0.0
        np.testing.assert_allclose(update, expected, atol=1e-7, err_msg=path)


def test_every_parameter_is_in_exactly_one_group(monkeypatch):
    assert set(parameter_groups(parameters()).values()) == set(PARAMETER_GROUPS)
    with pytest.raises(InputError, match="fits 0 parameter groups"):
        parameter_groups({"encoder": {"odd": jnp.ones(2)}})
    monkeypatch.setitem(PARAMETER_GROUPS, "no_decay", ("*/bias", "*/norm/scale", "*/kernel"))
    with pytest.raises(InputError, match="fits 2 parameter groups"):
        parameter_groups(parameters())


def test_schedule_rises_and_falls_linearly():
    schedule = learning_rate_schedule(OptimOptions(learning_rate=2.0, warmup=0.25), 8)
    np.testing.assert_allclose([schedule(i) for i in range(9)], [0, 1, 2, 5 / 3, 4 / 3, 1, 2 / 3, 1 / 3, 0], atol=1e-6)
    flat = learning_rate_schedule(OptimOptions(learning_rate=2.0, warmup=0.0), 4)
    np.testing.assert_allclose([flat(i) for i in range(5)], [2, 1.5, 1, 0.5, 0], atol=1e-6)


def test_gradients_are_clipped_by_their_global_norm():
    params = {"head": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}}
    gradients = jax.tree.map(lambda x: 100.0 * x, params)
    options = OptimOptions(learning_rate=1.0, warmup=0.0, weight_decay=0.0, b1=0.0, b2=0.0, eps=1e3)
    with jax.numpy_dtype_promotion("standard"):
        for limit, scale in ((2.0, 2.0 / (100.0 * 6**0.5)), (0.0, 1.0)):
            optimizer = make_optimizer(dataclasses.replace(options, clip_norm=limit), 10)
            updates, _ = optimizer.update(gradients, optimizer.init(params), params)
            clipped = 100.0 * scale  # with this eps, Adam's update is -g / (|g| + eps)
            np.testing.assert_allclose(updates["head"]["bias"], -clipped / (clipped + 1e3), rtol=1e-4)


@pytest.mark.parametrize(
    ("field", "value"), [("learning_rate", -1.0), ("warmup", 1.5), ("weight_decay", -0.1), ("accumulate", 0)]
)
def test_impossible_options_are_named(field, value):
    with pytest.raises(InputError, match=f"--optim.{field}={value}: expected"):
        make_optimizer(dataclasses.replace(OPTIONS, **{field: value}), 10)


def test_adamw_is_optax_adamw():
    params = parameters()
    gradients = jax.tree.map(lambda x: jnp.full_like(x, 1e-4), params)
    ours = make_optimizer(dataclasses.replace(OPTIONS, clip_norm=0.0, warmup=0.0), 10)
    peer = optax.adamw(optax.linear_schedule(1e-3, 0.0, 10), weight_decay=0.01, mask=decay_mask)
    with jax.numpy_dtype_promotion("standard"):
        got, _ = ours.update(gradients, ours.init(params), params)
        expected, _ = peer.update(gradients, peer.init(params), params)
    assert_close(flatten(got), flatten(expected), 1e-9)


# -- mesh --------------------------------------------------------------------------------------------------------------


def test_meshes_that_do_not_fit_are_refused():
    for options in (MeshOptions(data=3), MeshOptions(fsdp=3), MeshOptions(data=8, tensor=2)):
        with pytest.raises(InputError, match="devices"):
            sharding.make_mesh(options)
    for options in (MeshOptions(fsdp=0), MeshOptions(data=-2), MeshOptions(tensor=-1)):
        with pytest.raises(InputError, match="expected at least 1"):
            sharding.make_mesh(options)
    mesh = sharding.make_mesh(MeshOptions(data=1, tensor=8))
    shapes = jax.eval_shape(lambda key: init_params(TaskModel(CONFIG, 3), key), jax.random.key(0))
    with pytest.raises(InputError, match=r"does not divide over this mesh.*query"):
        sharding.parameter_shardings(shapes, mesh)  # 4 heads over 8 devices
    with pytest.raises(InputError, match="multiple of 16"):
        sharding.check_batch_size("train.batch_size", 24, sharding.make_mesh(MeshOptions()), parts=2)


def test_every_large_parameter_of_bert_base_is_split_under_fsdp():
    mesh = sharding.make_mesh(MeshOptions(data=1, fsdp=8))
    shapes = jax.eval_shape(lambda key: init_params(TaskModel(BertConfig(), 3), key), jax.random.key(0))
    for path, s in flatten(sharding.parameter_shardings(shapes, mesh)).items():
        leaf = flatten(shapes)[path]
        if leaf.size > 100_000:
            assert np.prod(s.shard_shape(leaf.shape)) * 8 == leaf.size, path


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"data": 3}, r"--mesh\.data=3 --mesh\.fsdp=1 --mesh\.tensor=1: a mesh of 3 devices, expected the 8"),
        ({"tensor": 3}, r"--mesh\.tensor=3: a mesh of 6 devices"),
        ({"fsdp": 0}, r"--mesh\.fsdp=0: expected at least 1$"),
        ({"data": 0}, r"--mesh\.data=0: expected at least 1 or -1"),
    ],
)
def test_a_mesh_of_other_devices_is_named_by_its_options(sizes, message):
    with pytest.raises(InputError, match=message):
        sharding.make_mesh(MeshOptions(**sizes))
