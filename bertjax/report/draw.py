"""Draws the stored results of runs: which figure belongs to which kind of result."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import xarray as xr
from matplotlib.figure import Figure

from bertjax.errors import InputError
from bertjax.landscape.store import read_netcdf
from bertjax.progress import say
from bertjax.report import figures
from bertjax.report.trajectory import trajectory_figure
from bertjax.training.records import read_jsonl

# Kind of a result -> suffix of the file name -> figure, made of the result and the file it was read from.
FIGURES: dict[str, dict[str, Callable[[xr.Dataset, Path], Figure]]] = {
    "curve": {"": lambda ds, path: figures.curve_figure({ds.attrs["run"]: ds})},
    "surface": {
        "": lambda ds, path: figures.contour_figure(ds),
        "-3d": lambda ds, path: figures.surface_figure(ds),
    },
    "rollback": {"": lambda ds, path: figures.rollback_figure(ds)},
    "trajectory": {"": lambda ds, path: trajectory_figure(ds, surface_of_plane(ds, path.parent))},
}
COMPARISONS: dict[str, Callable[[dict[str, xr.Dataset]], Figure]] = {
    "curve": figures.curve_figure,
    "surface": figures.compare_surfaces_figure,
}


def draw_result(path: Path) -> list[Path]:
    """Draws RUN/landscape/NAME.nc as RUN/figures/NAME*.png and .svg; returns the files."""
    dataset = read_netcdf(path)
    kind = dataset.attrs.get("kind")
    if kind not in FIGURES:
        raise InputError(f"{path}: the attribute 'kind' is {kind!r}, expected one of {', '.join(FIGURES)}")
    folder = path.parent.parent / "figures"
    return [
        file
        for suffix, function in FIGURES[kind].items()
        for file in figures.save(function(dataset, path), folder / f"{path.stem}{suffix}")
    ]


def surface_of_plane(trajectory: xr.Dataset, folder: Path) -> xr.Dataset | None:
    """The stored surface of the plane in which the trajectory is; of several, the one with the most points."""
    found = []
    for path in sorted(folder.glob("*.nc")):
        try:
            dataset = read_netcdf(path)
        except InputError:  # another result's damage is said where that is drawn
            continue
        if dataset.attrs.get("kind") == "surface" and dataset.attrs.get("plane", "") == trajectory.attrs["plane"]:
            found.append(dataset)
    return max(found, key=lambda dataset: dataset["status"].size, default=None)


def draw_run(run: Path) -> list[Path]:
    """Draws everything that a run's folder holds."""
    results = sorted((run / "landscape").glob("*.nc"))
    records = read_jsonl(run / "metrics.jsonl")
    if not results and not records:
        raise InputError(f"{run} holds no results to draw (expected landscape/*.nc or metrics.jsonl)")
    files, damaged = [], []
    for path in results:
        try:
            files += draw_result(path)
        except InputError as error:
            damaged.append(str(error))
            say(f"warning {error}")
    if damaged and not files and not records:
        raise InputError(damaged[0])
    return files + (learning({run.name: run}, run / "figures" / "learning") if records else [])


def learning(runs: dict[str, Path], target: Path, baselines: dict[str, float] | None = None) -> list[Path]:
    """Draws the learning curves of several runs (name -> folder) on one scale."""
    records = {
        name: [
            {key: value if isinstance(value, (int, float)) else math.nan for key, value in line.items()}
            for line in read_jsonl(folder / "metrics.jsonl")
        ]
        for name, folder in runs.items()
    }
    headline = next(
        (
            key
            for lines in records.values()
            for line in lines
            for key in line
            if key.startswith("dev/") and key != "dev/loss"
        ),
        "dev/loss",
    )
    figure = figures.learning_figure(records, headline=headline.removeprefix("dev/"), baselines=baselines or {})
    return figures.save(figure, target)


def distinct_names(folders: Sequence[Path]) -> dict[str, Path]:
    """Names of folders by the last parts of their paths, as few as tell each from all others.

    Raises:
      InputError: a folder is given twice.
    """
    parts = [folder.expanduser().resolve().parts for folder in folders]
    names: dict[str, Path] = {}
    for folder, own in zip(folders, parts, strict=True):
        if parts.count(own) > 1:
            raise InputError(f"{folder} is given twice")
        others = [other for other in parts if other != own]
        length = next((n for n in range(1, len(own)) if all(other[-n:] != own[-n:] for other in others)), len(own))
        names["/".join(own[-length:])] = folder
    return names


def compare(runs: dict[str, Path], name: str, target: Path) -> list[Path]:
    """Draws one result of several runs (name -> folder) on one scale."""
    files = {title: run / "landscape" / f"{name}.nc" for title, run in runs.items()}
    for title, file in files.items():
        if not file.exists():
            kind = name if name in COMPARISONS else "curve or surface"
            command = f"python landscape.py {kind} {runs[title]}" + f" --name {name}" * (kind != name)
            raise InputError(f"{file} does not exist; it is made by: {command}")
    datasets = {title: read_netcdf(file) for title, file in files.items()}
    kinds = {dataset.attrs.get("kind") for dataset in datasets.values()}
    if len(datasets) < 2 or len(kinds) != 1 or (kind := kinds.pop()) not in COMPARISONS:
        raise InputError(
            f"compare: expected one result ({' or '.join(COMPARISONS)}) of at least two runs, got "
            f"{name!r} of {', '.join(map(str, runs.values()))}"
        )
    return figures.save(COMPARISONS[kind](datasets), target)
