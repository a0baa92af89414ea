"""Predictions of a trained run for any file of texts, and its scores on any labelled file.

    python train.py predict RUN FILE [--out predictions.parquet] [--checkpoint best]
    python train.py evaluate RUN FILE

Rows are read, tokenized and predicted in chunks, so that a file may be larger than memory.
"""

import contextlib
import csv
import dataclasses
import functools
import itertools
import json
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
from bertjax.data.tasks import TASKS
from bertjax.errors import InputError
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
    on_bad_row: Literal["error", "skip", ""] = ""
    """What happens to rows that cannot be used; empty: as in training."""
    out: str = ""
    """Where the result is written; empty: in RUN/predictions."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predict(_Options):
    """Label and score of every row, as .csv or .parquet."""

    with_text: bool = False
    """Also write the texts."""


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


def predict(command: Predict) -> Path:
    """Writes one line for each usable row of the file: its place, label, score, and the score of every label.

    Columns: `row` (line, or row number in Parquet and TFDS), `part` (number of the file, where there are several),
    `label` and `score` (the probability of that label), then `p(LABEL)` for each label; for a regression `row` and
    `score` alone.

    Raises:
      InputError: no such run, checkpoint, file or column; an unusable row; an ending that is neither .csv nor .parquet.
    """
    reader = _Model.open(command)
    out = _target(command, ".csv")
    if out.suffix not in WRITERS:
        raise InputError(f"--out {out}: expected a file ending in {' or '.join(WRITERS)}")
    if out.exists() and Path(command.file).exists() and out.samefile(command.file):
        raise InputError(f"--out {out} is the file that is read: choose another")
    several = len(reader.rows.source.parts) > 1
    count = 0
    with paths.replacing(out) as temporary, WRITERS[out.suffix](temporary) as write, _progress() as progress:
        for rows, _, values in reader.answers():
            table: dict[str, list[Any]] = {"row": [row.place for row in rows]}
            table |= {"part": [row.part for row in rows]} if several else {}
            if reader.run.labels:
                best = values.argmax(axis=1)
                table["label"] = [reader.run.labels[i] for i in best]
                table["score"] = values[np.arange(len(rows)), best].tolist()
                table |= {f"p({name})": values[:, i].tolist() for i, name in enumerate(reader.run.labels)}
            else:
                table["score"] = values[:, 0].tolist()
            if command.with_text:
                table |= {"text": [row.text[0] for row in rows]}
                table |= {"text_pair": [row.text[1] for row in rows]} if rows[0].text[1] is not None else {}
            write(table)
            count += len(rows)
            progress.update(len(rows))
        reader.check(count)
    say(f"result  {out}: {count:,} rows{reader.left_out()}")
    return out


def evaluate(command: Evaluate) -> dict[str, float]:
    """Scores the run on a labelled file; writes and returns loss and metrics.

    Raises:
      InputError: as `predict`; a label that the run does not know.
    """
    reader = _Model.open(command)
    task = TASKS[reader.run.config.data.task]
    losses, labels, predictions = [], [], []
    with _progress() as progress:
        for rows, loss, values in reader.answers():
            losses.append(loss)
            labels.append(reader.labels(rows))
            predictions.append(values.argmax(axis=1) if reader.run.labels else values[:, 0])
            progress.update(len(rows))
    count = sum(map(len, labels))
    reader.check(count)
    scores = {"loss": float(np.concatenate(losses).mean(dtype=np.float64))}
    scores |= metric_table.score(task, np.concatenate(labels), np.concatenate(predictions))
    out = _target(command, ".json")
    where = {"run": command.run, "step": reader.step, "file": command.file, "rows": count}
    paths.write_text(out, json.dumps(where | {"scores": scores}, indent=2) + "\n")
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
        given = {name: getattr(command, name, "") for name in ("text", "text_pair", "label", "on_bad_row")}
        data = dataclasses.replace(run.config.data, **{name: value for name, value in given.items() if value})
        run = dataclasses.replace(run, config=dataclasses.replace(run.config, data=data))
        mesh = sharding.make_mesh(MeshOptions())
        sharding.check_batch_size("--batch_size", command.batch_size, mesh)
        labelled = isinstance(command, Evaluate)
        rows = RowReader(command.file, data, TASKS[data.task], split=command.split, labelled=labelled)
        step, params = run.params_at(command.checkpoint, mesh)
        return cls(run, step, rows, command, run.tokenizer, params, mesh)

    def answers(self) -> Iterator[tuple[list[Row], np.ndarray, np.ndarray]]:
        """Rows, their losses [rows] and class probabilities [rows, classes] or values [rows, 1], chunk by chunk."""
        step = jax.jit(functools.partial(_answer, self.run.model, self.run.head))
        data = self.run.config.data
        stream = iter(self.rows)
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
                    packed=data.packing != "none",
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
        for row in rows:
            if row.label not in number:
                raise InputError(
                    f"{self.rows.source.where(row.part, row.place)}: label {row.label!r}, expected one of the run's: "
                    f"{listed(self.run.labels)}"
                )
        return np.array([number[row.label] for row in rows], np.int32)

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


def _answer(model: Any, head: str, params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    out = eval_step(model, head, params, batch)
    outputs = out["outputs"].astype(jnp.float32)
    return {"loss": out["loss"], "values": jax.nn.softmax(outputs) if HEADS[head].error is not None else outputs}


def _target(command: Predict | Evaluate, ending: str) -> Path:
    if command.out:
        return Path(command.out).expanduser()
    name = Path(command.file.rstrip("/")).name.partition(".")[0] or "rows"
    return Path(command.run) / "predictions" / f"{name}-{command.checkpoint}{ending}"


def _progress() -> Any:
    return bar(None, "rows", "row")


@contextlib.contextmanager
def _csv_writer(path: Path) -> Iterator[Callable[[dict[str, list[Any]]], None]]:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)

        def write(table: dict[str, list[Any]]) -> None:
            if not file.tell():
                writer.writerow(table)
            writer.writerows(zip(*table.values(), strict=True))

        yield write


@contextlib.contextmanager
def _parquet_writer(path: Path) -> Iterator[Callable[[dict[str, list[Any]]], None]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with contextlib.ExitStack() as stack:
        writers: list[Any] = []

        def write(table: dict[str, list[Any]]) -> None:
            rows = pa.table(table)
            if not writers:
                writers.append(stack.enter_context(pq.ParquetWriter(path, rows.schema)))
            writers[0].write_table(rows)

        yield write


WRITERS: dict[str, Callable[[Path], Any]] = {".csv": _csv_writer, ".parquet": _parquet_writer}
"""Ending of a file -> context manager that yields a function which appends columns."""
