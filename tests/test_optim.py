"""Optimizers against their formulas, and which parameters train at which rate."""

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from bertjax.config import MeshOptions, ModelOptions, OptimOptions, RunConfig
from bertjax.errors import InputError
from bertjax.model.bert import Numerics
from bertjax.model.config import BertConfig
from bertjax.model.heads import TaskModel
from bertjax.training import selection, sharding
from bertjax.training.job import _without_top
from bertjax.training.optim import OPTIMIZERS, decay_mask, learning_rate_schedule, make_optimizer
from bertjax.training.steps import init_params, make_steps
from bertjax.tree import flatten

CONFIG = BertConfig(
    vocab_size=32,
    hidden_size=16,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=12,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
MODEL = TaskModel(CONFIG, 3, Numerics(activation_spec=sharding.ACTIVATIONS))
RATES = {"adamw": 3e-3, "sgd": 0.1, "lamb": 0.1, "sam": 3e-3}
FROZEN = ("encoder/layers[0:2]/*", "encoder/embeddings/*", "head/bias")


def options(name, **change):
    return OptimOptions(name=name, learning_rate=RATES[name], weight_decay=0.1, **{"warmup": 0.0} | change)


def batch(seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(1, CONFIG.vocab_size, (16, 8)).astype(np.int32)
    return {
        "input_ids": ids,
        "attention_mask": np.ones(ids.shape, bool),
        "token_type_ids": np.zeros_like(ids),
        "labels": (ids[:, 0] % 3).astype(np.int32),
        "weights": np.ones(len(ids), np.float32),
    }


def steps_of(o, mesh_options=None, devices=1):
    mesh = sharding.make_mesh(mesh_options or MeshOptions(), jax.devices()[:devices])
    return make_steps(MODEL, "classification", o, 40, mesh), mesh


def train(o, count, mesh_options=None, devices=1, rows=None, loaded=None):
    steps, mesh = steps_of(o, mesh_options, devices)
    state = steps.init(jnp.uint32(3), loaded or {})
    losses, rows = [], rows or batch()
    for _ in range(count):
        state, values = steps.train(state, sharding.put_batch(rows, mesh))
        losses.append(float(values["loss"]))
    return losses, state, values


def params_of(state):
    return flatten(jax.tree.map(np.asarray, state.params))


def shapes():
    return jax.eval_shape(lambda key: init_params(MODEL, key), jax.random.key(0))


def drawn():
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), shapes())


def update(o, gradients, params, count=1):
    """The last of `count` updates with the same gradients and parameters."""
    optimizer = make_optimizer(o, 10)
    state = optimizer.init(params)
    with jax.numpy_dtype_promotion("standard"):
        for _ in range(count):
            out, state = optimizer.update(gradients, state, params)
    return flatten(out)


@pytest.mark.parametrize("corrected", [True, False])
def test_adam_is_its_formula_with_and_without_bias_correction(corrected):
    params, gradients = drawn(), jax.tree.map(lambda x: 0.1 * x, drawn())
    o = options("adamw", schedule="constant", clip_norm=0.0, bias_correction=corrected)
    got = update(o, gradients, params, 3)
    for path, g in flatten(gradients).items():
        g, w = np.asarray(g, np.float64), np.asarray(flatten(params)[path], np.float64)
        m, v = (1 - 0.9**3) * g, (1 - 0.999**3) * g**2  # moments of three equal gradients
        direction = g / (abs(g) + 1e-8) if corrected else m / (np.sqrt(v) + 1e-8)
        decay = 0.1 * w if flatten(decay_mask(params))[path] else 0.0
        np.testing.assert_allclose(got[path], -3e-3 * (direction + decay), rtol=2e-4, atol=1e-7, err_msg=path)


def test_sgd_adds_up_momentum():
    params, gradients = drawn(), drawn()
    got = update(OptimOptions(name="sgd", learning_rate=2.0, warmup=0.0, schedule="constant", clip_norm=0.0,
                              weight_decay=0.0, momentum=0.5), gradients, params, 3)  # fmt: skip
    for path, g in flatten(gradients).items():
        np.testing.assert_allclose(got[path], -2.0 * 1.75 * g, rtol=1e-5, err_msg=path)


def test_lamb_gives_each_layer_its_own_trust_ratio():
    params = drawn()
    o = options("lamb", schedule="constant", clip_norm=0.0)
    got = update(o, drawn(), params)
    for path, x in flatten(params).items():
        for u, w in zip(got[path], x, strict=True) if selection.is_stacked(path) else [(got[path], x)]:
            np.testing.assert_allclose(np.linalg.norm(u), 0.1 * np.linalg.norm(w), rtol=1e-4, err_msg=path)


def test_sam_steps_along_the_gradient_uphill():
    o = OptimOptions(name="sam", learning_rate=1.0, warmup=0.0, schedule="constant", clip_norm=0.0, weight_decay=0.0,
                     b1=0.0, b2=0.0, eps=1e3, sam_rho=0.5)  # fmt: skip
    w = {"head": {"kernel": jnp.array([[3.0, 4.0]]), "bias": jnp.zeros(1)}}
    scale = {"head": {"kernel": jnp.array([[1.0, 2.0]]), "bias": jnp.ones(1)}}

    def gradient(params, _=0):  # of the quadratic Σ scale w² / 2
        return jax.tree.map(lambda s, x: s * x, scale, params)

    optimizer = make_optimizer(o, 10)
    with jax.numpy_dtype_promotion("standard"):
        got, _ = optimizer.update(gradient(w), optimizer.init(w), w, grad_fn=gradient)
        zero, _ = optimizer.update(
            jax.tree.map(jnp.zeros_like, w), optimizer.init(w), w, grad_fn=lambda p, _: jax.tree.map(jnp.subtract, p, w)
        )
    g = np.array([3.0, 8.0])
    uphill = np.array([1.0, 2.0]) * (np.array([3.0, 4.0]) + 0.5 * g / np.linalg.norm(g))
    np.testing.assert_allclose(got["head"]["kernel"][0], -uphill / (uphill + 1e3), rtol=1e-5)
    assert all((np.asarray(x) == 0).all() for x in jax.tree.leaves(zero))


# The one that differs most from adamw, with which test_training.py does the same, is tested at once, the others among
# the slow tests.
BY_SPEED = [name if name == "sam" else pytest.param(name, marks=pytest.mark.slow) for name in OPTIMIZERS]


@pytest.mark.parametrize("name", BY_SPEED)
def test_a_mesh_trains_like_one_device_and_the_loss_falls(name):
    o = options(name, accumulate=2)
    losses, _, _ = train(o, 20)
    assert losses[-1] < 0.8 * losses[0]
    few, one, _ = train(o, 3)
    mesh_losses, many, _ = train(o, 3, MeshOptions(data=2, fsdp=2, tensor=2), 8)
    np.testing.assert_allclose(mesh_losses, few, atol=1e-5, rtol=0)
    for path, x in params_of(one).items():
        np.testing.assert_allclose(params_of(many)[path], x, atol=1e-5, rtol=0, err_msg=path)
    steps, _ = steps_of(o, MeshOptions(data=2, fsdp=2, tensor=2), 8)
    split = {x.shape: x.sharding for x in jax.tree.leaves(steps.abstract.params)}
    moments = [x for x in jax.tree.leaves(steps.abstract.opt_state) if x.ndim]
    assert moments
    assert all(x.sharding.shard_shape(x.shape) == split[x.shape].shard_shape(x.shape) for x in moments if x.ndim > 3)


@pytest.mark.parametrize("name", BY_SPEED)
def test_frozen_slices_keep_their_bits(name):
    start = params_of(steps_of(options(name))[0].init(jnp.uint32(3), {}))
    start = {path: x.copy() for path, x in start.items()}
    for x in start.values():
        x.flat[0] = -0.0
    o = options(name, freeze=FROZEN, max_skipped=1)
    loaded = {path: jnp.asarray(x) for path, x in start.items()}
    _, state, _ = train(o, 20, loaded=loaded)
    mask = flatten(selection.trainable(o, state.params))
    for path, x in params_of(state).items():
        still = ~np.broadcast_to(mask[path], x.shape)
        assert x[still].tobytes() == start[path][still].tobytes(), path
        if mask[path].any() and path.endswith("kernel") and "pooler" not in path:
            assert (x[~still] != start[path][~still]).any(), path


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_survives_a_checkpoint_and_bad_gradients_are_skipped(name, tmp_path):
    o = options(name, max_skipped=2, train_only=("*/bias", "head/*"))
    _, state, _ = train(o, 2)
    with ocp.StandardCheckpointer() as saver:
        saver.save(tmp_path / "state", state)
        saver.wait_until_finished()
        read = saver.restore(tmp_path / "state", steps_of(o)[0].abstract)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), jax.device_get(read))
    rows = batch()
    rows["weights"][0] = np.inf
    before = params_of(state)
    steps, mesh = steps_of(o)
    after, values = steps.train(state, sharding.put_batch(rows, mesh))
    assert float(values["skipped"]) == 1
    assert all((params_of(after)[path] == x).all() for path, x in before.items())


@pytest.mark.slow
def test_frozen_gradients_count_in_no_norm():
    _, _, whole = train(options("sgd"), 1)
    _, _, part = train(options("sgd", freeze=("encoder/*",)), 1)
    _, _, rest = train(options("sgd", train_only=("encoder/*",)), 1)
    assert 0 < float(part["grad_norm"]) < float(whole["grad_norm"])
    squares = float(part["grad_norm"]) ** 2 + float(rest["grad_norm"]) ** 2
    assert squares == pytest.approx(float(whole["grad_norm"]) ** 2, rel=1e-5)


def test_each_layer_has_its_rate():
    o = OptimOptions(name="sgd", learning_rate=1.0, warmup=0.0, weight_decay=0.0, momentum=0.0, clip_norm=0.0,
                     layer_decay=0.5)  # fmt: skip
    got = update(o, jax.tree.map(jnp.ones_like, drawn()), drawn())
    for path, u in got.items():
        if selection.is_stacked(path):
            rates = np.array([0.125, 0.25, 0.5]).reshape(3, *(1,) * (u.ndim - 1))
        else:
            rates = 0.0625 if "embeddings" in path else 1.0
        np.testing.assert_array_equal(-u, np.broadcast_to(rates, u.shape), err_msg=path)


def chosen(*globs):
    return {path: x.ravel().tolist() for path, x in flatten(selection.select(shapes(), globs, "o")).items() if x.any()}


def test_globs_pick_layers_and_names():
    assert set(map(tuple, chosen("encoder/layers[0:2]/*").values())) == {(True, True, False)}
    assert set(map(tuple, chosen("encoder/layers[-1:]/*").values())) == {(False, False, True)}
    assert set(map(tuple, chosen("encoder/layers[-1]/*", "encoder/layers[0]/*").values())) == {(True, False, True)}
    assert chosen("encoder/layers[1]/norm/scale") == {"encoder/layers/norm/scale": [False, True, False]}
    assert set(chosen("head/*")) == {"head/kernel", "head/bias"}
    assert set(chosen("*/bias")) == {path for path in flatten(shapes()) if path.endswith("/bias")}
    mask = selection.trainable(OptimOptions(train_only=("head/*",), freeze=("*/bias",)), shapes())
    assert selection.count(shapes(), mask) == (48, sum(x.size for x in jax.tree.leaves(shapes())))


@pytest.mark.parametrize("glob", ["encoder/layer/*", "encoder/layers[3]/*", "encoder/layers[2:1]/*", "heads/*"])
def test_globs_that_match_nothing_are_named(glob):
    with pytest.raises(InputError, match=r"--optim\.freeze: .* matches no parameter .* for example, (encoder|head)/"):
        steps_of(OptimOptions(freeze=(glob,)))


def test_wrong_combinations_are_refused():
    with pytest.raises(InputError, match="leave no parameter to train"):
        steps_of(OptimOptions(freeze=("*",)))
    for wrong in (dict(sam_rho=0.1), dict(momentum=0.5), dict(name="sgd", b1=0.5), dict(name="lamb", sam_rho=0.1)):
        with pytest.raises(InputError, match=r"does not use --optim\.\w+="):
            make_optimizer(OptimOptions(**wrong), 10)
    with pytest.raises(InputError, match=r"--optim\.layer_decay=1\.5"):
        make_optimizer(OptimOptions(layer_decay=1.5), 10)


def test_schedules_after_the_warm_up():
    for name, expected in {"cosine": [0, 1, 2, 1, 0], "constant": [0, 1, 2, 2, 2]}.items():
        schedule = learning_rate_schedule(OptimOptions(learning_rate=2.0, warmup=0.5, schedule=name), 4)
        at = [0, 1, 2, 3, 4]
        np.testing.assert_allclose([schedule(i) for i in at], expected, atol=1e-6)


@pytest.mark.slow
def test_a_loaded_stack_with_fewer_layers_fills_the_lowest():
    loaded = {path: x[:1] for path, x in flatten(drawn()).items() if selection.is_stacked(path)}
    fresh = flatten(init_params(MODEL, jax.random.key(5)))
    for path, x in flatten(init_params(MODEL, jax.random.key(5), loaded)).items():
        if selection.is_stacked(path):
            assert (x[:1] == loaded[path]).all() and (x[1:] == fresh[path][1:]).all()
        else:
            assert (x == fresh[path]).all()


def test_top_layers_start_fresh():
    loaded = flatten(drawn())

    def without_top(count, init="pretrained"):
        config = RunConfig(model=ModelOptions(reinit_layers=count, init=init))
        return _without_top(config, loaded, CONFIG.num_hidden_layers)

    assert without_top(0) == (loaded, [], {})
    kept, notes, info = without_top(2)
    assert set(loaded) - set(kept) == {"encoder/pooler/kernel", "encoder/pooler/bias"}
    assert all(len(x) == (1 if selection.is_stacked(path) else len(loaded[path])) for path, x in kept.items())
    assert "top 2 of 3 layers and the pooler" in notes[0]
    assert info == {"fresh_layers": [1, 2]}
    assert not any(selection.is_stacked(path) for path in without_top(3)[0])
    with pytest.raises(InputError, match=r"--model\.reinit_layers=4: the model has 3 layers"):
        without_top(4)
    with pytest.raises(InputError, match="loads no layers"):
        without_top(1, "random")
