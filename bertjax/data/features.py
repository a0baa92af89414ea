"""From files to training and dev rows: texts as word pieces, labels as numbers, and a summary of what they are."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.config import DataOptions, nearest
from bertjax.data import splits, tokens
from bertjax.data.cells import listed
from bertjax.data.labels import class_weights, known_labels, label_array, label_names
from bertjax.data.rows import Rows, read_rows
from bertjax.data.sources import has_splits, shown
from bertjax.data.tasks import TASKS, Task
from bertjax.data.texts import Text
from bertjax.errors import InputError


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Features:
    """Rows as arrays: the word pieces of all rows one after the other, and one label for each row."""

    ids: np.ndarray
    """[stored] int32 word piece ids, special tokens included; may lie in a file, and hold other rows too."""
    offsets: np.ndarray
    """[n + 1] int64: row i is pieces()[0][offsets[i]:offsets[i + 1]]."""
    types: np.ndarray
    """[stored] int8 token type ids."""
    labels: np.ndarray
    """[n] int32 class numbers, [n] float32 scores, or [n, classes] float32, 1 where a row has the class."""
    rows: np.ndarray
    """[n] int64 positions among the usable rows of the source."""
    cut: np.ndarray
    """[n] bool, True where the row was truncated."""
    starts: np.ndarray | None = None
    """[n] int64: where in `ids` and `types` each row starts; None: at the offsets."""
    weights: np.ndarray | None = None
    """[n] float32 weights in the training loss; None: 1 each."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> np.ndarray:
        """[n] int64 lengths in word pieces."""
        return np.diff(self.offsets)

    @property
    def truncated(self) -> int:
        """How many rows were truncated."""
        return int(self.cut.sum())

    def take(self, indices: Sequence[int] | np.ndarray) -> "Features":
        """The features of some rows, in the given order. Their word pieces stay where they are."""
        indices = np.asarray(indices, np.int64)
        starts = self.offsets[:-1] if self.starts is None else self.starts
        lengths = self.offsets[indices + 1] - self.offsets[indices]
        return Features(
            ids=self.ids,
            offsets=np.concatenate([[0], np.cumsum(lengths)]),
            types=self.types,
            starts=starts[indices],
            labels=self.labels[indices],
            rows=self.rows[indices],
            cut=self.cut[indices],
            weights=None if self.weights is None else self.weights[indices],
        )

    def pieces(self) -> tuple[np.ndarray, np.ndarray]:
        """[total] ids and [total] token types of all rows, one after the other, copied."""
        starts = self.offsets[:-1] if self.starts is None else self.starts
        places = np.arange(self.offsets[-1]) + np.repeat(starts - self.offsets[:-1], self.lengths)
        return self.ids[places], self.types[places]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Splits:
    """Training and dev rows of a task."""

    train: Features
    dev: Features
    labels: tuple[str, ...]
    """Names of the classes in the order of their numbers; empty for regression."""
    task: Task
    fingerprints: dict[str, str]
    """SHA-256 of each file, by its path as given."""
    notes: tuple[str, ...]
    """Where rows and word pieces come from."""
    sources: dict[str, Rows] = dataclasses.field(repr=False)
    """Split name -> all usable rows of the source it was drawn from."""

    def texts(self, split: str) -> list[Text]:
        """The texts of "train" or "dev" with their second texts (None where there are none), in the order of rows."""
        whole = self.sources[split].texts
        return [whole[row] for row in getattr(self, split).rows]

    def where(self, split: str, i: int) -> str:
        """File and line of row `i` of "train" or "dev", for messages."""
        return self.sources[split].where(int(getattr(self, split).rows[i]))

    def bad_rows(self) -> list[dict[str, str]]:
        """The rows that on_bad_row=skip left out: "where" (file and line) and "reason", in the order of the files."""
        different = {id(rows): rows for rows in self.sources.values()}
        return [{"where": row.where, "reason": row.reason} for rows in different.values() for row in rows.bad]

    def summary(self) -> list[str]:
        """Lines that say what the rows are: sources, labels, lengths, truncation, repeated and left out rows."""
        lines = list(self.notes)
        if bad := self.bad_rows():
            first = "; ".join(f"{row['where']}: {row['reason']}" for row in bad[:3])
            lines.append(f"left out: {len(bad):,} unusable rows (on_bad_row=skip), the first: {first}")
        if none := sum({id(rows): rows.unlabelled for rows in self.sources.values()}.values()):
            lines.append(f"left out: {none:,} rows that say they have no label")
        for name, features in (("train", self.train), ("dev", self.dev)):
            lines.append(f"{name}: {len(features):,} rows; {self._labels_line(features.labels)}")
        for name, features in (("train", self.train), ("dev", self.dev)):
            middle, tail, end, longest = np.quantile(features.lengths, (0.5, 0.9, 0.99, 1.0), method="higher")
            lines.append(
                f"{name} lengths in word pieces: median {middle}, 90 % {tail}, 99 % {end}, longest {longest}; "
                f"truncated {_share(features.truncated, len(features))}"
            )
        train_keys, dev_keys = (self.sources[name].keys[getattr(self, name).rows] for name in ("train", "dev"))
        repeated = f"repeated texts: {splits.repeats(train_keys):,} in train, {splits.repeats(dev_keys):,} in dev"
        if self.labels:
            clashes = splits.contradictions(train_keys, self.train.labels)
            repeated += f"; train rows whose text also has another label: {clashes:,}"
        shared = int(np.isin(dev_keys, train_keys).sum())
        lines.append(f"{repeated}; dev rows whose text is also in train: {_share(shared, len(dev_keys))}")
        return lines

    def _labels_line(self, labels: np.ndarray) -> str:
        if not self.labels:
            mean, spread = labels.mean(dtype=np.float64), labels.std(dtype=np.float64)
            return f"label mean {mean:.3f}, standard deviation {spread:.3f}, {labels.min():g} to {labels.max():g}"
        many = labels.ndim > 1
        counts = labels.sum(axis=0).astype(int) if many else np.bincount(labels, minlength=len(self.labels))
        shown = [f"{name} {count:,}" for name, count in zip(self.labels, counts, strict=True)]
        if len(shown) > 10:
            shown = [*shown[:9], f"and {len(shown) - 9} more labels"]
        if many:
            return f"{', '.join(shown)}; {labels.sum() / len(labels):.2f} labels a row"
        most = f"{self.labels[counts.argmax()]} {100 * counts.max() / len(labels):.1f} %"
        return f"{', '.join(shown)}; most frequent {most}"


def load_splits(options: DataOptions, tokenizer: Any, *, positions: int, labels: Sequence[str] | None = None) -> Splits:
    """Reads, tokenizes and splits the rows that the options name.

    Args:
      options: files, columns, split, lengths.
      tokenizer: a fast tokenizer of transformers.
      positions: number of position embeddings of the model, the longest sequence it can take.
      labels: label names stored with a model (empty for a regression model); None: the rows or the options decide.

    Raises:
      InputError: an option does not fit the file or the model, or a row is unusable; the message names file and line.
    """
    task = _check(options, tokenizer, positions, labels)
    train_file = read_rows(options.train, options, task, split=options.train_split, role="train")
    dev_split = options.dev_split or (task.dev_split if not options.dev and has_splits(options.train) else "")
    dev_path = options.dev or (options.train if dev_split else "")
    dev_file = read_rows(dev_path, options, task, split=dev_split, role="dev") if dev_path else train_file
    names = () if task.numeric_label else label_names(train_file, options, labels)
    # Labels of both files are checked before the long work on either.
    train_file = known_labels(train_file, names, options)
    dev_file = known_labels(dev_file, names, options) if dev_path else train_file
    train_all, train_note = _features(train_file, names, options, tokenizer)
    dev_all, dev_note = _features(dev_file, names, options, tokenizer) if dev_path else (train_all, "")

    seed = options.split_seed
    if dev_path:
        rest = np.arange(len(train_all))
        dev_name = shown(dev_path) + f" ({dev_split})" * bool(dev_split)
        dev_rows = splits.sample(np.arange(len(dev_all)), options.dev_rows, seed, f"--data.dev_rows: {dev_name}")
        dev_note = f"of {len(dev_all):,} rows of {dev_name}, word pieces {dev_note}"
    else:
        rest, dev_rows = splits.hold_out(train_file.keys, options.dev_rows, seed)
        asked = f", {options.dev_rows:,} asked for: equal texts stay together" if options.dev_rows else ""
        dev_note = f"rows held out of the same file (split_seed {seed}{asked * (len(dev_rows) != options.dev_rows)})"
    train_name = shown(options.train) + f" ({options.train_split})" * bool(options.train_split)
    train_rows = splits.sample(rest, options.train_rows, seed, f"--data.train_rows: {train_name}")
    train = train_all.take(train_rows)
    return Splits(
        train=dataclasses.replace(train, weights=class_weights(train.labels, names, options)),
        dev=dev_all.take(dev_rows),
        labels=names,
        task=task,
        fingerprints=train_file.source.fingerprints | dev_file.source.fingerprints,
        notes=(
            f"train: {len(train_rows):,} of {len(train_all):,} rows of {train_name}, word pieces {train_note}",
            f"dev: {len(dev_rows):,} {dev_note}",
        ),
        sources={"train": train_file, "dev": dev_file},
    )


def _features(rows: Rows, names: tuple[str, ...], options: DataOptions, tokenizer: Any) -> tuple[Features, str]:
    """All rows of a source as features, and a phrase that says where the word pieces come from."""
    recipe = tokens.Recipe(
        fingerprint=rows.source.fingerprint,
        reading=(*rows.source.reading, rows.fields.text, rows.fields.text_pair, *_left_out(rows)),
        max_length=options.max_length,
        too_long=options.too_long,
    )
    made, note = tokens.tokenize(rows.texts, tokenizer, recipe, where=rows.where, cache=options.cache)
    return Features(labels=label_array(rows, names), rows=np.arange(len(rows)), **vars(made)), note


def _left_out(rows: Rows) -> tuple[str, ...]:
    """What tells the usable rows of a source apart from all its rows."""
    places = [f"{row.part}:{row.place}" for row in rows.bad]
    places += ["unlabelled"] if rows.unlabelled else []
    return ("without", hashlib.sha256(" ".join(places).encode()).hexdigest()) if places else ()


def _check(options: DataOptions, tokenizer: Any, positions: int, labels: Sequence[str] | None) -> Task:
    """Everything that can be known to be wrong before a file is opened."""
    if options.task not in TASKS:
        raise InputError(f"--data.task={options.task}: no such task{nearest(options.task, TASKS)}")
    task = TASKS[options.task]
    if options.max_length > positions:
        raise InputError(
            f"--data.max_length={options.max_length}: the model has {positions} position embeddings, expected at most "
            f"{positions}"
        )
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise InputError(f"{type(tokenizer).__name__} is not a fast tokenizer, expected one with a tokenizer.json")
    pair = bool(options.text_pair or (not options.text and task.layouts[0].text_pair))
    special = tokenizer.num_special_tokens_to_add(pair=pair)
    least = special + 1 + pair
    if options.max_length < least:
        raise InputError(
            f"--data.max_length={options.max_length}: expected at least {least}, {special} special tokens and a word "
            "piece of each text"
        )
    for option in ("train_rows", "dev_rows"):
        count = getattr(options, option)
        if count is not None and count < 1:
            raise InputError(f"--data.{option}={count}: expected at least 1")
    if options.split_seed < 0:
        raise InputError(f"--data.split_seed={options.split_seed}: expected 0 or more")
    if labels is not None and task.numeric_label != (len(labels) == 0):
        model = "predicts a number" if len(labels) == 0 else f"has the labels {listed(labels)}"
        raise InputError(f"--data.task={task.name}: the model {model}, expected a model or a task that fits")
    if options.labels and (task.numeric_label or task.labels):
        reason = "predicts a number" if task.numeric_label else f"has the classes {listed(task.labels)}"
        raise InputError(f"--data.labels: got {listed(options.labels)}, but the task {task.name} {reason}")
    return task


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({100 * part / whole:.2f} %)"
