"""The model: PyTorch's numbers, and the same numbers however it is computed, padded, scanned or stored."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import make_golden
import numpy as np
import pytest
import scipy.special
from tiny import tiny_config, tiny_params

from bertjax.errors import InputError
from bertjax.model.bert import BertModel, Numerics, attend
from bertjax.model.config import BertConfig
from bertjax.model.heads import HEADS, TaskModel
from bertjax.model.layers import ACTIVATIONS, LayerNorm, activation, dropout
from bertjax.tree import flatten, unflatten

BFLOAT16 = Numerics(dtype=jnp.bfloat16)


def batch_for(config, rows=3, tokens=12, seed=1):
    """Token ids, attention mask and token types; the first row is full, the others are padded."""
    draw = np.random.default_rng(seed)
    lengths = np.concatenate([[tokens], draw.integers(2, tokens, rows - 1)])
    mask = np.arange(tokens) < lengths[:, None]
    ids = draw.integers(1, config.vocab_size, (rows, tokens)) * mask
    types = draw.integers(0, max(1, config.type_vocab_size), (rows, tokens))
    return ids.astype(np.int32), mask.astype(np.int32), types.astype(np.int32)


def task(config, numerics=Numerics(), outputs=3):
    """A task model and parameters that are not trivial."""
    return TaskModel(config, outputs, numerics), {"params": unflatten(tiny_params(config, outputs))}


def encoder(config, numerics=Numerics()):
    """An encoder and parameters that are not trivial."""
    return BertModel(config, numerics), {"params": unflatten(tiny_params(config))["encoder"]}


@functools.cache
def compiled(model, flags):
    return jax.jit(functools.partial(model.apply, **dict(flags)))


def run(model, params, *inputs, key=None, **flags):
    """`model.apply`, compiled: operation by operation it would take ten times as long."""
    return compiled(model, tuple(sorted(flags.items())))(params, *inputs, key=key)


def largest(x):
    return float(np.max(np.abs(np.asarray(x, np.float64))))


def assert_close_trees(actual, expected, rtol):
    """Every entry differs by at most `rtol` of the largest entry of the tree.

    Not of its own leaf: the gradient of the keys' bias is zero but for rounding.
    """
    expected, actual = flatten(expected), flatten(actual)
    assert actual.keys() == expected.keys()
    scale = max(largest(x) for x in expected.values())
    for path, value in expected.items():
        difference = largest(np.asarray(actual[path], np.float64) - np.asarray(value, np.float64))
        assert difference <= rtol * scale, f"{path}: {difference / scale:.1e}"


# Outputs of PyTorch.


@pytest.mark.parametrize("name", [*make_golden.CASES, make_golden.MINILM])
def test_outputs_equal_pytorch(name):
    if name == make_golden.MINILM and make_golden.minilm_folder() is None:
        pytest.skip(f"needs the demo's package {make_golden.MINILM_PACKAGE}")
    golden = make_golden.read(name)
    batch = {key: golden[key] for key in make_golden.INPUTS if key in golden}
    outputs = make_golden.live(name, batch)
    assert set(outputs) == set(golden) - set(batch)
    for key, value in outputs.items():
        assert value.shape == golden[key].shape
        np.testing.assert_allclose(value, golden[key], rtol=0, atol=5e-5, err_msg=key)


def test_goldens_are_not_trivial():
    for name in make_golden.CASES:
        golden = make_golden.read(name)
        assert golden["hidden_states"].std(axis=-1).min() > 0.3, "states differ from zero"
        assert np.ptp(golden["attentions"][:, 0], axis=-1).mean() > 0.1, "attention is far from uniform"
        assert golden["pooled"].std(axis=0).mean() > 0.1, "rows differ"
    assert (make_golden.read("relu")["attention_mask"][-1] == 0).all()
    assert "position_ids" in make_golden.read("one_head")


# The shape of the computation does not change the result.


def test_padding_does_not_change_the_output():
    config = tiny_config()
    model, params = task(config)
    ids, mask, types = batch_for(config, rows=4, tokens=64)
    wider = [np.pad(x, ((0, 0), (0, 64)), constant_values=value) for x, value in ((ids, 7), (mask, 0), (types, 1))]
    np.testing.assert_allclose(run(model, params, *wider), run(model, params, ids, mask, types), rtol=0, atol=1e-5)
    bert, params = encoder(config)
    short = run(bert, params, ids, mask, types, hidden_states=True)
    long = run(bert, params, *wider, hidden_states=True)
    real = mask.astype(bool)
    np.testing.assert_allclose(
        np.asarray(long.hidden_states)[:, :, :64][:, real], np.asarray(short.hidden_states)[:, real], rtol=0, atol=1e-5
    )


def test_rows_do_not_depend_on_each_other():
    config = tiny_config()
    model, params = task(config)
    batch = batch_for(config, rows=4)
    whole = run(model, params, *batch)
    for row in range(4):
        alone = run(model, params, *[x[row : row + 1] for x in batch])
        np.testing.assert_allclose(alone[0], whole[row], rtol=0, atol=1e-6)


def values_and_gradients(config, numerics, key=None):
    model, params = task(config, numerics)
    batch = batch_for(config)
    labels = jnp.array([0, 2, 1])

    def loss(params):
        logits = model.apply(params, *batch, key)
        return HEADS["classification"].loss(logits, labels).sum(), logits

    (_, logits), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    return logits, gradients


@pytest.fixture(scope="module")
def scanned():
    """Logits and gradients with dropout, layer by layer."""
    return values_and_gradients(tiny_config(num_hidden_layers=3), Numerics(), jax.random.key(3))


@pytest.mark.parametrize(
    "numerics",
    [Numerics(unroll=99), Numerics(remat=True), Numerics(unroll=2, remat=True)],
    ids=["unroll", "remat", "unroll and remat"],
)
def test_scan_unroll_and_remat_agree(numerics, scanned):
    logits, gradients = values_and_gradients(tiny_config(num_hidden_layers=3), numerics, jax.random.key(3))
    np.testing.assert_allclose(logits, scanned[0], rtol=1e-6, atol=1e-6 * largest(scanned[0]))
    assert_close_trees(gradients, scanned[1], rtol=1e-6)


def test_unrolled_outputs_agree_without_dropout():
    config = tiny_config(num_hidden_layers=3)
    (model, params), unrolled = task(config), task(config, Numerics(unroll=2))[0]
    logits, other = run(model, params, *batch_for(config)), run(unrolled, params, *batch_for(config))
    np.testing.assert_allclose(other, logits, rtol=1e-6, atol=1e-6 * largest(logits))


def test_layers_are_applied_in_order():
    config = tiny_config(num_hidden_layers=3)
    model, params = encoder(config)
    batch = batch_for(config)
    states = run(model, params, *batch, hidden_states=True).hidden_states
    for depth in (1, 2):
        shallow = BertModel(dataclasses.replace(config, num_hidden_layers=depth))
        layers = jax.tree.map(lambda x, depth=depth: x[:depth], params["params"]["layers"])
        output = run(shallow, {"params": params["params"] | {"layers": layers}}, *batch)
        np.testing.assert_allclose(output.last_hidden_state, states[depth], rtol=0, atol=1e-6)


def test_only_cls_equals_the_first_token():
    config = tiny_config()
    model, params = encoder(config)
    batch = batch_for(config)
    full, short = run(model, params, *batch), run(model, params, *batch, only_cls=True)
    assert short.last_hidden_state is None and short.cls.shape == (3, 32)
    np.testing.assert_allclose(short.cls, full.last_hidden_state[:, 0], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(full.cls, full.last_hidden_state[:, 0])
    asked = run(model, params, *batch, only_cls=True, hidden_states=True)
    np.testing.assert_array_equal(asked.hidden_states[-1], asked.last_hidden_state)


def test_attention_weights_do_not_change_the_output():
    config = tiny_config()
    model, params = encoder(config)
    batch = batch_for(config)
    plain, weighted = run(model, params, *batch), run(model, params, *batch, attentions=True)
    np.testing.assert_allclose(weighted.last_hidden_state, plain.last_hidden_state, rtol=0, atol=1e-6)
    assert plain.attentions is None and weighted.attentions.shape == (2, 3, 4, 12, 12)
    np.testing.assert_allclose(weighted.attentions.sum(-1), 1.0, atol=1e-6)
    padded = batch[1] == 0
    assert (np.asarray(weighted.attentions).transpose(1, 4, 0, 2, 3)[padded] == 0).all(), "padding is not attended to"


def attention_inputs(scale=1.0):
    """q, k, v of 5 tokens, 3 heads and 4 dimensions, and a mask whose last row has no real token."""
    draw = np.random.default_rng(0)
    q, k, v = (jnp.asarray(scale * draw.normal(size=(2, 5, 3, 4)), jnp.float32) for _ in range(3))
    return q, k, v, jnp.array([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]], bool)[:, None, None, :]


def test_attention_closed_form():
    q, k, v, mask = attention_inputs()
    context, actual = attend(q, k, v, mask)
    expected = np.exp(np.einsum("bmhk,bnhk->bhmn", q, k, dtype=np.float64) / 2) * np.asarray(mask)
    expected[0] /= expected[0].sum(-1, keepdims=True)
    expected[1] = 0.2  # no real token: uniform
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(context, np.einsum("bhmn,bnhk->bmhk", expected, v), rtol=0, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 30.0], ids=["ordinary", "saturated"])
def test_attention_equals_that_of_jax(scale):
    q, k, v, mask = attention_inputs(scale)

    def total(attention):
        def weighted(q, k, v):
            return (attention(q, k, v) * jnp.sin(jnp.arange(120.0)).reshape(v.shape)).sum()

        return jax.value_and_grad(weighted, argnums=(0, 1, 2))(q, k, v)

    ours = total(lambda q, k, v: attend(q, k, v, mask)[0])
    theirs = total(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, mask=mask))
    # A gradient of q is a sum of products of two inputs, so its rounding grows with their square.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * scale**2), ours, theirs)


def test_dropped_attention_weights_are_scaled_up():
    q, k, v, mask = attention_inputs()
    v = jnp.broadcast_to(jnp.eye(5, 4)[None, :, None, :], v.shape)  # the context shows the weights of four tokens
    _, weights = attend(q, k, v, mask)
    context, kept = attend(q, k, v, mask, 0.5, jax.random.key(0))
    np.testing.assert_array_equal(kept, weights)
    shown = np.asarray(context).transpose(0, 2, 1, 3)
    dropped = shown == 0
    assert 0.2 < dropped[1].mean() < 0.8
    np.testing.assert_allclose(shown[~dropped], 2 * np.asarray(weights)[..., :4][~dropped], rtol=1e-6)


# Number types.


def test_bfloat16_computation_keeps_float32_parameters():
    config = tiny_config()
    batch = batch_for(config)
    model, params = task(config, BFLOAT16)
    fresh = jax.eval_shape(model.init, jax.random.key(0), *batch)
    assert {x.dtype for x in jax.tree.leaves(fresh)} == {jnp.dtype("float32")}
    low, high = run(model, params, *batch), run(task(config)[0], params, *batch)
    assert low.dtype == jnp.float32
    np.testing.assert_allclose(low, high, rtol=0, atol=0.02 * largest(high))
    assert largest(low - high) > 0, "bfloat16 is used"
    bert, params = encoder(config, BFLOAT16)
    states = jax.eval_shape(lambda *inputs: bert.apply(*inputs, hidden_states=True), params, *batch)
    assert states.hidden_states.dtype == states.cls.dtype == jnp.bfloat16


@pytest.mark.parametrize("param_dtype", [jnp.float32, jnp.bfloat16])
def test_gradients_have_the_type_of_the_parameters(param_dtype):
    config = tiny_config(num_hidden_layers=1)
    model, params = task(config, Numerics(dtype=jnp.bfloat16, param_dtype=param_dtype))
    batch = batch_for(config)
    params = jax.tree.map(lambda x: jnp.asarray(x, param_dtype), params)
    fresh = jax.eval_shape(model.init, jax.random.key(0), *batch)
    assert {x.dtype for x in jax.tree.leaves(fresh)} == {jnp.dtype(param_dtype)}
    gradients = jax.jit(jax.grad(lambda p: model.apply(p, *batch, jax.random.key(0)).sum()))(params)
    assert all(x.dtype == param_dtype and bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(gradients))


@pytest.mark.parametrize("numerics", [Numerics(), BFLOAT16], ids=["float32", "bfloat16"])
def test_fully_padded_row_is_finite(numerics):
    config = tiny_config(num_hidden_layers=1)
    model, params = encoder(config, numerics)
    ids, mask, types = batch_for(config)
    mask[-1] = 0

    def total(params):
        output = model.apply(params, ids, mask, types)
        return output.last_hidden_state.astype(jnp.float32).sum(), output.last_hidden_state

    (_, states), gradients = jax.jit(jax.value_and_grad(total, has_aux=True))(params)
    assert bool(jnp.isfinite(states).all())
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(gradients))


def test_layer_norm_is_computed_in_float32():
    x = (1000 + np.random.default_rng(0).normal(size=(4, 64))).astype(jnp.bfloat16)
    params = {"params": {"scale": jnp.full(64, 2.0), "bias": jnp.full(64, 0.5)}}
    wide = np.asarray(x, np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-3) * 2 + 0.5
    actual = LayerNorm(1e-3, jnp.bfloat16).apply(params, jnp.asarray(x))
    assert actual.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, rtol=2**-8, atol=1e-6)


# Dropout.


def test_dropout_is_off_without_a_key():
    config = tiny_config(num_hidden_layers=1, hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
    model, params = task(config)
    batch = batch_for(config)
    off = task(dataclasses.replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))[0]
    np.testing.assert_array_equal(run(model, params, *batch), run(off, params, *batch))
    # Rate 0 with a key is no dropout either.
    np.testing.assert_array_equal(run(off, params, *batch, key=jax.random.key(0)), run(off, params, *batch))


def test_dropout_repeats_with_its_key_and_differs_between_keys():
    config = tiny_config()
    model, params = task(config)
    batch = batch_for(config)
    first, again, other = (run(model, params, *batch, key=jax.random.key(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert largest(first - other) > 1e-3
    assert largest(first - run(model, params, *batch)) > 1e-3


@pytest.mark.parametrize(
    "rates",
    [(0.3, 0.0, 0.0), (0.0, 0.3, 0.0), (0.0, 0.0, 0.3)],
    ids=["hidden", "attention", "classifier"],
)
def test_each_dropout_rate_acts(rates):
    hidden, attention, classifier = rates
    config = tiny_config(
        num_hidden_layers=1,
        hidden_dropout_prob=hidden,
        attention_probs_dropout_prob=attention,
        classifier_dropout=classifier,
    )
    model, params = task(config)
    batch = batch_for(config)
    assert largest(run(model, params, *batch, key=jax.random.key(0)) - run(model, params, *batch)) > 1e-3


def test_classifier_dropout_follows_the_hidden_rate():
    rates = {"num_hidden_layers": 1, "attention_probs_dropout_prob": 0.0}
    outputs = {}
    for classifier in (None, 0.3, 0.0):
        config = tiny_config(hidden_dropout_prob=0.3, classifier_dropout=classifier, **rates)
        model, params = task(config)
        outputs[classifier] = run(model, params, *batch_for(config), key=jax.random.key(0))
    np.testing.assert_array_equal(outputs[None], outputs[0.3])
    assert largest(outputs[None] - outputs[0.0]) > 1e-3


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_dropout_preserves_the_mean(dtype):
    x = jnp.ones((1000, 100), dtype)
    y = np.asarray(dropout(x, 0.1, jax.random.key(0)), np.float64)
    kept = y != 0
    assert abs(kept.mean() - 0.9) < 5 * np.sqrt(0.09 / x.size)
    np.testing.assert_allclose(y[kept], 1 / 0.9, rtol=2**-8 if dtype == jnp.bfloat16 else 1e-6)
    if dtype == jnp.float32:
        assert abs(y.mean() - 1) < 5 * np.sqrt(0.1 / 0.9 / x.size)


def test_layers_have_different_dropout():
    config = tiny_config(num_hidden_layers=3, hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.0)
    model, params = encoder(config)
    silent = jax.tree.map(np.zeros_like, params["params"])
    silent["layers"]["attention"]["norm"]["scale"][:] = 1
    silent["layers"]["norm"]["scale"][:] = 1
    masks = []
    for layer in range(3):
        # Zeros run through the model until this layer, whose feed-forward bias of ones shows its dropout mask.
        params = jax.tree.map(np.copy, silent)
        params["layers"]["output"]["bias"][layer] = 1
        output = run(model, {"params": params}, *batch_for(config), key=jax.random.key(0))
        masks.append(np.asarray(output.last_hidden_state) > 0)
        assert 0.4 < masks[-1].mean() < 0.6
    assert all((masks[i] != masks[j]).mean() > 0.3 for i, j in ((0, 1), (1, 2), (0, 2)))


# Activations.

X = np.concatenate([np.linspace(-12, 12, 4801), [0.0, -1e-3, 1e-3, -50.0, 50.0]])
SIGMOID = scipy.special.expit
TANH_GELU = 0.5 * X * (1 + np.tanh(np.sqrt(2 / np.pi) * (X + 0.044715 * X**3)))
FORMULAS = {
    "gelu": X * 0.5 * (1 + scipy.special.erf(X / np.sqrt(2))),
    "gelu_new": TANH_GELU,
    "gelu_fast": TANH_GELU,
    "gelu_pytorch_tanh": TANH_GELU,
    "quick_gelu": X * SIGMOID(1.702 * X),
    "relu": np.maximum(X, 0),
    "relu6": np.clip(X, 0, 6),
    "leaky_relu": np.where(X > 0, X, 0.01 * X),
    "silu": X * SIGMOID(X),
    "swish": X * SIGMOID(X),
    "sigmoid": SIGMOID(X),
    "tanh": np.tanh(X),
    "linear": X,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_equals_its_formula(name):
    actual = activation(name)(jnp.asarray(X, jnp.float32))
    assert actual.dtype == jnp.float32
    np.testing.assert_allclose(actual, FORMULAS[name], rtol=1e-6, atol=1e-6)
    assert activation(name)(jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16


def test_gelu_is_the_exact_one():
    difference = np.abs(FORMULAS["gelu"] - TANH_GELU).max()
    assert difference > 1e-4
    assert largest(ACTIVATIONS["gelu"](jnp.asarray(X, jnp.float32)) - FORMULAS["gelu"]) < difference / 100


def test_unknown_activation():
    with pytest.raises(InputError, match=r"hidden_act 'gelu_neu' is not known.*gelu_new"):
        activation("gelu_neu")


# Edges.


@pytest.mark.parametrize("numerics", [Numerics(), Numerics(unroll=4, remat=True)], ids=["plain", "unroll and remat"])
def test_one_layer(numerics):
    config = tiny_config(num_hidden_layers=1)
    logits, gradients = values_and_gradients(config, numerics)
    assert logits.shape == (3, 3)
    moved = {path: largest(x) for path, x in flatten(gradients).items()}
    assert all(np.isfinite(x) for x in moved.values())
    # A bias of the keys shifts all scores of a row alike, which softmax ignores.
    assert all(x > 1e-6 for path, x in moved.items() if "key/bias" not in path)
    model, params = encoder(config, numerics)
    output = run(model, params, *batch_for(config), hidden_states=True, attentions=True)
    assert output.hidden_states.shape == (2, 3, 12, 32) and output.attentions.shape == (1, 3, 4, 12, 12)


def test_defaults_of_the_inputs():
    config = tiny_config(num_hidden_layers=1)
    model, params = encoder(config)
    ids = batch_for(config)[0]
    positions = np.broadcast_to(np.arange(12, dtype=np.int32), ids.shape)
    given = run(model, params, ids, np.ones_like(ids), np.zeros_like(ids), positions)
    np.testing.assert_allclose(run(model, params, ids).cls, given.cls, rtol=0, atol=1e-6)
    moved = run(model, params, ids, np.ones_like(ids), np.zeros_like(ids), positions + 3)
    assert largest(moved.cls - given.cls) > 1e-3, "positions matter"
    types = run(model, params, ids, np.ones_like(ids), np.ones_like(ids), positions)
    assert largest(types.cls - given.cls) > 1e-3, "token types matter"


def test_without_token_types():
    config = tiny_config(type_vocab_size=0, num_hidden_layers=1)
    model, params = encoder(config)
    assert "token_type" not in params["params"]["embeddings"]
    ids, mask, types = batch_for(config)
    other, _ = encoder(dataclasses.replace(config, type_vocab_size=1))
    zero = {"token_type": np.zeros((1, 32), np.float32)}
    same = {"params": params["params"] | {"embeddings": params["params"]["embeddings"] | zero}}
    np.testing.assert_array_equal(run(model, params, ids, mask, types).cls, run(other, same, ids, mask, types).cls)


def test_longest_sequence_and_beyond():
    config = tiny_config(max_position_embeddings=16)
    model, params = encoder(config)
    assert run(model, params, np.ones((1, 16), np.int32)).last_hidden_state.shape == (1, 16, 32)
    with pytest.raises(ValueError, match="17 tokens, but the model has 16 positions"):
        run(model, params, np.ones((1, 17), np.int32))


def test_a_token_id_out_of_range_is_not_silent():
    config = tiny_config()
    model, params = encoder(config)
    assert not bool(jnp.isfinite(run(model, params, np.full((1, 4), 96, np.int32)).cls).all())


def test_unknown_variants_of_the_task_model():
    config = tiny_config()
    for option in ("fusion", "cls_norm"):
        with pytest.raises(InputError, match=f"model.{option} 'nonsense' is not known"):
            TaskModel(config, 2, **{option: "nonsense"}).init(jax.random.key(0), *batch_for(config))


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ((768, 12, 12, 3072), 109_482_240),
        ((1024, 24, 16, 4096), 335_141_888),
    ],
    ids=["base", "large"],
)
def test_published_sizes(sizes, count):
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    config = BertConfig(**dict(zip(names, sizes, strict=True)))
    model = TaskModel(config, 2, Numerics(dtype=jnp.bfloat16))
    batch = [jax.ShapeDtypeStruct((8, 512), jnp.int32)] * 3
    shapes = jax.eval_shape(model.init, jax.random.key(0), *batch)
    encoder_size = sum(x.size for x in jax.tree.leaves(shapes["params"]["encoder"]))
    assert encoder_size == count, "as transformers' BertModel with its pooler"
    logits = jax.eval_shape(model.apply, shapes, *batch, jax.random.key(1))
    assert logits.shape == (8, 2) and logits.dtype == jnp.float32


def test_initialization_is_berts():
    config = BertConfig(
        vocab_size=500, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=99
    )
    fresh = flatten(jax.jit(TaskModel(config, 2).init)(jax.random.key(0), *batch_for(config))["params"])
    assert set(fresh) == set(tiny_params(config))
    for path, value in fresh.items():
        if path.endswith("/bias"):
            assert (value == 0).all(), path
        elif path.endswith("/scale"):
            assert (value == 1).all(), path
        else:
            assert abs(float(value.std()) - 0.02) < 0.02 * 5 / np.sqrt(2 * value.size), path
            assert abs(float(value.mean())) < 0.02 * 5 / np.sqrt(value.size), path
    query = fresh["encoder/layers/attention/query/kernel"]
    assert largest(query[0] - query[1]) > 0.01, "layers start from different numbers"


# Heads.


def test_classification_loss_closed_form():
    logits = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32) * 5
    labels = np.array([0, 1, 2, 3, 0, 1, 2])
    wide = logits.astype(np.float64)
    expected = np.log(np.exp(wide).sum(1)) - wide[np.arange(7), labels]
    head = HEADS["classification"]
    loss = head.loss(jnp.asarray(logits), jnp.asarray(labels))
    assert loss.shape == (7,) and loss.dtype == jnp.float32
    np.testing.assert_allclose(loss, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(head.error(jnp.asarray(logits), jnp.asarray(labels)), logits.argmax(1) != labels)
    np.testing.assert_array_equal(head.predict(jnp.asarray(logits)), logits.argmax(1))


def test_classification_loss_at_extremes():
    head = HEADS["classification"]
    uniform = head.loss(jnp.zeros((1, 5)), jnp.array([3]))
    np.testing.assert_allclose(uniform, np.log(5), rtol=1e-6)
    far = head.loss(jnp.array([[1e4, -1e4], [1e4, -1e4]]), jnp.array([0, 1]))
    np.testing.assert_allclose(far, [0.0, 2e4], rtol=1e-6)
    low = head.loss(jnp.zeros((1, 5), jnp.bfloat16), jnp.array([3]))
    assert low.dtype == jnp.float32


def test_regression_loss_closed_form():
    head = HEADS["regression"]
    outputs, labels = jnp.array([[1.5], [-2.0], [0.25]]), jnp.array([1.0, 2.0, 0.25])
    np.testing.assert_allclose(head.loss(outputs, labels), [0.25, 16.0, 0.0], rtol=1e-6)
    np.testing.assert_array_equal(head.predict(outputs), outputs[:, 0])
    assert head.error is None
    assert head.loss(outputs.astype(jnp.bfloat16), labels).dtype == jnp.float32


def test_gradient_of_the_loss_is_softmax_minus_one_hot():
    logits, labels = jnp.array([[0.5, -1.0, 2.0]]), jnp.array([1])
    gradient = jax.grad(lambda z: HEADS["classification"].loss(z, labels).sum())(logits)
    np.testing.assert_allclose(gradient, scipy.special.softmax(logits, axis=1) - np.eye(3)[[1]], atol=1e-6)


def test_accelerators_get_jaxs_attention_and_cpus_their_own():
    model = BertModel(tiny_config())
    ids = jnp.ones((2, 5), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), ids)
    traced = jax.jit(lambda p, ids: model.apply(p, ids).cls).trace(params, ids)
    text = {platform: traced.lower(lowering_platforms=(platform,)).as_text() for platform in ("cpu", "tpu", "cuda")}
    products = {platform: text[platform].count("dot_general") for platform in text}
    assert products["cpu"] == products["tpu"] == products["cuda"]  # only one of the two attentions is lowered
    assert text["cpu"] != text["tpu"]
