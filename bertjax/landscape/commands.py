"""The commands of landscape.py: curve, surface, rollback, draw, compare."""

import dataclasses
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import tyro
import xarray as xr

from bertjax.baselines import majority_baseline
from bertjax.landscape import plane as planes
from bertjax.landscape import rollback as rollbacks
from bertjax.landscape.directions import Ends, direction, load_ends
from bertjax.landscape.evaluate import evaluate
from bertjax.landscape.examples import EvaluationSet, evaluation_set, model_loss, only_words
from bertjax.landscape.store import check_identity, read_netcdf, write_netcdf
from bertjax.landscape.surface import grid_points, line, to_dataset
from bertjax.model.heads import HEADS
from bertjax.progress import say
from bertjax.report import draw
from bertjax.run import Run

RunFolder = Annotated[str, tyro.conf.Positional]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Common:
    """Options of every landscape."""

    run: RunFolder
    """Folder of a finished run."""
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Grid(_Common):
    """Options of curves and surfaces."""

    x: str = "between"
    """First direction: between, task:RUN2 or random[:filter|layer|none]."""
    alpha: tuple[float, float] = (-1.0, 2.0)
    """Range of α in units of the first direction; 0 and 1 are added where they lie inside."""
    points: int = 31
    """Points along α."""
    points_per_step: int | None = None
    """Points evaluated together; unset: measured once and stored."""
    block: int | None = None
    """Points per stored block; unset: measured once and stored."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve(_Grid):
    """Loss along one direction: f(α) = J(θ₀ + α·δ₁)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Surface(_Grid):
    """Loss over two directions: f(α, β) = J(θ₀ + α·δ₁ + β·δ₂)."""

    points: int = 21
    """Points along α."""
    y: str = "random"
    """Second direction, rescaled to the length of the first: task:RUN2 or random[:filter|layer|none]."""
    beta: tuple[float, float] = (-1.0, 1.0)
    """Range of β in units of the second direction; 0 and 1 are added where they lie inside."""
    beta_points: int = 21
    """Points along β."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rollback(_Common):
    """Score of the trained model with groups of layers reset to their start values."""

    groups: int = 3
    """Number of groups the layers are cut into."""
    singles: bool = True
    """Also roll back every single layer."""


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


def main(argv: Sequence[str]) -> None:
    """Runs one command of landscape.py."""
    command = tyro.extras.subcommand_cli_from_dict(
        {"curve": Curve, "surface": Surface, "rollback": Rollback, "draw": Draw, "compare": Compare},
        prog="landscape.py",
        args=list(argv),
        use_underscores=True,
    )
    if isinstance(command, Draw):
        say(*(f"figure  {figure}" for figure in draw.draw_run(Path(command.run))))
        return
    if isinstance(command, Compare):
        runs = draw.distinct_names([Path(run) for run in command.run])
        figures = draw.compare(runs, command.name, Path(command.out) / command.name)
        say(*(f"figure  {figure}" for figure in figures))
        return
    path = compute(command)
    say(f"result  {path}", *(f"figure  {figure}" for figure in draw.draw_result(path)))


def compute(command: Curve | Surface | Rollback) -> Path:
    """Computes (or continues, or finds done) a result; returns its netCDF file."""
    run = Run.open(command.run)
    kind = type(command).__name__.lower()
    path = run.folder / "landscape" / f"{command.name or kind}.nc"
    identity = _identity(run, kind, command)
    if path.exists():
        check_identity(path, json.loads(read_netcdf(path).attrs.get("identity", "{}")), identity)
        say(f"{path} is done: nothing to compute")
        return path
    ends = load_ends(run, command.head, command.seed)
    evaluation = evaluation_set(run, command.train_examples, command.dev_examples, command.batch_size, command.seed)
    attributes = {
        "kind": kind,
        "run": run.config.name,
        "head": command.head,
        "loss_name": HEADS[run.head].loss_name,
        "error_name": "error rate",
        "score_name": "accuracy",
        "identity": json.dumps(identity),
        "examples": ", ".join(f"{split} {n}" for split, n in evaluation.counts().items()),
        "majority": _majority(run),
    }
    begin = time.perf_counter()
    if isinstance(command, Rollback):
        groups = rollbacks.layer_groups(run.model.config.num_hidden_layers, command.groups, command.singles)
        say(f"rollback of {len(groups)} groups over {attributes['examples']} examples -> {path}")
        dataset = rollbacks.rollback(ends, groups, evaluation, attributes)
    else:
        dataset = _grid(command, ends, evaluation, attributes, path, identity)
    dataset["example_row"] = ("example", evaluation.row)
    dataset.attrs["seconds"] = round(time.perf_counter() - begin, 2)
    write_netcdf(dataset, path)
    shutil.rmtree(_store(path), ignore_errors=True)
    return path


def _grid(
    command: Curve | Surface,
    ends: Ends,
    evaluation: EvaluationSet,
    attributes: dict[str, Any],
    path: Path,
    identity: dict[str, Any],
) -> xr.Dataset:
    axes = {"alpha": line(*command.alpha, command.points)}
    first, words = direction(command.x, ends)
    directions, length = [first], planes.norm(first)
    attributes |= {"direction_x": words, "norm_x": length}
    if isinstance(command, Surface):
        axes["beta"] = line(*command.beta, command.beta_points)
        second, words = direction(command.y, ends)
        own = planes.norm(second)
        directions.append(planes.rescale(second, length))
        attributes |= {
            "direction_y": words,
            "norm_y": length,
            "norm_y_before_rescaling": own,
            "cosine": planes.cosine(first, second),
        }
    plane = planes.make_plane(ends.origin(), directions)
    points = grid_points(axes)
    say(
        f"{attributes['kind']} of {' x '.join(str(len(a)) for a in axes.values())} = {len(points)} points over "
        f"{attributes['examples']} examples on {jax.device_count()} device(s) -> {path}"
    )
    values = evaluate(
        model_loss(ends.run.model, ends.run.head, evaluation.words),
        only_words(plane, evaluation.words),
        points,
        evaluation.examples,
        store=_store(path),
        identity=identity,
        what=attributes["kind"],
        points_per_step=command.points_per_step,
        block=command.block,
    )
    return to_dataset(values, axes, evaluation.split, attributes)


def _identity(run: Run, kind: str, command: Any) -> dict[str, Any]:
    options = {
        k: v for k, v in dataclasses.asdict(command).items() if k not in ("run", "name", "points_per_step", "block")
    }
    return {"kind": kind, **options, "parameters": run.info["parameters"], "data": run.info["data"]}


def _majority(run: Run) -> float:
    """Accuracy of always answering the most frequent training label; NaN for regression."""
    splits = run.splits
    return majority_baseline(splits.train.labels, splits.dev.labels) if run.labels else float("nan")


def _store(path: Path) -> Path:
    return path.with_suffix(".zarr")
