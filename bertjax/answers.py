"""What a run answers for the rows of any file, read, tokenized and computed in chunks."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from bertjax import stopping
from bertjax.config import MeshOptions
from bertjax.data import batches as batching
from bertjax.data import tokens
from bertjax.data.features import Features
from bertjax.data.labels import as_array, classes
from bertjax.data.rows import Row, RowReader, listed
from bertjax.data.tasks import TASKS
from bertjax.errors import InputError
from bertjax.model.heads import HEADS
from bertjax.run import Run
from bertjax.training import sharding
from bertjax.training.steps import eval_step

CHUNK = 2048  # rows that are in memory together


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswerOptions:
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


@dataclasses.dataclass(frozen=True)
class Answers:
    """A run's parameters at one step, and the rows they answer."""

    run: Run
    step: int
    rows: RowReader
    options: AnswerOptions
    tokenizer: Any
    params: Any
    mesh: Any

    @classmethod
    def open(cls, options: AnswerOptions, *, labelled: bool, every: bool = False) -> "Answers":
        """Opens the run and the file.

        Args:
          options: what is read, and by which parameters it is answered.
          labelled: whether labels are read.
          every: whether every row must be answered, texts without words among them.

        Raises:
          InputError: no such run, checkpoint, file or column; options that contradict each other.
        """
        run = Run.open(options.run)
        names = {field.name for field in dataclasses.fields(run.config.data)} & vars(options).keys()
        given = {name: getattr(options, name) for name in sorted(names)}
        # The column names of the training file are not those of another file.
        data = dataclasses.replace(run.config.data, columns=())
        data = dataclasses.replace(data, **{name: value for name, value in given.items() if value})
        run = dataclasses.replace(run, config=dataclasses.replace(run.config, data=data))
        mesh = sharding.make_mesh(MeshOptions())
        sharding.check_batch_size("batch_size", options.batch_size, mesh)
        if every and data.on_bad_row == "skip":
            raise InputError("--form glue: a row that is left out would shift all others; expected --on_bad_row=error")
        rows = RowReader(
            options.file, data, TASKS[data.task], split=options.split, labelled=labelled, empty_texts=every
        )
        step, params = run.params_at(options.checkpoint, mesh)
        return cls(run, step, rows, options, run.tokenizer, params, mesh)

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
                    batch_size=self.options.batch_size,
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
        """Labels as arrays; see `data.labels.as_array`."""
        return as_array([row.label for row in rows], self.run.labels, self.several)

    def true(self, rows: list[Row]) -> list[Any]:
        """Labels as they are written."""
        return [self.joined(row.label) if self.several else row.label for row in rows]

    @property
    def several(self) -> bool:
        """Whether a row has any number of classes."""
        return TASKS[self.run.config.data.task].several_labels

    def joined(self, names: Sequence[str]) -> str:
        """Several classes as one text."""
        return self.run.config.data.label_separator.join(names)

    def decided(self, values: np.ndarray) -> np.ndarray:
        """Predictions: [rows] class numbers or scores, or [rows, classes] of 0 and 1."""
        if not self.run.labels:
            return values[:, 0]
        return (values > 0.5).astype(np.int32) if self.several else values.argmax(axis=1)

    def _is_known(self, row: Row) -> bool:
        """Whether the row has no label, or one of the run's; of another it is a row that cannot be used."""
        if not (self.rows.labelled and self.run.labels):
            return True
        unknown = [name for name in classes(row.label) if name not in self.run.labels]
        if not unknown:
            return True
        reason = f"label {unknown[0]!r}, expected one of the run's: {listed(self.run.labels)}"
        self.rows.refuse(row.part, row.place, reason)
        return False

    def table(self, rows: list[Row], values: np.ndarray) -> dict[str, list[Any]]:
        """The columns that `predict` names."""
        table: dict[str, list[Any]] = {"row": [row.place for row in rows]}
        table |= {"part": [row.part for row in rows]} if len(self.rows.source.parts) > 1 else {}
        if self.several:
            chosen = self.decided(values)
            table["labels"] = [self.joined([self.run.labels[i] for i in np.flatnonzero(row)]) for row in chosen]
        elif self.run.labels:
            best = values.argmax(axis=1)
            table["label"] = [self.run.labels[i] for i in best]
            table["score"] = values[np.arange(len(rows)), best].tolist()
        else:
            table["score"] = values[:, 0].tolist()
        table |= {f"p({name})": values[:, i].tolist() for i, name in enumerate(self.run.labels)}
        if getattr(self.options, "with_text", False):
            table |= {"text": [row.text[0] for row in rows]}
            table |= {"text_pair": [row.text[1] for row in rows]} if rows[0].text[1] is not None else {}
        return table

    def check(self, count: int) -> None:
        """InputError if no row could be used."""
        if not count:
            example = f", for example {self.rows.bad[0].where}: {self.rows.bad[0].reason}" if self.rows.bad else ""
            raise InputError(f"{self.options.file}: no row can be used{example}")

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
        if self.rows.labelled:
            labels = self.labels(rows)
        else:  # any: their loss is not looked at
            shape = (len(rows), len(self.run.labels)) if self.several else (len(rows),)
            labels = np.zeros(shape, np.float32 if self.several or not self.run.labels else np.int32)
        return Features(labels=labels, rows=np.arange(len(rows)), **vars(made))


def _answer(model: Any, head: str, params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    out = eval_step(model, head, params, batch)
    outputs = out["outputs"].astype(jnp.float32)
    probabilities = HEADS[head].probabilities
    return {"loss": out["loss"], "values": outputs if probabilities is None else probabilities(outputs)}
