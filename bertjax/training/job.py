"""What a training run works with: model, data, mesh and compiled steps, made from its configuration. Writes nothing."""

import dataclasses
import json
import math
from pathlib import Path, PurePath
from typing import Any

import jax
import numpy as np

from bertjax import weights
from bertjax.baselines import majority_baseline
from bertjax.config import RunConfig, check_ranges, differences, from_json
from bertjax.data import batches as batching
from bertjax.data.features import Splits, load_splits
from bertjax.errors import InputError, brief
from bertjax.progress import say
from bertjax.run import Run, build_model, tokenizer_hash, versions
from bertjax.training import optim, selection, sharding
from bertjax.training.checkpoint import checkpoint_steps
from bertjax.training.steps import Steps, make_steps
from bertjax.tree import flatten

# Section -> option -> smallest and largest value (None: any finite number).
RANGES: dict[str, dict[str, tuple[float, float | None]]] = {
    "model": {"unroll": (1, None), "reinit_layers": (0, None)},
    "data": {"group_by_length": (1, None), "split_seed": (0, None)},
    "optim": optim.RANGES,
    "train": {
        "epochs": (0, None),
        "steps": (1, None),
        "batch_size": (1, None),
        "eval_batch_size": (1, None),
        "eval_every": (1, None),
        "log_every": (1, None),
        "snapshots": (1, None),
        "seed": (0, 2**32 - 1),
    },
}


@dataclasses.dataclass
class Job:
    """Everything a training run works with."""

    config: RunConfig
    run: Run
    splits: Splits
    steps: Steps
    mesh: Any
    total: int
    loaded: dict[str, np.ndarray]
    tokenizer: Any
    notes: list[str]

    def plan(self) -> list[str]:
        """What the run will do, as lines of text."""
        c, n = self.config, len(self.splits.train)
        params = self.steps.abstract.params
        training, parameters = selection.count(params, selection.trainable(c.optim, params))
        shape = " x ".join(f"{axis}={size}" for axis, size in self.mesh.shape.items())
        return [
            f"run     {c.folder}",
            f"model   {c.model.path} ({c.model.init}), {parameters:,} parameters; {'; '.join(self.notes)}",
            f"optim   {c.optim.name}, {training:,} of {parameters:,} parameters train{self._rates()}",
            *(f"data    {line}" for line in self.splits.summary()),
            f"train   {self.total} steps of {c.train.batch_size} rows "
            f"({self.total * c.train.batch_size / n:.2f} epochs) "
            f"on {self.mesh.size} {jax.devices()[0].platform} device(s), mesh {shape}",
        ]

    def _rates(self) -> str:
        """The peak learning rates where they differ, as text."""
        o = self.config.optim
        if o.layer_decay == 1:
            return ""
        layers = selection.layer_count(self.steps.abstract.params)
        rates = [o.learning_rate * o.layer_decay**i for i in range(layers + 2)]
        shown = ", ".join(f"{rate:.3g}" for rate in rates[1:-1])
        return f"; peak rates: head and pooler {rates[0]:.3g}, layers from the top {shown}, embeddings {rates[-1]:.3g}"

    @property
    def eval_every(self) -> int:
        """Steps between evaluations."""
        t = self.config.train
        return t.eval_every or max(1, round(len(self.splits.train) / t.batch_size))

    @property
    def snapshot_steps(self) -> set[int]:
        """Steps at which the parameters are kept."""
        count = self.config.train.snapshots
        return {round(self.total * i / count) for i in range(count + 1)}

    def train_batches(self) -> Any:
        """The endless iterator of training batches, from its start."""
        return batching.train_batches(
            self.splits.train,
            batch_size=self.config.train.batch_size,
            buckets=batching.bucket_lengths(self.config.data),
            seed=self.config.train.seed,
            pad_id=self.pad_id,
            window=self.config.data.group_by_length,
            pack=sharding.row_count(self.mesh) * self.config.optim.accumulate * (self.config.data.packing == "all"),
        )

    def dev_batches(self) -> list[dict[str, np.ndarray]]:
        """The batches of an evaluation."""
        return batching.eval_batches(
            self.splits.dev,
            batch_size=self.config.train.eval_batch_size,
            buckets=batching.bucket_lengths(self.config.data),
            pad_id=self.pad_id,
            packed=self.config.data.packing != "none",
        )

    @property
    def pad_id(self) -> int:
        """Word piece of padding."""
        return self.run.info["architecture"]["pad_token_id"]


def prepare(config: RunConfig) -> Job:
    """Reads model and data and builds the steps.

    Raises:
      InputError: anything wrong with config, model or data.
    """
    for section, ranges in RANGES.items():
        check_ranges(section, getattr(config, section), ranges)
    _check_name(config.name)
    folder = weights.model_folder(config.model.path)
    if config.model.init == "pretrained":
        architecture, params, report = weights.load(folder)
        notes = report.lines()
    else:
        architecture, _ = weights.read_config(folder)
        params, report, notes = {}, weights.LoadReport(), ["all parameters fresh"]
    tokenizer = weights.load_tokenizer(folder)
    if len(tokenizer) > architecture.vocab_size:
        raise InputError(
            f"{folder}: the tokenizer has {len(tokenizer)} word pieces, config.json says vocab_size "
            f"{architecture.vocab_size}"
        )
    splits = load_splits(config.data, tokenizer, positions=architecture.max_position_embeddings)
    outputs = max(1, len(splits.labels))
    loaded = flatten(params)
    if "head/kernel" in loaded and loaded["head/kernel"].shape[-1] != outputs:
        notes = [
            *notes,
            f"the checkpoint's classifier has {loaded['head/kernel'].shape[-1]} outputs, the data need "
            f"{outputs}: a fresh head",
        ]
        loaded = {path: x for path, x in loaded.items() if not path.startswith("head/")}
    elif config.model.init == "pretrained" and "head/kernel" not in loaded:
        notes = [*notes, "fresh head"]
    loaded, reinit_notes, fresh_layers = _without_top(config, loaded, architecture.num_hidden_layers)
    notes = [*notes, *reinit_notes]
    model = build_model(config, architecture, outputs)
    mesh = sharding.make_mesh(config.mesh)
    t = config.train
    sharding.check_batch_size("train.batch_size", t.batch_size, mesh, config.optim.accumulate)
    sharding.check_batch_size("train.eval_batch_size", t.eval_batch_size, mesh)
    total = t.steps if t.steps is not None else math.ceil(t.epochs * len(splits.train) / t.batch_size)
    if total < 1:
        raise InputError(f"train: {total} steps, expected at least 1")
    steps = make_steps(model, splits.task.head, config.optim, total, mesh)
    info = {
        "status": "training",
        "task": splits.task.name,
        "head": splits.task.head,
        "headline": splits.task.headline,
        "labels": list(splits.labels),
        "architecture": dataclasses.asdict(architecture),
        "fresh": sorted(set(flatten(steps.abstract.params)) - set(loaded)),
        **fresh_layers,
        "steps": total,
        "rows": {"train": len(splits.train), "dev": len(splits.dev)},
        **_label_info(splits),
        "versions": versions(),
        "devices": [str(d) for d in jax.devices()],
        "processes": jax.process_count(),
        "data": splits.fingerprints,
        "tokenizer": tokenizer_hash(tokenizer),
    }
    job = Job(config, Run(config.folder, config, info), splits, steps, mesh, total, loaded, tokenizer, notes)
    job.train_batches()  # raises, before anything is written, what would be raised later
    return job


# What run.json says of the start of training: continuing needs the same.
FACTS = ("data", "tokenizer", "labels", "head", "architecture", "fresh", "steps")


def check_continues(job: Job) -> None:
    """InputError with the differences if the folder holds a run of other data or another model under the same names."""
    folder = job.run.folder
    if not (folder / "run.json").exists():
        if steps := checkpoint_steps(folder / "checkpoints"):
            raise InputError(
                f"{folder} has checkpoints ({', '.join(map(str, steps))}) but no run.json, which says what they were "
                "trained on; choose another --name or remove the folder"
            )
        return
    old, new = Run.open(folder).info, json.loads(json.dumps(job.run.info))
    changed = [
        f"{name}: {brief(a)} -> {brief(b)}"
        for fact in FACTS
        if fact in old
        for name, a, b in _compared(fact, old[fact], new[fact])
    ]
    if changed:
        raise InputError(
            f"{folder} was started with something else ({'; '.join(changed)}); restore it to continue, or choose "
            "another --name to start anew"
        )


def _compared(name: str, old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    """(name, old, new) of what differs; dictionaries are compared by their keys."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [] if old == new else [(name, old, new)]
    return [(f"{name} {key}", old.get(key), new.get(key)) for key in old | new if old.get(key) != new.get(key)]


def _without_top(
    config: RunConfig, loaded: dict[str, np.ndarray], layers: int
) -> tuple[dict[str, np.ndarray], list[str], dict[str, list[int]]]:
    """`loaded` without what `model.reinit_layers` starts fresh, notes on it, and its entry in run.json."""
    count = config.model.reinit_layers
    if count == 0:
        return loaded, [], {}
    if config.model.init != "pretrained":
        raise InputError(f"--model.reinit_layers={count}: --model.init={config.model.init} loads no layers")
    if count > layers:
        raise InputError(f"--model.reinit_layers={count}: the model has {layers} layers")
    kept = {}
    for path, value in loaded.items():
        if path.startswith("encoder/pooler/") or (selection.is_stacked(path) and count == layers):
            continue
        kept[path] = value[: layers - count] if selection.is_stacked(path) else value
    note = f"fresh by model.reinit_layers: the top {count} of {layers} layers and the pooler"
    return kept, [note], {"fresh_layers": list(range(layers - count, layers))}


def _label_info(splits: Splits) -> dict[str, Any]:
    """Counts of each label, and the accuracy of always answering the most frequent one; nothing for regression."""
    if not splits.labels:
        return {}
    several = splits.task.several_labels

    def count(labels: np.ndarray) -> list[int]:
        found = labels.sum(axis=0).astype(int) if several else np.bincount(labels, minlength=len(splits.labels))
        return found.tolist()

    counts = {
        name: dict(zip(splits.labels, count(part.labels), strict=True))
        for name, part in (("train", splits.train), ("dev", splits.dev))
    }
    if several:
        return {"label_counts": counts}
    return {"label_counts": counts, "majority": majority_baseline(splits.train.labels, splits.dev.labels)}


def _check_name(name: str) -> None:
    path = PurePath(name)
    if path.is_absolute() or ".." in path.parts or path == PurePath():
        raise InputError(f"--name={name!r}: expected the name of a folder below --runs")


def already_done(folder: Path, config: RunConfig) -> Run | None:
    """The finished run in `folder`, which is said, or None; refuses a folder of another config."""
    run = finished(folder, config)
    if run is not None:
        say(f"{folder} is done: nothing to train")
    return run


def finished(folder: Path, config: RunConfig) -> Run | None:
    """The finished run in `folder`, None if there is work left.

    Raises:
      InputError: the folder belongs to another config, or to something else, or the config names none.
    """
    _check_name(config.name)
    if not (folder / "config.json").exists():
        if folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
            raise InputError(f"{folder} is not empty and is not a run: choose another --name")
        return None
    old = from_json(RunConfig, folder / "config.json")
    changed = differences(old, config)
    if changed:
        raise InputError(
            f"{folder} belongs to another config; choose another --name or remove the folder. "
            f"Differs in {'; '.join(changed)}"
        )
    if not (folder / "run.json").exists():
        return None
    run = Run.open(folder)
    return run if run.info["status"] == "done" else None
