"""The training loop. Order of each round, everywhere: evaluate, save, next batch, step.

A run that was interrupted continues with the same command at its last checkpoint, and repeats bit for bit what it would
have done. `metrics.jsonl` therefore holds only what is determined by the run; seconds are in `timing.jsonl`.
"""

import dataclasses
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import metrics as metric_table
from bertjax import weights
from bertjax.config import RunConfig, differences, from_json
from bertjax.data import batches as batching
from bertjax.data.features import Features, Splits, load_splits
from bertjax.data.tasks import Task
from bertjax.errors import InputError
from bertjax.model.heads import HEADS
from bertjax.progress import bar, say
from bertjax.run import Run, build_model, parameter_hash, versions
from bertjax.training import sharding
from bertjax.training.checkpoint import Checkpoints, Snapshots
from bertjax.training.records import Records
from bertjax.training.steps import Steps, make_steps
from bertjax.tree import flatten


def train(config: RunConfig) -> Run:
    """Trains (or continues, or finds done) the run that `config` describes; returns it.

    Raises:
      InputError: anything wrong with config, model or data; a run folder that belongs to another config.
    """
    folder = config.folder
    done = _already_done(folder, config)
    if done:
        say(f"{folder} is done: nothing to train")
        return done
    job = _prepare(config)
    say(*job.plan())
    _train(job)
    return Run.open(folder)


@dataclasses.dataclass
class _Job:
    """Everything a training run works with."""

    config: RunConfig
    run: Run
    splits: Splits
    steps: Steps
    mesh: Any
    total: int
    loaded: dict[str, np.ndarray]
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


def _already_done(folder: Path, config: RunConfig) -> Run | None:
    """The finished run in `folder`, None if there is work left; refuses a folder of another config."""
    if not (folder / "config.json").exists():
        if folder.exists() and any(folder.iterdir()):
            raise InputError(f"{folder} is not empty and is not a run: choose another --name")
        return None
    old = from_json(RunConfig, folder / "config.json")
    changed = differences(old, config)
    if changed:
        raise InputError(
            f"{folder} belongs to another config; choose another --name or remove the folder. "
            f"Differs in {'; '.join(changed)}"
        )
    run = Run.open(folder)
    return run if run.info["status"] == "done" else None


def _prepare(config: RunConfig) -> _Job:
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
    if total < 1 or t.log_every < 1 or t.snapshots < 1 or (t.eval_every is not None and t.eval_every < 1):
        raise InputError(
            f"train: {total} steps, log_every {t.log_every}, eval_every {t.eval_every}, snapshots "
            f"{t.snapshots}; each must be at least 1"
        )
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
        "versions": versions(),
        "devices": [str(d) for d in jax.devices()],
        "processes": jax.process_count(),
        "data": splits.fingerprints,
    }
    run = Run(config.folder, config, info)
    run.folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(run.folder / "tokenizer")
    return _Job(config, run, splits, steps, mesh, total, loaded, notes)


def _train(job: _Job) -> None:
    c, steps, task, info = job.config, job.steps, job.splits.task, job.run.info
    folder = job.run.folder
    buckets = batching.bucket_lengths(c.data)
    pad_id = info["architecture"]["pad_token_id"]
    iterator = batching.train_batches(
        job.splits.train,
        batch_size=c.train.batch_size,
        buckets=buckets,
        seed=c.train.seed,
        pad_id=pad_id,
        window=c.data.group_by_length,
    )
    dev = batching.eval_batches(job.splits.dev, batch_size=c.train.eval_batch_size, buckets=buckets, pad_id=pad_id)
    checkpoints = Checkpoints(folder / "checkpoints", task.headline, task.higher_is_better)
    snapshots = Snapshots(folder / "snapshots", create=True)
    resumed = checkpoints.last
    if resumed is None:
        state = steps.init(jnp.asarray(c.train.seed, jnp.uint32), {k: jnp.asarray(v) for k, v in job.loaded.items()})
        info["parameters"] = {"start": parameter_hash(state.params)}
        job.run.write()
    else:
        state = checkpoints.restore(resumed, steps.abstract, iterator)
        info["parameters"] = Run.open(folder).info["parameters"]
        say(f"resume  at step {resumed} of {job.total}")
    eval_every = c.train.eval_every or max(1, round(len(job.splits.train) / c.train.batch_size))
    snapshot_steps = {round(job.total * i / c.train.snapshots) for i in range(c.train.snapshots + 1)}
    log = Records(folder, resumed)
    progress = bar(job.total, "train", "step", initial=resumed or 0)
    scores: dict[str, float] = {}
    for step in range(resumed or 0, job.total + 1):
        if step != resumed and (step % eval_every == 0 or step == job.total):
            log.flush(step)
            scores = evaluate(steps, state.params, dev, job.mesh, job.splits.dev, task)
            log.write({"step": step} | {f"dev/{name}": value for name, value in scores.items()})
            progress.set_postfix_str(f"dev {task.headline} {scores[task.headline]:.4f}")
            checkpoints.save(step, state, iterator, scores)
        if step in snapshot_steps:
            snapshots.save(step, state.params)
        if step == job.total:
            break
        batch = sharding.put_batch(_without_index(next(iterator)), job.mesh)
        begin = time.perf_counter()
        state, values = steps.train(state, batch)
        log.collect(step + 1, values, c.train.batch_size)
        if step == (resumed or 0):
            jax.block_until_ready(values)
            seconds = time.perf_counter() - begin
            say(f"compile first step ready after {seconds:.1f} s (other batch lengths compile when they first come)")
            log.compiled(step + 1, seconds)
        if (step + 1) % c.train.log_every == 0:
            log.flush(step + 1)
        progress.update()
    progress.close()
    info["best_step"] = checkpoints.best
    checkpoints.close()
    snapshots.close()
    log.close()
    info["parameters"]["end"] = parameter_hash(state.params)
    info["results"] = {"dev": scores} if scores else {"dev": log.last_scores}
    info["status"] = "done"
    job.run.write()
    say(
        f"done    dev {task.headline} {info['results']['dev'][task.headline]:.4f} (best at step {info['best_step']}); "
        f"results in {folder}"
    )


def evaluate(
    steps: Steps, params: Any, dev: Iterable[dict[str, np.ndarray]], mesh: Any, features: Features, task: Task
) -> dict[str, float]:
    """Mean loss and the task's metrics over a whole set, each row counted once."""
    loss = np.full(len(features), np.nan, np.float32)
    predictions = np.zeros(len(features), np.float32)
    pending = []
    for batch in dev:
        out = steps.evaluate(params, sharding.put_batch(_without_index(batch), mesh))
        pending.append((batch, out))
    for batch, out in pending:
        real = batch["weights"] > 0
        loss[batch["index"][real]] = np.asarray(out["loss"])[real]
        predictions[batch["index"][real]] = np.asarray(HEADS[task.head].predict(out["outputs"]))[real]
    if task.head == "classification":
        predictions = predictions.astype(np.int32)
    return {"loss": float(loss.mean(dtype=np.float64))} | metric_table.score(task, features.labels, predictions)


def _without_index(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value for name, value in batch.items() if name != "index"}
