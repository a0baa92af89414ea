"""Predictions of a trained run for any file of texts, and its scores on any labelled file.

    python train.py predict RUN FILE [--out predictions.parquet] [--checkpoint best]
    python train.py evaluate RUN FILE

Rows are read, tokenized and predicted in chunks, so that a file may be larger than memory.
"""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro

from bertjax import metrics as metric_table
from bertjax import paths
from bertjax.answers import AnswerOptions, Answers
from bertjax.data.sources import ENDINGS
from bertjax.data.tasks import TASKS, Submission
from bertjax.data.text_files import COMPRESSIONS
from bertjax.data.writers import WRITERS
from bertjax.errors import InputError, option_names
from bertjax.progress import bar, say


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predict(AnswerOptions):
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
class Evaluate(AnswerOptions):
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
    reader = Answers.open(command, labelled=False, every=command.form == "glue")
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
    reader = Answers.open(command, labelled=True)
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
            predictions.append(reader.decided(values))
            write(reader.table(rows, values) | {"true": reader.true(rows), "loss": loss.tolist()})
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


def _submission(reader: Answers) -> Submission:
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
