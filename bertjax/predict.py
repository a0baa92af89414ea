"""Predictions of a trained run for any file of texts, and its scores on any labelled file.

    python train.py predict RUN FILE [--out predictions.parquet] [--checkpoint best]
    python train.py evaluate RUN FILE

Rows are read, tokenized and predicted in chunks, so that a file may be larger than memory.
"""

import dataclasses
import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from bertjax import metrics as metric_table
from bertjax import paths, stopping
from bertjax.config import MeshOptions
from bertjax.data import batches as batching
from bertjax.data import tokens
from bertjax.data.features import Features
from bertjax.data.rows import Row, RowReader, listed
from bertjax.data.sources import ENDINGS
from bertjax.data.tasks import TASKS, Submission
from bertjax.data.text_files import COMPRESSIONS
from bertjax.data.writers import WRITERS
from bertjax.errors import InputError, option_names
from bertjax.model.heads import HEADS
from bertjax.progress import bar, say
from bertjax.run import Run
from bertjax.training import sharding
from bertjax.training.steps import eval_step

CHUNK = 2048  # rows that are in memory together


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options:
    """What is read, and by which parameters it is answered."""

    run: Annotated[str, tyro.conf.Positional]
    """Folder of a run."""
    file: Annotated[str, tyro.conf.Positional]
    """Rows, in any form that training reads (.csv, .tsv, .jsonl, .parquet, compressed, a folder, tfds://...)."""
    checkpoint: str = "last"
    """last, best (by the dev score), or a step of which the run has a checkpoint or a snapshot."""
    split: str = ""
    """Split of a folder or tfds:// address."""
    text: str = ""
    """Column with the text; empty: as in training."""
    text_pair: str = ""
    """Column with the second text; empty: as in training."""
    batch_size: int = 64
    """Rows per batch over all devices."""
    columns: tuple[str, ...] = ()
    """Column names of a file without a header line."""
    encoding: str = ""
    """Text encoding of the file; empty: as in training."""
    encoding_errors: Literal["strict", "replace", ""] = ""
    """strict: undecodable bytes are an error that names the line. replace: they become U+FFFD. Empty: as in
    training."""
    data_dir: str = ""
    """Folder of prepared TFDS data sets; empty: as in training."""
    on_bad_row: Literal["error", "skip", ""] = ""
    """What happens to rows that cannot be used (evaluate: also of labels that the run does not know); empty: as in
    training."""
    out: str = ""
    """Where the result is written; empty: in RUN/predictions, under the file's name, a hash of its place, and the
    checkpoint."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predict(_Options):
    """Label and score of every row, as .csv or .parquet.

    Columns: row (line in the file, the header being line 1; row number in Parquet and TFDS), part (number of the file,
    where there are several), label, score (the probability of that label), p(LABEL) for each label. A regression has
    row and score.
    """

    with_text: bool = False
    """Also write the texts."""
    form: Literal["table", "glue"] = "table"
    """table: as above. glue: what the GLUE server takes, tab-separated index (from 0) and prediction of every row,
    texts without words among them; the file is named as the server wants it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate(_Options):
    """Loss and metrics over a labelled file, every row counted once, as .json."""

    label: str = ""
    """Column with the label; empty: as in training."""


def main(argv: Sequence[str]) -> None:
    """Runs ``predict`` or ``evaluate``."""
    command = tyro.extras.subcommand_cli_from_dict(
        {"predict": Predict, "evaluate": Evaluate}, prog="train.py", args=list(argv), use_underscores=True
    )
    if isinstance(command, Predict):
        predict(command)
    else:
        evaluate(command)


def _named(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Errors of the function name options as its command does."""

    @functools.wraps(function)
    def run(command: Predict | Evaluate) -> Any:
        names = {f"data.{field.name}": field.name for field in dataclasses.fields(command)}
        with option_names(names, f"{command.run}/config.json"):
            return function(command)

    return run


@_named
def predict(command: Predict) -> Path:
    """Writes one line for each usable row of the file: its place, label, score, and the score of every label.

    Columns: `row` (line, or row number in Parquet and TFDS), `part` (number of the file, where there are several),
    `label` and `score` (the probability of that label), then `p(LABEL)` for each label; for a regression `row` and
    `score` alone.

    Raises:
      InputError: no such run, checkpoint, file or column; an unusable row; an ending that is neither .csv nor .parquet.
    """
    reader = _Model.open(command)
    submission = _submission(reader) if command.form == "glue" else None
    out = _target(command, ".csv")
    if submission and not command.out:
        out = out.with_name(submission.file)
    if out.suffix not in WRITERS or (submission and out.suffix != ".tsv"):
        raise InputError(f"--out {out}: expected a file ending in {'.tsv' if submission else ' or '.join(WRITERS)}")
    read = paths.resolve(command.file)
    if out.exists() and read.exists() and out.samefile(read):
        raise InputError(f"--out {out} is the file that is read: choose another")
    count = 0
    with paths.replacing(out) as temporary, WRITERS[out.suffix](temporary) as write, _progress() as progress:
        for rows, _, values in reader.answers():
            if submission:
                write(_glue_table(submission, reader.run.labels, values, count))
            else:
                write(reader.table(rows, values))
            count += len(rows)
            progress.update(len(rows))
        reader.check(count)
    say(f"result  {out}: {count:,} rows{reader.left_out()}")
    return out


@_named
def evaluate(command: Evaluate) -> dict[str, float]:
    """Scores the run on a labelled file; returns loss and metrics, and writes them, and the predictions beside them.

    Raises:
      InputError: as `predict`; a label that the run does not know.
    """
    reader = _Model.open(command)
    task = TASKS[reader.run.config.data.task]
    out = _target(command, ".json")
    if out.suffix != ".json":
        raise InputError(f"--out {out}: expected a file ending in .json (the predictions go beside it, as .csv)")
    losses, labels, predictions = [], [], []
    table = out.with_suffix(".csv")
    with paths.replacing(table) as temporary, WRITERS[".csv"](temporary) as write, _progress() as progress:
        for rows, loss, values in reader.answers():
            losses.append(loss)
            labels.append(reader.labels(rows))
            predictions.append(values.argmax(axis=1) if reader.run.labels else values[:, 0])
            write(reader.table(rows, values) | {"true": [row.label for row in rows], "loss": loss.tolist()})
            progress.update(len(rows))
        count = sum(map(len, labels))
        reader.check(count)
    scores = {"loss": float(np.concatenate(losses).mean(dtype=np.float64))}
    scores |= metric_table.score(task, np.concatenate(labels), np.concatenate(predictions))
    where = {"run": command.run, "step": reader.step, "file": command.file, "rows": count, "predictions": table.name}
    paths.write_json(out, where | {"scores": scores})
    say(
        f"step {reader.step} of {command.run} on {command.file}: {count:,} rows{reader.left_out()}",
        *(f"  {name:<10} {value:.4f}" for name, value in scores.items()),
        f"result  {out}",
    )
    return scores


@dataclasses.dataclass(frozen=True)
class _Model:
    """A run's parameters at one step, and the rows they answer."""

    run: Run
    step: int
    rows: RowReader
    command: Predict | Evaluate
    tokenizer: Any
    params: Any
    mesh: Any

    @classmethod
    def open(cls, command: Predict | Evaluate) -> "_Model":
        run = Run.open(command.run)
        names = {field.name for field in dataclasses.fields(run.config.data)} & vars(command).keys()
        given = {name: getattr(command, name) for name in sorted(names)}
        # The column names of the training file are not those of another file.
        data = dataclasses.replace(run.config.data, columns=())
        data = dataclasses.replace(data, **{name: value for name, value in given.items() if value})
        run = dataclasses.replace(run, config=dataclasses.replace(run.config, data=data))
        mesh = sharding.make_mesh(MeshOptions())
        sharding.check_batch_size("batch_size", command.batch_size, mesh)
        labelled = isinstance(command, Evaluate)
        every = isinstance(command, Predict) and command.form == "glue"
        if every and data.on_bad_row == "skip":
            raise InputError("--form glue: a row that is left out would shift all others; expected --on_bad_row=error")
        rows = RowReader(
            command.file, data, TASKS[data.task], split=command.split, labelled=labelled, empty_texts=every
        )
        step, params = run.params_at(command.checkpoint, mesh)
        return cls(run, step, rows, command, run.tokenizer, params, mesh)

    def answers(self) -> Iterator[tuple[list[Row], np.ndarray, np.ndarray]]:
        """Rows, their losses [rows] and class probabilities [rows, classes] or values [rows, 1], chunk by chunk."""
        step = jax.jit(functools.partial(_answer, self.run.model, self.run.head))
        data = self.run.config.data
        stream = (row for row in self.rows if self._is_known(row))
        with stopping.graceful(), jax.set_mesh(self.mesh):
            while rows := list(itertools.islice(stream, CHUNK)):
                features = self._features(rows)
                losses = np.empty(len(rows), np.float32)
                values: np.ndarray | None = None
                for batch in batching.eval_batches(
                    features,
                    batch_size=self.command.batch_size,
                    buckets=batching.bucket_lengths(data),
                    pad_id=self.run.model.config.pad_token_id,
                ):
                    stopping.check()
                    out = step(self.params, sharding.put_batch(batching.without_index(batch), self.mesh))
                    real = batch["weights"] > 0
                    index = batch["index"][real]
                    answer = np.asarray(out["values"])[real]
                    values = np.empty((len(rows), answer.shape[1]), np.float32) if values is None else values
                    values[index], losses[index] = answer, np.asarray(out["loss"])[real]
                assert values is not None
                yield rows, losses, values

    def labels(self, rows: list[Row]) -> np.ndarray:
        """[rows] class numbers or scores."""
        if not self.run.labels:
            return np.array([row.label for row in rows], np.float32)
        number = {name: i for i, name in enumerate(self.run.labels)}
        return np.array([number[row.label] for row in rows], np.int32)

    def _is_known(self, row: Row) -> bool:
        """Whether the row has no label, or one of the run's; of another it is a row that cannot be used."""
        if not (self.rows.labelled and self.run.labels) or row.label in self.run.labels:
            return True
        reason = f"label {row.label!r}, expected one of the run's: {listed(self.run.labels)}"
        self.rows.refuse(row.part, row.place, reason)
        return False

    def table(self, rows: list[Row], values: np.ndarray) -> dict[str, list[Any]]:
        """The columns that `predict` names."""
        table: dict[str, list[Any]] = {"row": [row.place for row in rows]}
        table |= {"part": [row.part for row in rows]} if len(self.rows.source.parts) > 1 else {}
        if self.run.labels:
            best = values.argmax(axis=1)
            table["label"] = [self.run.labels[i] for i in best]
            table["score"] = values[np.arange(len(rows)), best].tolist()
            table |= {f"p({name})": values[:, i].tolist() for i, name in enumerate(self.run.labels)}
        else:
            table["score"] = values[:, 0].tolist()
        if getattr(self.command, "with_text", False):
            table |= {"text": [row.text[0] for row in rows]}
            table |= {"text_pair": [row.text[1] for row in rows]} if rows[0].text[1] is not None else {}
        return table

    def check(self, count: int) -> None:
        """InputError if no row could be used."""
        if not count:
            example = f", for example {self.rows.bad[0].where}: {self.rows.bad[0].reason}" if self.rows.bad else ""
            raise InputError(f"{self.command.file}: no row can be used{example}")

    def left_out(self) -> str:
        """How many rows were left out, and the first of them."""
        bad = self.rows.bad
        return f"; {len(bad):,} left out, the first {bad[0].where}: {bad[0].reason}" if bad else ""

    def _features(self, rows: list[Row]) -> Features:
        data = self.run.config.data
        recipe = tokens.Recipe(fingerprint="", reading=(), max_length=data.max_length, too_long=data.too_long)
        made, _ = tokens.tokenize(
            [row.text for row in rows],
            self.tokenizer,
            recipe,
            where=lambda i: self.rows.source.where(rows[i].part, rows[i].place),
            cache="",
        )
        numeric = np.float32 if not self.run.labels else np.int32
        labels = self.labels(rows) if self.rows.labelled else np.zeros(len(rows), numeric)
        return Features(labels=labels, rows=np.arange(len(rows)), **vars(made))


def _submission(reader: _Model) -> Submission:
    task = TASKS[reader.run.config.data.task]
    if task.submission is None:
        tasks = ", ".join(name for name, task in TASKS.items() if task.submission)
        raise InputError(f"--form glue: the run's task is {task.name}, expected a task of GLUE: {tasks}")
    return task.submission


def _glue_table(
    submission: Submission, labels: tuple[str, ...], values: np.ndarray, start: int
) -> dict[str, list[Any]]:
    if submission.answer == "score":
        answers = [f"{score:.3f}" for score in np.clip(values[:, 0], 0, 5)]
    else:
        best = values.argmax(axis=1).tolist()
        answers = [labels[i] for i in best] if submission.answer == "name" else best
    return {"index": list(range(start, start + len(values))), "prediction": answers}


def _answer(model: Any, head: str, params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    out = eval_step(model, head, params, batch)
    outputs = out["outputs"].astype(jnp.float32)
    return {"loss": out["loss"], "values": jax.nn.softmax(outputs) if HEADS[head].error is not None else outputs}


def _target(command: Predict | Evaluate, ending: str) -> Path:
    if command.out:
        return Path(command.out).expanduser()
    address = command.file if "://" in command.file else str(Path(command.file).expanduser().absolute())
    place = hashlib.sha256(f"{address} {command.split}".encode()).hexdigest()[:6]
    name = Path(command.file.rstrip("/")).name
    for known in (*COMPRESSIONS, *ENDINGS):
        name = name.removesuffix(known)
    name = re.sub(r"[^\w.-]+", "_", name).strip("._") or "rows"
    return Path(command.run).expanduser() / "predictions" / f"{name}-{place}-{command.checkpoint}{ending}"


def _progress() -> Any:
    return bar(None, "rows", "row")
