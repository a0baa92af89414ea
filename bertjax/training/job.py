"""What a training run works with: model, data, mesh and compiled steps, made from its configuration. Writes nothing."""

import dataclasses
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
from bertjax.errors import InputError
from bertjax.progress import say
from bertjax.run import Run, build_model, tokenizer_hash, versions
from bertjax.training import optim, sharding
from bertjax.training.steps import Steps, make_steps
from bertjax.tree import flatten

# Section -> option -> smallest and largest value (None: any finite number).
RANGES: dict[str, dict[str, tuple[float, float | None]]] = {
    "model": {"unroll": (1, None)},
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
        parameters = sum(int(np.prod(x.shape)) for x in jax.tree.leaves(self.steps.abstract.params))
        shape = " x ".join(f"{axis}={size}" for axis, size in self.mesh.shape.items())
        return [
            f"run     {c.folder}",
            f"model   {c.model.path} ({c.model.init}), {parameters:,} parameters; {'; '.join(self.notes)}",
            *(f"data    {line}" for line in self.splits.summary()),
            f"train   {self.total} steps of {c.train.batch_size} rows "
            f"({self.total * c.train.batch_size / n:.2f} epochs) "
            f"on {self.mesh.size} {jax.devices()[0].platform} device(s), mesh {shape}",
        ]

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
    name = PurePath(config.name)
    if not config.name or name.is_absolute() or ".." in name.parts or name == PurePath():
        raise InputError(f"--name={config.name!r}: expected the name of a folder below --runs")
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
        "steps": total,
        "rows": {"train": len(splits.train), "dev": len(splits.dev)},
        **_label_info(splits),
        "versions": versions(),
        "devices": [str(d) for d in jax.devices()],
        "processes": jax.process_count(),
        "data": splits.fingerprints,
        "tokenizer": tokenizer_hash(tokenizer),
    }
    return Job(config, Run(config.folder, config, info), splits, steps, mesh, total, loaded, tokenizer, notes)


def _label_info(splits: Splits) -> dict[str, Any]:
    """Counts of each label, and the accuracy of always answering the most frequent one; nothing for regression."""
    if not splits.labels:
        return {}
    counts = {
        name: dict(zip(splits.labels, np.bincount(part.labels, minlength=len(splits.labels)).tolist(), strict=True))
        for name, part in (("train", splits.train), ("dev", splits.dev))
    }
    return {"label_counts": counts, "majority": majority_baseline(splits.train.labels, splits.dev.labels)}


def already_done(folder: Path, config: RunConfig) -> Run | None:
    """The finished run in `folder`, None if there is work left; refuses a folder of another config."""
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
    if run.info["status"] != "done":
        return None
    say(f"{folder} is done: nothing to train")
    return run
