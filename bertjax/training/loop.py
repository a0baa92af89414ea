"""The training loop. Order of each round, everywhere: evaluate, save, next batch, step.

A run that was interrupted continues with the same command at its last checkpoint, and repeats bit for bit what it would
have done. `metrics.jsonl` therefore holds only what is determined by the run; seconds are in `timing.jsonl`.
"""

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
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
from bertjax.run import Run, files_hash, parameter_hash
from bertjax.training import sharding
from bertjax.training.checkpoint import Checkpoints, Resumed, Snapshots
from bertjax.training.job import Job, already_done, check_continues, prepare
from bertjax.training.predictions import write_predictions
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
        begin(job)
        say(*job.plan())
        with stopping.graceful():
            with opened(job) as session:
                state = _rounds(session)
                best = session.checkpoints.best
            finish(job, state.params, session.scores, best)
    return Run.open(folder)


def begin(job: Job) -> None:
    """Writes what a run's folder holds before its first step. Its lock must be held.

    Raises:
      InputError: the folder holds a run that was started with other data or another model; nothing is written.
    """
    folder = job.config.folder
    check_continues(job)
    paths.remove_temporary(folder)
    paths.write_text(folder / "config.json", to_json(job.config))
    job.tokenizer.save_pretrained(folder / "tokenizer")
    job.run.info["tokenizer_files"] = files_hash(folder / "tokenizer")
    if bad := job.splits.bad_rows():
        paths.write_text(folder / "bad_rows.jsonl", "".join(json.dumps(row) + "\n" for row in bad))


@contextlib.contextmanager
def opened(job: Job, at: int | None = None) -> Iterator["Session"]:
    """Opens a run's files for writing and reads where its training stands; closes them at the end.

    Args:
      job: the run.
      at: continue at this checkpoint or an older one, though there may be later ones; 0: start anew.
    """
    task, info, folder = job.splits.task, job.run.info, job.run.folder
    iterator = job.train_batches()
    with contextlib.ExitStack() as stack:
        checkpoints = Checkpoints(folder / "checkpoints", task.headline, task.higher_is_better)
        stack.push(_closing(checkpoints))
        snapshots = Snapshots(folder / "snapshots", write=True)
        stack.push(_closing(snapshots))
        resumed = checkpoints.resume(job.steps.abstract, iterator, at)
        if resumed is None:
            loaded = {path: jnp.asarray(value) for path, value in job.loaded.items()}
            resumed = Resumed(0, job.steps.init(jnp.asarray(job.config.train.seed, jnp.uint32), loaded), None, [])
            info["parameters"] = {"start": parameter_hash(resumed.state.params)}
            job.run.write()
            log = Records(folder, None)
        else:
            info["parameters"] = Run.open(folder).info["parameters"]
            say(f"resume  at step {resumed.step} of {job.total}")
            log = Records(folder, resumed.step, resumed.pending)
        stack.callback(log.close)
        yield Session(job, iterator, job.dev_batches(), checkpoints, snapshots, log, resumed, resumed.scores)


def finish(job: Job, params: Any, scores: dict[str, float], best: int | None) -> None:
    """Writes the result of a run whose last checkpoint is saved."""
    info, headline = job.run.info, job.splits.task.headline
    info["best_step"] = best
    info["parameters"]["end"] = parameter_hash(params)
    info["results"] = {"dev": scores}
    info["status"] = "done"
    job.run.write()
    say(f"done    dev {headline} {scores[headline]:.4f} (best at step {best}); results in {job.run.folder}")


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


def _rounds(session: "Session") -> Any:
    """Trains a run from where it stands to the end; returns the last state."""
    job, step, state = session.job, session.resumed.step, session.resumed.state
    with bar(job.total, "train", "step", initial=step) as progress:
        try:
            while True:
                stopping.check()
                if session.due(step):
                    progress.set_postfix_str(session.keep(step, state))
                if step == job.total:
                    return state
                batch = next(session.iterator)
                started = time.perf_counter()
                state, values = job.steps.train(state, sharding.put_batch(batching.without_index(batch), job.mesh))
                step += 1
                say_compiled(session.collect(step, values, batch["index"][batch["index"] >= 0], started))
                progress.update()
        except stopping.Interrupted:
            session.stop(step, state)
            raise


def say_compiled(seconds: float | None) -> None:
    """Says how long the first step took."""
    if seconds is not None:
        say(f"compile first step ready after {seconds:.1f} s (other batch lengths compile when they first come)")


@dataclasses.dataclass
class Session:
    """A run in training: its open files, and what its rounds do besides the step."""

    job: Job
    iterator: Any
    dev: list[dict[str, np.ndarray]]
    checkpoints: Checkpoints
    snapshots: Snapshots
    log: Records
    resumed: Resumed
    scores: dict[str, float] | None
    """Metrics of the evaluation at the present step; None where it has not been done."""

    def due(self, step: int) -> bool:
        """Whether parameters are kept or evaluated at this step."""
        return step in self.job.snapshot_steps or step % self.job.eval_every == 0 or step == self.job.total

    def keep(self, step: int, state: Any) -> str:
        """Does what is due; returns the last score as text."""
        if step in self.job.snapshot_steps:
            self.snapshots.save(step, state.params)
        if (step % self.job.eval_every == 0 or step == self.job.total) and self.scores is None:
            self.scores = self._evaluate(step, state)
            self._save(step, state)
        headline = self.job.splits.task.headline
        return f"dev {headline} {self.scores[headline]:.4f}" if self.scores else ""

    def collect(self, step: int, values: dict[str, Any], rows: np.ndarray, started: float) -> float | None:
        """Notes the values of the training step that led to `step`, begun at the clock time `started`.

        Returns:
          The seconds of the first step, None for later ones.
        """
        seconds = None
        self.scores = None
        self.log.collect(values, rows)
        if step == self.resumed.step + 1:
            jax.block_until_ready(values)
            seconds = time.perf_counter() - started
            self.log.compiled(step, seconds)
        if step % self.job.config.train.log_every == 0:
            self._flush(step)
        return seconds

    def stop(self, step: int, state: Any) -> None:
        """Saves the state after a signal. One that is evaluated is saved already."""
        if self.scores is None and (step > self.resumed.step or step not in self.checkpoints.steps):
            self._check_finite(step)
            self._save(step, state)
        say(f"stopped at step {step} of {self.job.total}, which is saved; the same command continues there")

    def _evaluate(self, step: int, state: Any) -> dict[str, float]:
        self._flush(step)
        job = self.job
        scores, predictions, losses = evaluate(
            job.steps, state.params, self.dev, job.mesh, job.splits.dev, job.splits.task
        )
        if step == job.total:
            write_predictions(job.config.folder, job.splits, predictions, losses, job.config.data.label_separator)
        self.log.write({"step": step} | {f"dev/{name}": value for name, value in scores.items()})
        return scores

    def _save(self, step: int, state: Any) -> None:
        # A checkpoint says that all snapshots before it are there.
        self.snapshots.wait()
        self.checkpoints.save(step, state, self.iterator, self.scores, self.log.pending())

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
) -> tuple[dict[str, float], np.ndarray, np.ndarray]:
    """Mean loss and the task's metrics over a whole set, each row counted once; its predictions; its losses [rows]."""
    loss = np.full(len(features), np.nan, np.float32)
    predictions = np.zeros(features.labels.shape, np.float32 if task.numeric_label else np.int32)
    pending = []
    for batch in dev:
        stopping.check()
        out = steps.evaluate(params, sharding.put_batch(batching.without_index(batch), mesh))
        pending.append((batch, out))
    for batch, out in pending:
        real = batch["weights"] > 0
        loss[batch["index"][real]] = np.asarray(out["loss"])[real]
        predictions[batch["index"][real]] = np.asarray(HEADS[task.head].predict(out["outputs"]))[real]
    scores = metric_table.score(task, features.labels, predictions)
    return {"loss": float(loss.mean(dtype=np.float64))} | scores, predictions, loss
