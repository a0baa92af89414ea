"""Small stand-ins for tests: a tokenizer, an architecture and a checkpoint that are built in a moment, offline."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import transformers
from safetensors.numpy import save_file

from bertjax.model.config import BertConfig
from bertjax.model.heads import TaskModel
from bertjax.training.steps import init_params
from bertjax.tree import flatten
from bertjax.weights import RULES

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (
    "a",
    "the",
    "film",
    "plot",
    "is",
    "good",
    "bad",
    "dull",
    "great",
    "not",
    "very",
    "red",
    "blue",
    "un",
    "##able",
    ".",
)
LETTERS = tuple("bcdefghijklmnopqrstuvwxyz0123456789") + tuple(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz0123456789")


def tiny_tokenizer(folder: Path) -> Any:
    """Saves a BERT tokenizer with some 90 word pieces to the folder and loads it from there, as a checkpoint's is.

    The words of `WORDS` are one piece each; other words of letters and digits fall apart into letters.
    """
    vocabulary = {piece: i for i, piece in enumerate(SPECIAL + WORDS + LETTERS)}
    transformers.BertTokenizer(vocab=vocabulary, model_max_length=512).save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def tiny_config(**changes: Any) -> BertConfig:
    """A BERT of two layers, 32 wide, whose vocabulary holds that of `tiny_tokenizer`; `changes` are fields of it."""
    sizes: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 128,
    }
    return BertConfig(**(sizes | changes))


def tiny_params(config: BertConfig, outputs: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    """Parameters of a TaskModel by path, none of them trivial: biases are not zero, layer norm scales not one."""
    draw = np.random.default_rng(seed)
    shapes = flatten(jax.eval_shape(lambda key: init_params(TaskModel(config, outputs), key), jax.random.key(0)))
    spread = {"scale": (1.0, 0.2), "bias": (0.0, 0.2)}
    return {
        path: draw.normal(*spread.get(path.rsplit("/", 1)[-1], (0.0, 0.15)), size=x.shape).astype(np.float32)
        for path, x in shapes.items()
    }


def hugging_face_tensors(params: dict[str, np.ndarray], config: BertConfig) -> dict[str, np.ndarray]:
    """Parameters by path -> tensors by their name in a checkpoint of `BertModel` (without the prefix ``bert.``)."""
    tensors = {}
    for rule in RULES:
        if rule.path not in params:
            continue
        value = params[rule.path]
        if "{i}" in rule.name:
            for i, layer in enumerate(value):
                tensors[rule.name.format(i=i)] = np.ascontiguousarray(rule.export(layer, config))
        else:
            tensors[rule.name] = np.ascontiguousarray(rule.export(value, config))
    return tensors


def hugging_face_config(config: BertConfig, **changes: Any) -> dict[str, Any]:
    """The contents of a config.json; `changes` overrides or adds keys."""
    fields = {name: getattr(config, name) for name in config.__dataclass_fields__}
    return {"architectures": ["BertModel"], "model_type": "bert"} | fields | changes


def tiny_checkpoint(folder: Path, seed: int = 0, outputs: int | None = None, **changes: Any) -> BertConfig:
    """Writes config.json and model.safetensors of a random tiny BERT, as transformers would.

    Args:
      folder: made if it is not there.
      seed: of the weights.
      outputs: size of a classifier to store too; None: none, as in a pretrained checkpoint.
      changes: fields of BertConfig.
    """
    config = tiny_config(**changes)
    params = tiny_params(config, outputs or 2, seed)
    if outputs is None:
        params = {path: x for path, x in params.items() if not path.startswith("head/")}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hugging_face_config(config), indent=2))
    save_file(hugging_face_tensors(params, config), folder / "model.safetensors", metadata={"format": "pt"})
    return config
