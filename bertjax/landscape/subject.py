"""What a landscape is drawn of: a model, its parameters before and after training, and the rows it is evaluated on.

`Subject` is all that the landscape code knows. `RunSubject` reads a run of bertjax; checkpoints that were trained
elsewhere are in folders.py. Nothing is loaded before it is asked for: a finished result needs neither model nor data.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from bertjax.baselines import majority_baseline
from bertjax.data.batches import bucket_lengths
from bertjax.data.features import Features
from bertjax.model.heads import TaskModel
from bertjax.run import Run

Tree = Any


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """Parameters at one moment of the training."""

    name: str
    step: int


class Subject(Protocol):
    """A trained model and where it came from."""

    @property
    def name(self) -> str:
        """Name in figures."""

    @property
    def folder(self) -> Path:
        """Results go to its subfolders landscape/ and figures/."""

    @property
    def other(self) -> str:
        """Run or model folder of a second task; empty: none."""

    @property
    def identity(self) -> dict[str, Any]:
        """Hashes of parameters and data: what results belong to."""

    @property
    def model(self) -> TaskModel:
        """The model."""

    @property
    def head(self) -> str:
        """Name of the head, a key of HEADS."""

    @property
    def start(self) -> Tree:
        """θ₀, the parameters before training."""

    @property
    def end(self) -> Tree:
        """θ₁, the parameters after training."""

    @property
    def pretrained(self) -> bool:
        """Whether the encoder was pre-trained."""

    @property
    def fresh(self) -> frozenset[str]:
        """Paths of the parameters that started from random values."""

    @property
    def unknown(self) -> frozenset[str]:
        """Paths whose start values are not known; `start` holds their end values."""

    @property
    def snapshots(self) -> Sequence[Snapshot]:
        """What lies between start and end, both included, by step."""

    def params(self, snapshot: Snapshot) -> tuple[Tree, bool]:
        """The parameters of a snapshot, and whether it has a head of its own (else it is given that of the end)."""

    @property
    def splits(self) -> Mapping[str, Features]:
        """Rows to evaluate on."""

    @property
    def buckets(self) -> tuple[int, ...]:
        """Lengths to which batches are padded."""

    @property
    def packed(self) -> bool:
        """Whether several rows are packed into one."""

    @property
    def majority(self) -> float:
        """Accuracy of always answering the most frequent label; NaN where a row has not one label."""


@dataclasses.dataclass(frozen=True)
class RunSubject:
    """A finished run of bertjax."""

    run: Run
    other: str = ""

    @property
    def name(self) -> str:
        """The run's name."""
        return self.run.config.name

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.run.folder

    @property
    def identity(self) -> dict[str, Any]:
        """Hashes that the run wrote down."""
        if self.run.info["status"] != "done":
            self.run.ends()  # raises
        return {"parameters": self.run.info["parameters"], "data": self.run.info["data"]}

    @property
    def model(self) -> TaskModel:
        """The run's model."""
        return self.run.model

    @property
    def head(self) -> str:
        """The run's head."""
        return self.run.head

    @functools.cached_property
    def start(self) -> Tree:
        """The first snapshot."""
        return self.run.params(self.run.ends()[0])

    @functools.cached_property
    def end(self) -> Tree:
        """The last snapshot."""
        return self.run.params(self.run.ends()[1])

    @property
    def pretrained(self) -> bool:
        """Whether the run read weights."""
        return self.run.config.model.init == "pretrained"

    @property
    def fresh(self) -> frozenset[str]:
        """What the run drew at random."""
        return frozenset(self.run.info["fresh"])

    @property
    def unknown(self) -> frozenset[str]:
        """Nothing: the first snapshot has all parameters."""
        return frozenset()

    @functools.cached_property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """The run's snapshots."""
        self.run.ends()
        return tuple(Snapshot(f"step {step}", step) for step in self.run.snapshot_steps)

    def params(self, snapshot: Snapshot) -> tuple[Tree, bool]:
        """The snapshot's parameters, its own head among them."""
        return self.run.params(snapshot.step), True

    @property
    def splits(self) -> dict[str, Features]:
        """Training and dev rows of the run."""
        return {"train": self.run.splits.train, "dev": self.run.splits.dev}

    @property
    def buckets(self) -> tuple[int, ...]:
        """As in training."""
        return bucket_lengths(self.run.config.data)

    @property
    def packed(self) -> bool:
        """As in the run's evaluations."""
        return self.run.config.data.packing != "none"

    @property
    def majority(self) -> float:
        """The most frequent training label on the dev rows."""
        if self.run.head != "classification":
            return float("nan")
        return majority_baseline(self.run.splits.train.labels, self.run.splits.dev.labels)
