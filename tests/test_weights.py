"""Checkpoints: every tensor finds its one place, and what does not fit is an error or a line in the report."""

import json
import re

import jax
import make_golden
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny import hugging_face_config, hugging_face_tensors, tiny_checkpoint, tiny_config, tiny_params

from bertjax import weights
from bertjax.errors import InputError
from bertjax.model.heads import TaskModel
from bertjax.training.steps import init_params
from bertjax.tree import flatten, unflatten

LEGACY_BUFFERS = {
    "embeddings.position_ids": np.arange(128)[None],
    "bert.embeddings.token_type_ids": np.zeros((1, 128), np.int64),
}


@pytest.fixture
def folder(tmp_path):
    tiny_checkpoint(tmp_path / "model")
    return tmp_path / "model"


def rewrite(folder, change):
    """Applies `change` to the dictionary of tensors of a folder; a returned dictionary replaces it."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors = change(tensors) or tensors
    save_file({name: np.ascontiguousarray(x) for name, x in tensors.items()}, file)


def rewrite_config(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def one_line(error):
    """The message, which must be one line."""
    message = str(error.value)
    assert "\n" not in message
    return message


# Loading.


@pytest.mark.parametrize("name", make_golden.CASES)
def test_goldens_load_completely(name):
    _, params, report = weights.load(make_golden.GOLDEN / name)
    assert set(report.loaded) == set(flatten(params))
    assert report.fresh == report.missing == report.unexpected == ()
    assert len(report.loaded) == len(weights.RULES)


def test_loading_inverts_the_export(tmp_path):
    for changes in ({}, {"num_attention_heads": 1, "type_vocab_size": 5}, {"num_hidden_layers": 1}):
        config = tiny_checkpoint(tmp_path / "model", outputs=3, seed=5, **changes)
        loaded, params, _ = weights.load(tmp_path / "model")
        assert loaded == config
        expected = tiny_params(config, 3, seed=5)
        assert set(flatten(params)) == set(expected)
        for path, value in flatten(params).items():
            np.testing.assert_array_equal(value, expected[path], err_msg=path)


@pytest.mark.parametrize(
    ("changes", "outputs"),
    [({}, 3), ({"num_hidden_layers": 1}, 1), ({"type_vocab_size": 0}, 2), ({"num_attention_heads": 1}, None)],
    ids=["classifier", "one layer", "no token types", "no classifier"],
)
def test_report_covers_the_parameters_of_the_task_model(tmp_path, changes, outputs):
    config = tiny_checkpoint(tmp_path, outputs=outputs, **changes)
    _, params, report = weights.load(tmp_path)
    model = TaskModel(config, outputs or 2)
    tree = flatten(jax.eval_shape(lambda key: init_params(model, key), jax.random.key(0)))
    head = set() if outputs else {"head/kernel", "head/bias"}
    assert set(report.loaded) | set(report.fresh) | head == set(tree), "nothing is silently random"
    assert not set(report.loaded) & set(report.fresh)
    for path, value in flatten(params).items():
        assert value.shape == tree[path].shape, path


def test_init_keeps_what_was_loaded(folder):
    config, params, _ = weights.load(folder)
    loaded = flatten(params)
    init = jax.jit(lambda key, loaded: init_params(TaskModel(config, 2), key, loaded))
    values = flatten(init(jax.random.key(0), loaded))
    assert set(values) - set(loaded) == {"head/kernel", "head/bias"}
    for path, value in loaded.items():
        np.testing.assert_array_equal(values[path], value)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_float_types_load(folder, kind):
    rewrite(folder, lambda tensors: {name: x.astype(kind) for name, x in tensors.items()})
    config, params, report = weights.load(folder)
    assert not report.fresh and not report.unexpected
    assert {x.dtype for x in flatten(params).values()} == {np.dtype(kind)}
    expected = tiny_params(config)["encoder/layers/output/kernel"].astype(kind)
    np.testing.assert_array_equal(flatten(params)["encoder/layers/output/kernel"], expected)


# Names.


def test_every_tensor_name_fits_exactly_one_rule():
    config = tiny_config(num_hidden_layers=3)
    names = hugging_face_tensors(tiny_params(config, 3), config)
    for name in names:
        fits = [rule.name for pattern, rule in weights._PATTERNS if pattern.fullmatch(name)]
        assert len(fits) == 1, f"{name}: {fits}"
    assert len({rule.path for rule in weights.RULES}) == len(weights.RULES)
    assert len({rule.name for rule in weights.RULES}) == len(weights.RULES)


@pytest.mark.parametrize("rule", weights.RULES, ids=lambda rule: rule.path)
def test_each_rule_is_invertible(rule):
    config = tiny_config(num_attention_heads=4)
    value = tiny_params(config, 3)[rule.path]
    value = value[1] if "{i}" in rule.name else value
    stored = rule.export(value, config)
    assert stored.ndim <= 2, "as in the checkpoint"
    np.testing.assert_array_equal(rule.load(stored, config), value)
    np.testing.assert_array_equal(rule.export(rule.load(stored, config), config), stored)


def test_prefix_old_names_and_buffers(folder):
    config, params, _ = weights.load(folder)

    def change(tensors):
        old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        renamed = {}
        for name, value in tensors.items():
            for new, legacy in old.items():
                name = name.replace(new, legacy)
            renamed[f"bert.{name}"] = value
        assert any("gamma" in name for name in renamed)
        return renamed | LEGACY_BUFFERS

    rewrite(folder, change)
    again, renamed, report = weights.load(folder)
    assert again == config and not report.unexpected and not report.fresh
    for path, value in flatten(params).items():
        np.testing.assert_array_equal(flatten(renamed)[path], value)


def test_unexpected_tensors_are_reported(folder):
    extra = {
        "cls.predictions.bias": np.zeros(96, np.float32),
        "encoder.layer.0.attention.self.distance_embedding.weight": np.zeros((3, 8), np.float32),
        "encoder.layer.0.attention.self.query.weight.more": np.zeros(3, np.float32),
        "bert.encoder.layer.7.output.dense.bias": np.zeros(32, np.float32),
    }
    rewrite(folder, lambda tensors: tensors | extra)
    _, _, report = weights.load(folder)
    assert report.unexpected == tuple(sorted(extra))
    assert "unexpected: bert.encoder.layer.7.output.dense.bias" in "\n".join(report.lines())


def test_token_types_without_a_place_are_reported(folder):
    rewrite_config(folder, type_vocab_size=0)
    assert weights.load(folder)[2].unexpected == ("embeddings.token_type_embeddings.weight",)


@pytest.mark.parametrize("shape", [(3, 64), (3, 32, 1), (2, 32)], ids=["wider", "three axes", "another bias"])
def test_a_classifier_of_another_kind_is_not_loaded(folder, shape):
    classifier = {"classifier.weight": np.ones(shape, np.float32), "classifier.bias": np.ones(3, np.float32)}
    rewrite(folder, lambda tensors: tensors | classifier)
    _, params, report = weights.load(folder)
    assert "head" not in params and report.unexpected == ("classifier.bias", "classifier.weight")


def test_half_a_classifier_is_not_loaded(folder):
    rewrite(folder, lambda tensors: tensors | {"classifier.bias": np.ones(3, np.float32)})
    _, params, report = weights.load(folder)
    assert "head" not in params and report.unexpected == ("classifier.bias",)


def test_report_shortens_long_lists():
    report = weights.LoadReport(loaded=("a",), fresh=tuple("bcdefghij"))
    assert report.lines() == ["loaded 1 parameters", "fresh: b, c, d, e, f, g and 3 more"]


# What is missing, wrong or damaged.


def test_missing_encoder_tensors_are_all_named(folder):
    gone = [
        "embeddings.word_embeddings.weight",
        "encoder.layer.0.attention.self.key.bias",
        "encoder.layer.1.output.LayerNorm.weight",
    ]
    rewrite(folder, lambda tensors: {name: x for name, x in tensors.items() if name not in gone})
    with pytest.raises(InputError) as error:
        weights.load(folder)
    message = one_line(error)
    assert "model.safetensors" in message and all(f"missing {name}" in message for name in gone)
    assert message.count("; missing") == 2


def test_more_layers_than_the_checkpoint_has(folder):
    rewrite_config(folder, num_hidden_layers=3)
    with pytest.raises(InputError, match=r"missing encoder\.layer\.2\.attention\.self\.query\.weight.*and 8 more"):
        weights.load(folder)


def test_a_missing_pooler_is_fresh(folder):
    rewrite(folder, lambda tensors: {name: x for name, x in tensors.items() if "pooler" not in name})
    _, params, report = weights.load(folder)
    assert report.fresh == ("encoder/pooler/kernel", "encoder/pooler/bias")
    assert "pooler" not in params["encoder"]


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("encoder.layer.1.attention.self.query.weight", (32, 16), "(32, 32)"),
        ("encoder.layer.1.attention.self.value.weight", (32,), "(32, 32)"),
        ("encoder.layer.0.attention.self.key.bias", (16,), "(32,)"),
        ("encoder.layer.1.attention.output.dense.weight", (16, 32), "(32, 32)"),
        ("encoder.layer.1.intermediate.dense.weight", (32, 48), "(48, 32)"),
        ("encoder.layer.0.output.dense.weight", (48, 32), "(32, 48)"),
        ("encoder.layer.0.output.LayerNorm.bias", (1, 32), "(32,)"),
        ("embeddings.word_embeddings.weight", (100, 32), "(96, 32)"),
        ("pooler.dense.weight", (32, 33), "(32, 32)"),
    ],
)
def test_wrong_shapes_are_named(folder, name, shape, expected):
    rewrite(folder, lambda tensors: tensors | {name: np.zeros(shape, np.float32)})
    with pytest.raises(InputError) as error:
        weights.load(folder)
    assert f"{name}: shape {shape}, config.json says {expected}" in one_line(error)


def test_missing_and_wrong_come_in_one_error(folder):
    def change(tensors):
        del tensors["encoder.layer.0.output.dense.bias"]
        tensors["embeddings.LayerNorm.bias"] = np.zeros(7, np.float32)

    rewrite(folder, change)
    with pytest.raises(InputError, match=r"missing encoder.*embeddings\.LayerNorm\.bias: shape \(7,\)"):
        weights.load(folder)


def test_two_tensors_for_one_parameter(folder):
    rewrite(folder, lambda tensors: tensors | {"bert.pooler.dense.bias": np.zeros(32, np.float32)})
    with pytest.raises(InputError, match=r"pooler\.dense\.bias and .*pooler\.dense\.bias are the same parameter"):
        weights.load(folder)


def test_quantized_weights_are_refused(folder):
    name = "encoder.layer.0.output.dense.weight"
    rewrite(folder, lambda tensors: tensors | {name: np.zeros((32, 48), np.int8)})
    with pytest.raises(InputError, match="type int8, expected floating point numbers"):
        weights.load(folder)


@pytest.mark.parametrize("kind", [np.float16, np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(folder, kind, value):
    name = "encoder.layer.1.output.dense.bias"

    def change(tensors):
        bias = tensors[name].astype(kind)
        bias[:2] = value
        return tensors | {name: bias}

    rewrite(folder, change)
    with pytest.raises(InputError, match=rf"{re.escape(name)}: 2 of 32 numbers are not finite"):
        weights.load(folder)


@pytest.mark.parametrize("keep", [0, 3, 8, 9, 100, 0.2, 0.5, 0.999])
def test_truncated_file(folder, keep):
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    with pytest.raises(InputError) as error:
        weights.load(folder)
    message = one_line(error)
    assert str(file) in message and "is not a readable safetensors file" in message and "bytes" in message


@pytest.mark.parametrize("position", [0, 5, 7, 8, 10, 40, 200, 1000])
@pytest.mark.parametrize("bit", [0, 6])
def test_damaged_header(folder, position, bit):
    """A flipped bit of the header is an error, or it changed a name and is reported, but never another exception."""
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[position] ^= 1 << bit
    file.write_bytes(data)
    with pytest.raises(InputError) as error:
        weights.load(folder)
    one_line(error)


def test_not_a_safetensors_file(folder):
    for content in (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", b"<html></html>", b"\0" * 4096):
        (folder / "model.safetensors").write_bytes(content)
        with pytest.raises(InputError) as error:
            weights.load(folder)
        assert "is not a readable safetensors file" in one_line(error)


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"model\.safetensors does not exist$"):
        weights.load(folder)
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(InputError, match=r"found pytorch_model\.bin; convert with save_pretrained"):
        weights.load(folder)


# config.json.


@pytest.mark.parametrize("kind", ["distilbert", "gpt2", "t5", "roberta", None])
def test_other_architectures_are_refused(folder, kind):
    rewrite_config(folder, model_type=kind, architectures=["SomeModel"])
    shown = repr(kind) if kind else "not set"
    with pytest.raises(InputError, match=rf"config\.json: model_type is {shown}.*SomeModel.*loads 'bert' only"):
        weights.load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"position_embedding_type": "relative_key_query"}, "position_embedding_type is 'relative_key_query'"),
        ({"is_decoder": True}, "this is a decoder"),
        ({"add_cross_attention": True}, "this is a decoder"),
        ({"hidden_size": "32"}, "hidden_size is '32'"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers is 2.5"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, expected at least 1"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"layer_norm_eps": None}, None),
        ({"classifier_dropout": None}, None),
        ({"num_attention_heads": 5}, "hidden_size 32 is not a multiple of num_attention_heads 5"),
    ],
)
def test_config_values(folder, changes, message):
    rewrite_config(folder, **changes)
    if message is None:
        weights.load(folder)
        return
    with pytest.raises(InputError) as error:
        weights.load(folder)
    assert message in one_line(error) and "config.json" in str(error.value)


def test_unreadable_config(folder):
    file = folder / "config.json"
    for content, message in (
        ("{", "cannot be read as JSON"),
        ("[1]", "expected a JSON object"),
        ('"bert"', "expected a JSON object"),
        ("\xff", "cannot be read as JSON"),
    ):
        file.write_bytes(content.encode("latin-1"))
        with pytest.raises(InputError, match=message) as error:
            weights.load(folder)
        one_line(error)
    file.unlink()
    with pytest.raises(InputError, match=r"config\.json does not exist: expected a Hugging Face model folder"):
        weights.load(folder)


def test_config_of_the_checkpoint_is_read_back(tmp_path):
    changes = {
        "hidden_act": "silu",
        "layer_norm_eps": 1e-5,
        "classifier_dropout": 0.25,
        "hidden_dropout_prob": 0.0,
        "type_vocab_size": 3,
        "pad_token_id": 4,
    }
    config = tiny_config(**changes)
    tiny_checkpoint(tmp_path, **changes)
    assert weights.load(tmp_path)[0] == config
    rewrite_config(tmp_path, **hugging_face_config(config, use_cache=True, transformers_version="4.8.2"))
    assert weights.load(tmp_path)[0] == config


# Where a model is.


def test_a_folder_is_itself(folder):
    assert weights.model_folder(str(folder)) == folder


def test_package_paths(monkeypatch, tmp_path):
    package = tmp_path / "packaged_bert"
    tiny_checkpoint(package / "model")
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = weights.model_folder("package://packaged_bert/model")
    assert found == package / "model"
    weights.load(found)
    with pytest.raises(InputError, match="model folder package://packaged_bert/other does not exist"):
        weights.model_folder("package://packaged_bert/other")
    with pytest.raises(InputError, match="leaves the package"):
        weights.model_folder("package://packaged_bert/../..")
    with pytest.raises(InputError, match="no package 'no_such_package' is installed"):
        weights.model_folder("package://no_such_package/model")


@pytest.mark.parametrize("path", ["./nowhere", "../nowhere", "~/nowhere", "/nowhere/at/all", "a/b/c"])
def test_folders_that_do_not_exist(path):
    with pytest.raises(InputError, match=f"model folder {path} does not exist"):
        weights.model_folder(path)


@pytest.mark.parametrize("name", ["bert-base-nowhere", "nobody/bert-nowhere"])
def test_a_hub_name_offline_says_how_to_provide_it(monkeypatch, name):
    import huggingface_hub.constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError) as error:
        weights.model_folder(name)
    message = one_line(error)
    assert name in message
    for way in ("model.path=FOLDER", "model.path=package://MODULE/folder", "download it once"):
        assert way in message


@pytest.mark.parametrize("name", ["bert base", "-", "a..b", "x" * 200])
def test_names_the_hub_would_not_take(name):
    with pytest.raises(InputError) as error:
        weights.model_folder(name)
    one_line(error)


def test_folder_without_tokenizer(folder):
    with pytest.raises(InputError, match=r"has no tokenizer files: expected tokenizer\.json or vocab\.txt"):
        weights.load_tokenizer(folder)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match="the tokenizer cannot be read") as error:
        weights.load_tokenizer(folder)
    one_line(error)


# Trees.


def test_flatten_and_unflatten_are_inverse():
    tree = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    flat = {"a/b": 1, "a/c/d": 2, "e": 3}
    assert flatten(tree) == flat and unflatten(flat) == tree
    assert flatten({}) == {} and unflatten({}) == {}
    config = tiny_config()
    params = tiny_params(config)
    assert flatten(unflatten(params)).keys() == params.keys()
