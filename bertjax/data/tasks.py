"""What is predicted, and which columns the published forms of a data set have: one row of the table for each task.

`classification`, `regression` and `multilabel` (any number of classes a row) take any file. The others are named data
sets (GLUE: Wang et al. 2019, arXiv 1804.07461): their columns are found by themselves in TFDS, in Parquet and JSON
lines as the Hugging Face hub has them, and in the original tab-separated files.
"""

import dataclasses
from collections.abc import Collection
from typing import Any, Literal

from bertjax.errors import InputError


@dataclasses.dataclass(frozen=True)
class Layout:
    """The columns of one form of a data set."""

    text: str
    text_pair: str = ""
    label: str = "label"
    header: tuple[str, ...] = ()
    """Column names, where the file has no header line."""

    def fits(self, columns: Collection[str], labelled: bool) -> bool:
        """Whether a table with these columns has what this form needs."""
        needed = [self.text, *([self.text_pair] if self.text_pair else []), *([self.label] if labelled else [])]
        return all(name in columns for name in needed)

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.text, self.text_pair, self.label)))


@dataclasses.dataclass(frozen=True)
class Submission:
    """A file of predictions for the GLUE server: tab-separated index and prediction."""

    file: str
    answer: Literal["name", "number", "score"]
    """name of the class, its number, or the score cut to 0-5."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Hyper-parameters to begin with."""

    learning_rate: float = 5e-5
    epochs: float = 3.0
    batch_size: int = 32
    max_length: int = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A kind of prediction, or a data set by its name."""

    name: str
    """Name in `TASKS` and in --data.task."""
    head: str = "classification"
    """Head of the model."""
    metrics: tuple[str, ...] = ("accuracy", "f1_macro", "matthews")
    """Names of bertjax.metrics.METRICS, in the order in which they are shown."""
    headline: str = "accuracy"
    """The metric that stands for the result where there is room for one number."""
    higher_is_better: bool = True
    """Whether a larger headline metric is the better one."""
    layouts: tuple[Layout, ...] = (Layout("text"),)
    """Known forms of the data set; the first whose columns are there is read."""
    labels: tuple[str, ...] = ()
    """Names of the classes in the order of their numbers; empty: the data decide."""
    unlabelled: tuple[str, ...] = ()
    """Labels that say that a row has none; such rows are left out."""
    source: str = ""
    """Address of the data set."""
    dev_split: str = ""
    """Split of the data set to evaluate on; empty: rows are held out of the training rows."""
    submission: Submission | None = None
    """How predictions are handed in."""
    settings: Settings = Settings()
    """Hyper-parameters to begin with."""

    @property
    def numeric_label(self) -> bool:
        """True: a label is a finite number. False: a label is the name of a class."""
        return self.head == "regression"

    @property
    def several_labels(self) -> bool:
        """True: a row has any number of classes."""
        return self.head == "multilabel"


_TWO_SENTENCES = Layout("sentence1", "sentence2")
_PREMISE = Layout("premise", "hypothesis")
_CORRELATIONS: dict[str, Any] = {
    "head": "regression",
    "metrics": ("pearson", "spearman", "mse"),
    "headline": "spearman",
}
_INFERENCE = ("entailment", "neutral", "contradiction")
_SENTIMENT = ("negative", "positive")
_MRPC_COLUMNS = ("#1 String", "#2 String", "Quality")
_F1: dict[str, Any] = {"metrics": ("f1", "accuracy", "matthews"), "headline": "f1"}

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(name="classification"),
        Task(name="regression", **_CORRELATIONS),
        Task(
            name="multilabel",
            head="multilabel",
            metrics=("f1_micro", "f1_macro", "exact"),
            headline="f1_micro",
            layouts=(Layout("text", label="labels"),),
        ),
        Task(
            name="cola",
            metrics=("matthews", "accuracy", "f1"),
            headline="matthews",
            layouts=(Layout("sentence"), Layout("sentence", header=("source", "label", "mark", "sentence"))),
            labels=("unacceptable", "acceptable"),
            source="tfds://glue/cola",
            dev_split="validation",
            submission=Submission("CoLA.tsv", "number"),
            settings=Settings(max_length=64),
        ),
        Task(
            name="sst2",
            metrics=("accuracy", "f1", "matthews"),
            layouts=(Layout("sentence"), Layout("text")),
            labels=_SENTIMENT,
            source="tfds://glue/sst2",
            dev_split="validation",
            submission=Submission("SST-2.tsv", "number"),
            settings=Settings(max_length=64),
        ),
        Task(
            name="mrpc",
            **_F1,
            layouts=(_TWO_SENTENCES, Layout(*_MRPC_COLUMNS), Layout("text1", "text2")),
            labels=("not_equivalent", "equivalent"),
            source="tfds://glue/mrpc",
            dev_split="validation",
            submission=Submission("MRPC.tsv", "number"),
        ),
        Task(
            name="qqp",
            **_F1,
            layouts=(Layout("question1", "question2"), Layout("question1", "question2", "is_duplicate")),
            labels=("not_duplicate", "duplicate"),
            source="tfds://glue/qqp",
            dev_split="validation",
            submission=Submission("QQP.tsv", "number"),
        ),
        Task(
            name="stsb",
            **_CORRELATIONS,
            layouts=(_TWO_SENTENCES, Layout("sentence1", "sentence2", "score")),
            source="tfds://glue/stsb",
            dev_split="validation",
            submission=Submission("STS-B.tsv", "score"),
        ),
        Task(
            name="mnli",
            metrics=("accuracy", "f1_macro"),
            layouts=(
                _PREMISE,
                Layout("sentence1", "sentence2", "gold_label"),
                _TWO_SENTENCES,
            ),
            labels=_INFERENCE,
            unlabelled=("-",),
            source="tfds://glue/mnli",
            dev_split="validation_matched",
            submission=Submission("MNLI-m.tsv", "name"),
        ),
        Task(
            name="qnli",
            metrics=("accuracy", "f1", "matthews"),
            layouts=(Layout("question", "sentence"), Layout("text_a", "text_b")),
            labels=("entailment", "not_entailment"),
            source="tfds://glue/qnli",
            dev_split="validation",
            submission=Submission("QNLI.tsv", "name"),
        ),
        Task(
            name="rte",
            metrics=("accuracy", "f1", "matthews"),
            layouts=(_TWO_SENTENCES,),
            labels=("entailment", "not_entailment"),
            source="tfds://glue/rte",
            dev_split="validation",
            submission=Submission("RTE.tsv", "name"),
        ),
        Task(
            name="wnli",
            metrics=("accuracy", "f1", "matthews"),
            layouts=(_TWO_SENTENCES,),
            labels=("not_entailment", "entailment"),
            source="tfds://glue/wnli",
            dev_split="validation",
            submission=Submission("WNLI.tsv", "number"),
        ),
        Task(
            name="ax",
            metrics=("matthews", "accuracy"),
            headline="matthews",
            layouts=(_PREMISE, _TWO_SENTENCES),
            labels=_INFERENCE,
            source="tfds://glue/ax",
            submission=Submission("AX.tsv", "name"),
        ),
        Task(
            name="snli",
            metrics=("accuracy", "f1_macro"),
            layouts=(
                _PREMISE,
                Layout("sentence1", "sentence2", "gold_label"),
                Layout("text_a", "text_b"),
                Layout("sentence1", "sentence2", header=("sentence1", "sentence2", "label")),
            ),
            labels=_INFERENCE,
            unlabelled=("-", "-1"),
            source="tfds://snli",
            dev_split="validation",
            settings=Settings(max_length=64),
        ),
        Task(
            name="trec",
            metrics=("accuracy", "f1_macro"),
            layouts=(Layout("text", label="coarse_label"), Layout("text", label="label-coarse"), Layout("text")),
            labels=("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM"),
            source="tfds://trec",
            dev_split="test",
            settings=Settings(max_length=64),
        ),
        Task(
            name="subj",
            metrics=("accuracy", "f1_macro"),
            layouts=(Layout("text"), Layout("sentence")),
            labels=("objective", "subjective"),
            settings=Settings(max_length=64),
        ),
        Task(
            name="mr",
            metrics=("accuracy", "f1_macro"),
            layouts=(Layout("text"), Layout("sentence")),
            labels=_SENTIMENT,
            settings=Settings(max_length=64),
        ),
        Task(
            name="cr",
            metrics=("accuracy", "f1_macro"),
            layouts=(Layout("text"), Layout("sentence")),
            labels=_SENTIMENT,
            settings=Settings(max_length=64),
        ),
        Task(
            name="sst5",
            metrics=("accuracy", "f1_macro"),
            layouts=(Layout("text"), Layout("sentence")),
            labels=("very negative", "negative", "neutral", "positive", "very positive"),
            settings=Settings(max_length=64),
        ),
    )
}
"""Task name -> task."""


@dataclasses.dataclass(frozen=True)
class Fields:
    """The columns that are read."""

    text: str
    text_pair: str
    label: str


def given_fields(task: Task, text: str, text_pair: str, label: str) -> Fields | None:
    """The columns where the user named them, or where the task has one form; None: the source decides."""
    first = task.layouts[0]
    if text or len(task.layouts) == 1:
        pair = text_pair or ("" if text else first.text_pair)
        return Fields(text or first.text, pair, label or first.label)
    return None


def find_layout(task: Task, columns: Collection[str], labelled: bool, where: str, label: str = "") -> Layout:
    """The first form of the task that a table with these columns has, or that a file without a header line would have.

    Args:
      task: has the forms.
      columns: column names; of a file without a header line the cells of its first line.
      labelled: whether the label is needed.
      where: the file, for messages.
      label: column of the label, if it is another than the form's.

    Raises:
      InputError: none fits.
    """
    layouts = [dataclasses.replace(layout, label=label or layout.label) for layout in task.layouts]
    for layout in layouts:
        if not layout.header and layout.fits(columns, labelled):
            return layout
    for layout in layouts:
        if len(layout.header) == len(columns):
            return layout
    forms = "; or ".join(f"{layout}" + " (no header line)" * bool(layout.header) for layout in layouts)
    raise InputError(
        f"{where}: has the columns {', '.join(columns)}, expected those of the task {task.name}: {forms}; others are "
        "named by --data.text, --data.text_pair and --data.label"
    )
