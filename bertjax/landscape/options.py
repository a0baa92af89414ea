"""Options of the commands of landscape.py; `bertjax.landscape.commands` runs them."""

import dataclasses
from typing import Annotated, Literal

import tyro

from bertjax.landscape.folders import Elsewhere

RunFolder = Annotated[str, tyro.conf.Positional]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Common:
    """Options of every landscape."""

    run: RunFolder = ""
    """Folder of a finished run; without it, --start, --end, --data and --out."""
    name: str = ""
    """Name of the result (default: the name of the command); it becomes RUN/landscape/NAME.nc."""
    train_examples: int = 512
    """Training rows at every point, drawn once; 0: none."""
    dev_examples: int = 512
    """Dev rows at every point, drawn once; 0: none."""
    head: Literal["fixed", "move"] = "fixed"
    """fixed: the head keeps its trained values. move: it moves like the rest."""
    batch_size: int = 32
    """Rows per batch on the device."""
    seed: int = 0
    """Seed of the rows and of random directions."""
    dry_run: bool = False
    """Say what it would cost, from a few timed points; nothing is written but the token cache."""
    checkpoints: tyro.conf.OmitArgPrefixes[Elsewhere] = dataclasses.field(default_factory=Elsewhere)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid(Common):
    """Options of curves and surfaces."""

    x: str = "between"
    """First direction: between, task:RUN2 or random[:filter|layer|none]."""
    alpha: tuple[float, float] = (-1.0, 2.0)
    """Range of α in units of the first direction; 0 and 1 are added where they lie inside."""
    points: int = 31
    """Points along α, evenly spaced; 0 and 1 come on top where they are not among them."""
    points_per_step: int | None = None
    """Points evaluated together; unset: measured once and stored."""
    block: int | None = None
    """Points per stored block; unset: measured once and stored."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Second(Common):
    """Options of what has a plane."""

    y: str = "random"
    """Second direction: task:RUN2 or random[:filter|layer|none]."""
    y_scale: Literal["auto", "own", "first"] = "auto"
    """Length of the second direction. own: as it is. first: rescaled to that of the first. auto: own where it has a
    meaning of its own (random, normalized to the parameters), else first (task, as in Hao et al.)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve(Grid):
    """Loss along one direction: f(α) = J(θ₀ + α·δ₁)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Surface(Grid, Second):
    """Loss over two directions: f(α, β) = J(θ₀ + α·δ₁ + β·δ₂)."""

    points: int = 25
    """Points along α, evenly spaced; 0 and 1 come on top where they are not among them."""
    beta: tuple[float, float] = (-1.0, 1.0)
    """Range of β in units of the second direction; 0 and 1 are added where they lie inside."""
    beta_points: int = 21
    """Points along β, likewise."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rollback(Common):
    """Score of the trained model with groups of layers reset to their start values."""

    groups: int | None = None
    """Number of groups the layers are cut into; unset: 3, or the number of layers if that is less."""
    singles: bool = True
    """Also roll back every single layer."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trajectory(Second):
    """Where the snapshots of the training lie in a plane and how far from it, and their losses."""

    x: str = "between"
    """First direction: between, task:RUN2 or random[:filter|layer|none]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Draw:
    """Draw all stored results of a run again; needs no model."""

    run: RunFolder
    """Folder of a run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compare:
    """Draw one result of several runs on one scale."""

    run: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Folders of runs."""
    name: str = "curve"
    """Name of the result, a curve or a surface, that every run has."""
    out: str = "runs/compare"
    """Folder of the figures."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Write RUN/report.html: one page of all that a run has, which needs no other file and no network."""

    run: RunFolder
    """Folder of a run."""
