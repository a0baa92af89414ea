"""The commands of landscape.py: curve, surface, rollback, trajectory, draw, compare, report."""

import dataclasses
import json
import re
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
import xarray as xr

from bertjax import stopping
from bertjax.config import check_ranges
from bertjax.errors import InputError
from bertjax.landscape import evaluate, rollback, trajectory
from bertjax.landscape import plane as planes
from bertjax.landscape.blocks import GridStore, Prepared
from bertjax.landscape.directions import Ends, direction, leads_to, load_ends, other_digest, scale_of
from bertjax.landscape.examples import EvaluationSet, evaluation_set, model_loss, only_words
from bertjax.landscape.folders import Elsewhere, FolderSubject
from bertjax.landscape.options import Common, Compare, Curve, Draw, Grid, Report, Rollback, Second, Surface, Trajectory
from bertjax.landscape.store import START, check_identity, read_netcdf, to_dataset, write_netcdf
from bertjax.landscape.subject import RunSubject, Subject
from bertjax.landscape.surface import grid_points, line
from bertjax.locks import exclusive
from bertjax.model.heads import HEADS
from bertjax.progress import say
from bertjax.report import draw
from bertjax.report.page import write_page
from bertjax.run import Run
from bertjax.tree import flatten

__all__ = ["Compare", "Curve", "Draw", "Rollback", "Surface", "Trajectory", "compute", "main"]

# Option -> smallest and largest value (None: any finite number).
RANGES: dict[str, tuple[float, float | None]] = {
    "train_examples": (0, None),
    "dev_examples": (0, None),
    "batch_size": (1, None),
    "seed": (0, 2**32 - 1),
    "points": (1, None),
    "beta_points": (1, None),
    "points_per_step": (1, None),
    "block": (1, None),
    "groups": (1, None),
}
# Options that do not decide the values of a result, or stand in its identity under another name.
_NOT_IDENTITY = ("run", "name", "points_per_step", "block", "dry_run", "checkpoints")


@dataclasses.dataclass(frozen=True)
class Work:
    """What a command computes."""

    what: str
    """In words, with the number of points."""
    unit: str
    """What a point is called."""
    prepare: Callable[[GridStore | None], Prepared]
    """Compiles the program; a store that has begun decides the sizes of blocks."""
    arrange: Callable[[dict[str, np.ndarray]], xr.Dataset]
    """Makes the dataset of all values."""


def main(argv: Sequence[str]) -> None:
    """Runs one command of landscape.py."""
    kinds = {"curve": Curve, "surface": Surface, "rollback": Rollback, "trajectory": Trajectory}
    command = tyro.extras.subcommand_cli_from_dict(
        kinds | {"draw": Draw, "compare": Compare, "report": Report},
        prog="landscape.py",
        args=list(argv),
        use_underscores=True,
    )
    if isinstance(command, Draw):
        figures = draw.draw_run(Path(command.run).expanduser())
    elif isinstance(command, Compare):
        runs = draw.distinct_names([Path(run).expanduser() for run in command.run])
        figures = draw.compare(runs, command.name, Path(command.out).expanduser() / command.name)
    elif isinstance(command, Report):
        say(f"page    {write_page(Path(command.run).expanduser())}")
        return
    else:
        path = compute(command)
        if command.dry_run:
            return
        say(f"result  {path}")
        figures = draw.draw_result(path)
    say(*(f"figure  {figure}" for figure in figures))


def compute(command: Curve | Surface | Rollback | Trajectory) -> Path:
    """Computes (or continues, or finds done) a result; returns its netCDF file. With dry_run nothing is written.

    Raises:
      InputError: the options do not fit the subject, a stored result is of another computation, or another process is
        working on it.
      Interrupted: a signal came; finished blocks are kept, and the same command continues.
    """
    check_ranges("", command, {name: limits for name, limits in RANGES.items() if hasattr(command, name)})
    if command.name and not re.fullmatch(r"[^./\\\s][^/\\]*", command.name):
        raise InputError(f"--name={command.name!r}: expected a name without / and \\ that does not begin with a dot")
    subject = open_subject(command)
    kind = type(command).__name__.lower()
    path = subject.folder / "landscape" / f"{command.name or kind}.nc"
    identity = _identity(subject, kind, command)
    lock, store, what = path.with_name(f".{path.stem}.lock"), path.with_suffix(".zarr"), str(path)
    if _is_done(path, identity):
        if store.exists():  # of a process that was killed between the last two lines of `_run`
            with exclusive(lock, what):
                shutil.rmtree(store)
        return path
    if command.dry_run:
        work, lines = _work(command, subject, kind, identity, path)
        begin = time.perf_counter()
        prepared = work.prepare(None)
        compiling, seconds = time.perf_counter() - begin, prepared.seconds()
        each = _duration(seconds / prepared.count)
        say(
            *lines,
            _memory(prepared),
            f"time    about {_duration(seconds + compiling)}: {each} a {work.unit}, {_duration(compiling)} compiling",
            "dry run: nothing was written but the token cache",
        )
        return path
    if lock.exists():
        with exclusive(lock, what):  # refused at once, before anything is loaded
            pass
    with stopping.graceful():
        work, lines = _work(command, subject, kind, identity, path)
        # Locked only now: wrong input makes no folder.
        with exclusive(lock, what):
            if not _is_done(path, identity):
                _run(work, lines, kind, identity, path, store)
    return path


def _is_done(path: Path, identity: dict[str, Any]) -> bool:
    """Whether the result is there; InputError if it is damaged or of another computation."""
    if not path.exists():
        return False
    check_identity(path, json.loads(read_netcdf(path).attrs.get("identity", "{}")), identity)
    say(f"{path} is done: nothing to compute")
    return True


def _run(work: Work, lines: list[str], kind: str, identity: dict[str, Any], path: Path, store: Path) -> None:
    """Computes and writes a result, from finished blocks if there are any; the lock is held."""
    for leftover in path.parent.glob(f".{path.name}.tmp-*"):  # of a process that was killed
        leftover.unlink()
    begin = time.perf_counter()
    kept = GridStore.resume(store, identity)
    say(*lines)
    stopping.check()
    prepared = work.prepare(kept)
    say(_memory(prepared))
    stopping.check()
    if kept is None:
        kept = GridStore.create(store, identity, prepared.count, prepared.block, prepared.points_per_step)
    dataset = work.arrange(prepared.run(kept, what=kind, unit=work.unit))
    dataset.attrs["seconds"] = round(time.perf_counter() - begin, 2)
    write_netcdf(dataset, path)
    shutil.rmtree(store)


def open_subject(command: Common) -> Subject:
    """What the command is about: a run, or checkpoints trained elsewhere."""
    elsewhere = command.checkpoints
    if not command.run:
        return FolderSubject(elsewhere, cache=not command.dry_run)
    given = [field.name for field in dataclasses.fields(Elsewhere) if getattr(elsewhere, field.name) != field.default]
    if given and given != ["other"]:
        raise InputError(f"--{given[0]} is for checkpoints trained elsewhere: give it instead of RUN ({command.run})")
    return RunSubject(Run.open(command.run), elsewhere.other)


def _identity(subject: Subject, kind: str, command: Common) -> dict[str, Any]:
    """What must be equal for a stored result, or a part of one, to be used."""
    options = {k: v for k, v in dataclasses.asdict(command).items() if k not in _NOT_IDENTITY}
    if isinstance(command, Second):
        options["y_scale"] = scale_of(command.y, command.y_scale)
    if isinstance(command, Trajectory):
        options["snapshots"] = [snapshot.name for snapshot in subject.snapshots]
    for axis in ("x", "y"):
        if axis in options and (digest := other_digest(options[axis], subject)):
            options[f"{axis}_end"] = digest
    return {"kind": kind, **options, **subject.identity}


def _work(command: Common, subject: Subject, kind: str, identity: dict[str, Any], path: Path) -> tuple[Work, list[str]]:
    """What the command computes, and lines that say it."""
    ends = load_ends(subject, command.head, command.seed)
    evaluation = evaluation_set(subject, command.train_examples, command.dev_examples, command.batch_size, command.seed)
    attributes = {
        "kind": kind,
        "run": subject.name,
        "head": command.head,
        "loss_name": HEADS[subject.head].loss_name,
        "error_name": "error rate",
        "score_name": "accuracy",
        "identity": json.dumps(identity),
        "examples": ", ".join(f"{split} {n}" for split, n in evaluation.counts().items()),
        "majority": subject.majority,
    }
    if isinstance(command, Rollback):
        work = _rollback(command, ends, evaluation, attributes)
    elif isinstance(command, Trajectory):
        work = _trajectory(command, ends, evaluation, attributes, identity)
    else:
        work = _grid(command, ends, evaluation, attributes, identity)

    def arrange(values: dict[str, np.ndarray]) -> xr.Dataset:
        return work.arrange(values).assign(example_row=("example", evaluation.row))

    leaves = {name: x.size for name, x in flatten(ends.end).items()}
    moving = sum(size for name, size in leaves.items() if ends.moves(name))
    lines = [
        f"{kind} of {work.what} over {attributes['examples']} examples -> {path}",
        f"model   {sum(leaves.values()):,} parameters, {moving:,} of them move",
    ]
    return dataclasses.replace(work, arrange=arrange), lines


def _directions(
    command: Grid | Trajectory, ends: Ends, attributes: dict[str, Any], identity: dict[str, Any]
) -> list[Any]:
    """The directions of a curve, surface or trajectory; what is known of them goes into the attributes."""
    first, words = direction(command.x, ends, "x")
    length = planes.norm(first)
    marks = {START: (0.0, 0.0)} | {name: (1.0, 0.0) for name in [leads_to(command.x)] if name}
    attributes |= {"direction_x": words, "norm_x": length, "marks": json.dumps(marks)}
    if not isinstance(command, Second):
        return [first]
    second, words = direction(command.y, ends, "y")
    cosine = planes.check_independent(first, second)
    own, scale = planes.norm(second), identity["y_scale"]
    if scale == "first":
        second = planes.rescale(second, length)
    marks |= {name: (0.0, own / length if scale == "first" else 1.0) for name in [leads_to(command.y)] if name}
    same = ("x", "y", "y_scale", "head", "seed", "parameters", "x_end", "y_end")
    attributes |= {
        "direction_y": words,
        "norm_y": length if scale == "first" else own,
        "norm_y_before_rescaling": own,
        "y_scale": scale,
        "cosine": cosine,
        "marks": json.dumps(marks),
        "plane": json.dumps({key: identity[key] for key in same if key in identity}, sort_keys=True),
    }
    return [first, second]


def _grid(
    command: Curve | Surface,
    ends: Ends,
    evaluation: EvaluationSet,
    attributes: dict[str, Any],
    identity: dict[str, Any],
) -> Work:
    axes = {"alpha": line(*command.alpha, command.points)}
    if isinstance(command, Surface):
        axes["beta"] = line(*command.beta, command.beta_points, "beta")
    plane = planes.make_plane(ends.origin(), _directions(command, ends, attributes, identity))
    points = grid_points(axes)

    def prepare(kept: GridStore | None) -> Prepared:
        return evaluate.prepare(
            model_loss(ends.subject.model, ends.subject.head, evaluation.words),
            only_words(plane, evaluation.words),
            points,
            evaluation.examples,
            points_per_step=kept.points_per_step if kept else command.points_per_step,
            block=kept.block if kept else command.block,
        )

    sides = " x ".join(str(len(axis)) for axis in axes.values())
    what = f"{sides} = {len(points)} points" if len(axes) > 1 else f"{len(points)} points"
    devices = f"{what} on {jax.device_count()} {jax.devices()[0].platform} device(s)"
    return Work(devices, "point", prepare, lambda values: to_dataset(values, axes, evaluation.split, attributes))


def _rollback(command: Rollback, ends: Ends, evaluation: EvaluationSet, attributes: dict[str, Any]) -> Work:
    groups = rollback.layer_groups(ends.subject.model.config.num_hidden_layers, command.groups, command.singles)
    return Work(
        f"{len(groups)} groups of layers",
        "group",
        lambda kept: rollback.prepare(ends, groups, evaluation),
        lambda values: rollback.rollback_dataset(values, ends, groups, evaluation, attributes),
    )


def _trajectory(
    command: Trajectory,
    ends: Ends,
    evaluation: EvaluationSet,
    attributes: dict[str, Any],
    identity: dict[str, Any],
) -> Work:
    directions = _directions(command, ends, attributes, identity)
    return Work(
        f"{len(ends.subject.snapshots)} snapshots",
        "snapshot",
        lambda kept: trajectory.prepare(ends, directions, evaluation),
        lambda values: trajectory.trajectory_dataset(values, ends, evaluation, attributes),
    )


def _memory(prepared: Prepared) -> str:
    if prepared.memory is None:
        return "memory  not known on this device"
    return f"memory  about {prepared.memory / 2**20:,.0f} MiB on a device for the program and what it reads"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
