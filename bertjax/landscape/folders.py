"""Checkpoints trained elsewhere as the subject of a landscape: Hugging Face folders, and a Trainer's output folder."""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import weights
from bertjax.baselines import majority_baseline
from bertjax.config import DataOptions
from bertjax.data.batches import bucket_lengths
from bertjax.data.features import Features, load_splits
from bertjax.data.records import Reading
from bertjax.data.sources import open_source
from bertjax.errors import InputError, option_names
from bertjax.landscape.model_folders import ModelFolder, checkpoints, end_folder
from bertjax.landscape.subject import Snapshot
from bertjax.model.config import read_config
from bertjax.model.heads import TaskModel
from bertjax.progress import say
from bertjax.tree import unflatten

Tree = Any

MAX_LENGTH = 128
READING = (
    "text",
    "text_pair",
    "label",
    "labels",
    "label_separator",
    "max_length",
    "columns",
    "encoding",
    "encoding_errors",
    "on_bad_row",
)
TOKENIZER = ("tokenizer.json", "vocab.txt")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """Checkpoints that were not trained by bertjax; give these instead of RUN."""

    start: str = ""
    """Model before training: a Hugging Face folder, package://MODULE/folder or hub name; a bare encoder will do."""
    end: str = ""
    """Model after training, with its classifier; or a Trainer's output folder: its checkpoint-* folders are the
    trajectory."""
    other: str = ""
    """Model (or run) of a second task for --y task, trained from the same start."""
    data: str = ""
    """Labelled rows to evaluate on; their number is --train_examples."""
    dev: str = ""
    """A second file of rows, shown apart; their number is --dev_examples."""
    text: str = "text"
    """Column with the text."""
    text_pair: str = ""
    """Column with the second text of a pair."""
    label: str = "label"
    """Column with the label."""
    labels: tuple[str, ...] = ()
    """The file's label names in the order of the model's classes; unset: matched by name to config.json's id2label."""
    label_separator: str = ","
    """What stands between the classes of a row where a multi-label model's are in one text."""
    tokenizer: str = ""
    """Folder with the tokenizer's files; unset: that of the end, or of the start, whichever has them."""
    max_length: int | None = None
    """Longest sequence in word pieces; unset: 128, or what the model can take."""
    columns: tuple[str, ...] = ()
    """Column names of a file without a header line."""
    encoding: str = "utf-8"
    """Text encoding of the file."""
    encoding_errors: Literal["strict", "replace"] = "strict"
    """strict: undecodable bytes are an error that names the line. replace: they become U+FFFD."""
    on_bad_row: Literal["error", "skip"] = "error"
    """error: a row that cannot be used ends with its file and line. skip: it is left out and counted."""
    out: str = ""
    """Folder of the results."""


@dataclasses.dataclass(frozen=True)
class FolderSubject:
    """Two model folders, the checkpoints between them, and a file of rows."""

    options: Elsewhere
    cache: bool = True
    """Whether tokenized rows are kept for the next time."""

    def __post_init__(self) -> None:
        for name, what in (("start", "model folder"), ("end", "model folder"), ("data", "file"), ("out", "folder")):
            if not getattr(self.options, name):
                raise InputError(f"expected RUN, or --start, --end, --data and --out; --{name} ({what}) is not given")

    @property
    def name(self) -> str:
        """Name of the results' folder."""
        return self.folder.resolve().name

    @property
    def folder(self) -> Path:
        """Where the results go."""
        return Path(self.options.out).expanduser()

    @property
    def other(self) -> str:
        """The second task's model."""
        return self.options.other

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """Hashes of weights and rows, and how the rows are read."""
        o = self.options
        files = {"data": o.data} | ({"dev": o.dev} if o.dev else {})
        reading = {name: getattr(o, name) for name in READING}
        return {
            "parameters": {"start": self._first.digest, "end": self._last.digest},
            "data": {
                name: open_source(path, Reading(o.columns, o.encoding, o.encoding_errors)).fingerprint
                for name, path in files.items()
            },
            "reading": reading | {"tokenizer": _digest(self._tokenizer)},
        }

    @functools.cached_property
    def _first(self) -> ModelFolder:
        return ModelFolder(weights.model_folder(self.options.start))

    @functools.cached_property
    def _root(self) -> Path:
        return weights.model_folder(self.options.end)

    @functools.cached_property
    def _last(self) -> ModelFolder:
        return ModelFolder(end_folder(self._root))

    @functools.cached_property
    def _tokenizer(self) -> Path:
        """The folder with the tokenizer's files."""
        if self.options.tokenizer:
            return weights.model_folder(self.options.tokenizer)
        folders = (self._last.folder, self._root, self._first.folder)
        found = next((folder for folder in folders if any((folder / name).is_file() for name in TOKENIZER)), None)
        if found is None:
            raise InputError(
                f"none of {', '.join(map(str, folders))} has tokenizer files ({' or '.join(TOKENIZER)}): name a folder "
                "that has them with --tokenizer"
            )
        return found

    @functools.cached_property
    def _end(self) -> dict[str, np.ndarray]:
        params = self._last.load()
        lacking = [path for path in ("head/kernel", "head/bias", "encoder/pooler/kernel") if path not in params]
        if lacking:
            raise InputError(
                f"{self._last.folder} has no {' and no '.join(lacking)}: expected a BertForSequenceClassification with "
                "its classifier as --end"
            )
        return params

    @functools.cached_property
    def _start(self) -> dict[str, np.ndarray]:
        """What the start has of the end's parameters."""
        found = self._first.load()
        kept = {path: found[path] for path, x in self._end.items() if path in found and found[path].shape == x.shape}
        wrong = [path for path in self._end if path.startswith("encoder/") and path in found and path not in kept]
        wrong += [path for path in found if path.startswith("encoder/") and path not in self._end]
        if wrong:
            shapes = [f"{x[wrong[0]].shape}" if wrong[0] in x else "absent" for x in (found, self._end)]
            raise InputError(
                f"{self._first.folder} and {self._last.folder} are of different architectures: {wrong[0]} is "
                f"{shapes[0]} and {shapes[1]}"
            )
        return kept

    @functools.cached_property
    def start(self) -> Tree:
        """θ₀; what the start lacks has the end's values."""
        return _on_device(self._end | self._start)

    @functools.cached_property
    def end(self) -> Tree:
        """θ₁."""
        return _on_device(self._end)

    @property
    def pretrained(self) -> bool:
        """Taken to be so."""
        return True

    @property
    def fresh(self) -> frozenset[str]:
        """What the start lacks."""
        return self.unknown

    @property
    def unknown(self) -> frozenset[str]:
        """What the start lacks: the classifier of a bare encoder."""
        return frozenset(self._end) - frozenset(self._start)

    @functools.cached_property
    def model(self) -> TaskModel:
        """The end's architecture."""
        config, _ = read_config(self._last.folder)
        return TaskModel(config, self._end["head/kernel"].shape[1])

    @functools.cached_property
    def head(self) -> str:
        """Multilabel where config.json says so, regression where the classifier has one output."""
        values = read_config(self._last.folder)[1]
        kind, outputs = values.get("problem_type"), self.model.outputs
        if kind == "regression" and outputs > 1:
            raise InputError(f"{self._last.folder}: problem_type {kind} with {outputs} outputs, expected one output")
        if kind == "multi_label_classification":
            return "multilabel"
        return "regression" if outputs == 1 else "classification"

    @functools.cached_property
    def _snapshot_folders(self) -> dict[Snapshot, ModelFolder]:
        found = {step: ModelFolder(folder) for step, folder in checkpoints(self._root).items()}
        steps = {model.digest: step for step, model in found.items()}
        first = Snapshot("start", steps.get(self._first.digest, 0))
        later = {step: model for step, model in found.items() if model.digest != self._first.digest}
        between = {Snapshot(f"checkpoint-{step}", step): model for step, model in later.items()}
        if self._last.digest not in steps:
            between[Snapshot("end", max(found, default=1))] = self._last
        return {first: self._first} | between

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """The start, the checkpoints by number, and the end where it is none of them."""
        return tuple(self._snapshot_folders)

    def params(self, snapshot: Snapshot) -> tuple[Tree, bool]:
        """A checkpoint's parameters; what it lacks has the end's values."""
        params = self._snapshot_folders[snapshot].load()
        known = {path: x for path, x in params.items() if path in self._end and x.shape == self._end[path].shape}
        lacking = [path for path in self._end if path not in known]
        if any(path not in self.unknown for path in lacking):
            raise InputError(f"{self._snapshot_folders[snapshot].folder}: {lacking[0]} is absent or of another shape")
        return _on_device(self._end | known), not lacking

    @property
    def _data(self) -> DataOptions:
        o, positions = self.options, self.model.config.max_position_embeddings
        return DataOptions(
            train=o.data,
            dev=o.dev or o.data,
            task=self.head,  # type: ignore[arg-type]
            text=o.text,
            text_pair=o.text_pair,
            label=o.label,
            label_separator=o.label_separator,
            columns=o.columns,
            encoding=o.encoding,
            encoding_errors=o.encoding_errors,
            on_bad_row=o.on_bad_row,
            max_length=o.max_length or min(MAX_LENGTH, positions),
            **({} if self.cache else {"cache": ""}),
        )

    @functools.cached_property
    def splits(self) -> dict[str, Features]:
        """Rows of --data, and of --dev."""
        given: Sequence[str] | None = self.options.labels or None
        if self.head == "regression":
            given = ()
        elif given and len(given) != self.model.outputs:
            raise InputError(f"--labels: {len(given)} names for a model of {self.model.outputs} classes")
        names = {f"data.{field.name}": field.name for field in dataclasses.fields(Elsewhere)}
        with option_names(names | {"data.train": "data"}, "training, which this command lacks"):
            found = load_splits(
                self._data,
                weights.load_tokenizer(self._tokenizer),
                positions=self.model.config.max_position_embeddings,
                labels=given,
            )
        if bad := found.bad_rows():
            say(f"left out: {len(bad):,} unusable rows, the first {bad[0]['where']}: {bad[0]['reason']}")
        features = {"data": found.train} | ({"dev": found.dev} if self.options.dev else {})
        if given is not None:
            return features
        number = np.array(self._class_numbers(found.labels), np.int32)

        def of_model(labels: np.ndarray) -> np.ndarray:
            if labels.ndim == 1:
                return number[labels]
            table = np.zeros((len(labels), self.model.outputs), labels.dtype)
            table[:, number] = labels
            return table

        return {name: dataclasses.replace(rows, labels=of_model(rows.labels)) for name, rows in features.items()}

    def _class_numbers(self, found: Sequence[str]) -> list[int]:
        """Class number of each label of the file: by name, or for LABEL_0, LABEL_1 ... by number."""
        outputs, (_, values) = self.model.outputs, read_config(self._last.folder)
        generic = [f"LABEL_{i}" for i in range(outputs)]
        stored = values.get("id2label") or dict(enumerate(generic))
        names = [str(stored[key]) for key in sorted(stored, key=int)]
        if len(names) != outputs:
            raise InputError(f"{self._last.folder}: id2label has {len(names)} names, the classifier {outputs} outputs")
        if all(name in names for name in found):
            return [names.index(name) for name in found]
        numbers = {str(i): i for i in range(outputs)}
        if names == generic and all(name in numbers for name in found):
            say(f"labels  {', '.join(found)} of {self.options.data} are taken as classes of the model by their number")
            return [numbers[name] for name in found]
        unfit = next(name for name in found if name not in names)
        raise InputError(
            f"{self.options.data}: label {unfit!r} is none of the model's: {', '.join(names)}; if they mean the same, "
            f"give the file's labels in the model's order: --labels {' '.join(found)}"
        )

    @property
    def buckets(self) -> tuple[int, ...]:
        """The usual lengths."""
        return bucket_lengths(self._data)

    @property
    def packed(self) -> bool:
        """Never."""
        return False

    @property
    def majority(self) -> float:
        """The most frequent label of --data, on --dev or on --data itself."""
        if self.head != "classification":
            return float("nan")
        rows = self.splits
        return majority_baseline(rows["data"].labels, rows.get("dev", rows["data"]).labels)


def _digest(folder: Path) -> str:
    """SHA-256 over the tokenizer's files."""
    digest = hashlib.sha256()
    for file in (folder / name for name in (*TOKENIZER, "tokenizer_config.json")):
        if file.is_file():
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def _on_device(flat: dict[str, np.ndarray]) -> Tree:
    device = jax.devices()[0]
    return unflatten({path: jax.device_put(jnp.asarray(x), device) for path, x in flat.items()})
