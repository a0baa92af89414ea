"""The training loop. Order of each round, everywhere: evaluate, save, next batch, step.

A run that was interrupted continues with the same command at its last checkpoint, and repeats bit for bit what it would
have done. `metrics.jsonl` therefore holds only what is determined by the run; seconds are in `timing.jsonl`.
"""

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import locks, paths, stopping
from bertjax import metrics as metric_table
from bertjax.config import RunConfig, to_json
from bertjax.data import batches as batching
from bertjax.data.features import Features
from bertjax.data.tasks import Task
from bertjax.errors import DivergedError, InputError
from bertjax.model.heads import HEADS
from bertjax.progress import bar, say
from bertjax.run import Run, parameter_hash
from bertjax.training import sharding
from bertjax.training.checkpoint import Checkpoints, Resumed, Snapshots
from bertjax.training.job import Job, already_done, prepare
from bertjax.training.records import Records
from bertjax.training.steps import Steps


def train(config: RunConfig) -> Run:
    """Trains (or continues, or finds done) the run that `config` describes; returns it.

    SIGTERM and Ctrl-C are obeyed before the next step or evaluation batch, after a checkpoint was saved.

    Raises:
      InputError: anything wrong with config, model or data; a run folder that belongs to another config or is in use.
      DivergedError: the loss is not finite.
      Interrupted: a signal asked to stop.
    """
    folder = config.folder
    if (done := already_done(folder, config)) is not None:
        return done
    job = prepare(config)
    with locks.exclusive(folder / ".lock", f"the run {folder}"):
        if (done := already_done(folder, config)) is not None:  # by another process, while this one prepared
            return done
        paths.remove_temporary(folder)
        paths.write_text(folder / "config.json", to_json(config))
        job.tokenizer.save_pretrained(folder / "tokenizer")
        if bad := job.splits.bad_rows():
            paths.write_text(folder / "bad_rows.jsonl", "".join(json.dumps(row) + "\n" for row in bad))
        say(*job.plan())
        with stopping.graceful():
            _train(job)
    return Run.open(folder)


def _train(job: Job) -> None:
    c, task, info, folder = job.config, job.splits.task, job.run.info, job.run.folder
    iterator, dev = job.train_batches(), job.dev_batches()
    with contextlib.ExitStack() as stack:
        checkpoints = Checkpoints(folder / "checkpoints", task.headline, task.higher_is_better)
        stack.push(_closing(checkpoints))
        snapshots = Snapshots(folder / "snapshots", write=True)
        stack.push(_closing(snapshots))
        resumed = checkpoints.resume(job.steps.abstract, iterator)
        if resumed is None:
            loaded = {path: jnp.asarray(value) for path, value in job.loaded.items()}
            resumed = Resumed(0, job.steps.init(jnp.asarray(c.train.seed, jnp.uint32), loaded), None, [])
            info["parameters"] = {"start": parameter_hash(resumed.state.params)}
            job.run.write()
            log = Records(folder, None)
        else:
            info["parameters"] = Run.open(folder).info["parameters"]
            say(f"resume  at step {resumed.step} of {job.total}")
            log = Records(folder, resumed.step, resumed.pending)
        stack.callback(log.close)
        state, scores = _Loop(job, iterator, dev, checkpoints, snapshots, log).run(resumed)
        info["best_step"] = checkpoints.best
    info["parameters"]["end"] = parameter_hash(state.params)
    info["results"] = {"dev": scores}
    info["status"] = "done"
    job.run.write()
    say(
        f"done    dev {task.headline} {info['results']['dev'][task.headline]:.4f} (best at step {info['best_step']}); "
        f"results in {folder}"
    )


def _closing(saver: Checkpoints | Snapshots) -> Callable[..., None]:
    """Closes at the end; when the run ends by an error, a failure to save must not hide that error."""

    def close(kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            saver.close()
        except InputError as failed:
            if error is None:
                raise
            say(f"warning {failed}")

    return close


@dataclasses.dataclass
class _Loop:
    """The rounds of a training run: evaluate, save, next batch, step."""

    job: Job
    iterator: Any
    dev: list[dict[str, np.ndarray]]
    checkpoints: Checkpoints
    snapshots: Snapshots
    log: Records

    def run(self, resumed: Resumed) -> tuple[Any, dict[str, float]]:
        """Trains from where `resumed` stands to the end; returns the last state and the last scores."""
        step, state, scores = resumed.step, resumed.state, resumed.scores
        t, total = self.job.config.train, self.job.total
        eval_every, snapshot_steps = self.job.eval_every, self.job.snapshot_steps
        with bar(total, "train", "step", initial=step) as progress:
            try:
                while True:
                    stopping.check()
                    if step in snapshot_steps:
                        self.snapshots.save(step, state.params)
                    if (step % eval_every == 0 or step == total) and scores is None:
                        scores = self._evaluate(step, state, progress)
                        self._save(step, state, scores)
                    if step == total:
                        return state, scores
                    state = self._step(step, state, first=step == resumed.step)
                    step, scores = step + 1, None
                    if step % t.log_every == 0:
                        self._flush(step)
                    progress.update()
            except stopping.Interrupted:
                if step > resumed.step or step not in self.checkpoints.steps:
                    self._check_finite(step)
                    self._save(step, state, scores)
                say(f"stopped at step {step} of {total}, which is saved; the same command continues there")
                raise

    def _step(self, step: int, state: Any, first: bool) -> Any:
        batch = next(self.iterator)
        begin = time.perf_counter()
        state, values = self.job.steps.train(state, sharding.put_batch(batching.without_index(batch), self.job.mesh))
        self.log.collect(values, batch["index"][batch["weights"] > 0])
        if first:
            jax.block_until_ready(values)
            seconds = time.perf_counter() - begin
            say(f"compile first step ready after {seconds:.1f} s (other batch lengths compile when they first come)")
            self.log.compiled(step + 1, seconds)
        return state

    def _evaluate(self, step: int, state: Any, progress: Any) -> dict[str, float]:
        self._flush(step)
        task = self.job.splits.task
        scores = evaluate(self.job.steps, state.params, self.dev, self.job.mesh, self.job.splits.dev, task)
        self.log.write({"step": step} | {f"dev/{name}": value for name, value in scores.items()})
        progress.set_postfix_str(f"dev {task.headline} {scores[task.headline]:.4f}")
        return scores

    def _save(self, step: int, state: Any, scores: dict[str, float] | None) -> None:
        # A checkpoint says that all snapshots before it are there.
        self.snapshots.wait()
        self.checkpoints.save(step, state, self.iterator, scores, self.log.pending())

    def _flush(self, step: int) -> None:
        self._check_finite(step)
        self.log.flush(step)

    def _check_finite(self, step: int) -> None:
        """DivergedError if a step not written yet had a loss or gradient that is not finite, beyond those to skip."""
        pending, allowed = self.log.pending(), self.job.config.optim.max_skipped
        for number, values in enumerate(pending):
            finite = math.isfinite(values["loss"]) and math.isfinite(values["grad_norm"])
            if finite or values.get("skipped", math.inf) <= allowed:
                continue
            rows = self.log.rows_of(number)
            which = [] if rows is None else [self.job.splits.where("train", i) for i in rows.tolist()]
            shown = ", ".join(which[:8]) or "unknown, it was before an interruption"
            more = f" and {len(which) - 8} more" if len(which) > 8 else ""
            saved = self.checkpoints.steps
            raise DivergedError(
                f"step {step - len(pending) + number + 1}: loss {values['loss']}, gradient norm {values['grad_norm']}; "
                f"rows of the batch: {shown}{more}; "
                + (f"steps skipped: {values['skipped']:.0f} of {allowed} allowed; " if allowed else "")
                + (f"last good checkpoint: step {saved[-1]}; " if saved else "no checkpoint yet; ")
                + "try a lower --optim.learning_rate, or --optim.max_skipped to skip such steps"
            )


def evaluate(
    steps: Steps, params: Any, dev: Iterable[dict[str, np.ndarray]], mesh: Any, features: Features, task: Task
) -> dict[str, float]:
    """Mean loss and the task's metrics over a whole set, each row counted once."""
    loss = np.full(len(features), np.nan, np.float32)
    predictions = np.zeros(len(features), np.float32)
    pending = []
    for batch in dev:
        stopping.check()
        out = steps.evaluate(params, sharding.put_batch(batching.without_index(batch), mesh))
        pending.append((batch, out))
    for batch, out in pending:
        real = batch["weights"] > 0
        loss[batch["index"][real]] = np.asarray(out["loss"])[real]
        predictions[batch["index"][real]] = np.asarray(HEADS[task.head].predict(out["outputs"]))[real]
    if task.head == "classification":
        predictions = predictions.astype(np.int32)
    return {"loss": float(loss.mean(dtype=np.float64))} | metric_table.score(task, features.labels, predictions)
