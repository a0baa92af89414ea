"""What a drawn surface is made of: one split's grid with its missing cells, the colour scale's levels, axis limits."""

import dataclasses
import math
from collections.abc import Iterable, Sequence

import matplotlib
import numpy as np
import xarray as xr
from matplotlib import colors, ticker

from bertjax.errors import InputError
from bertjax.report import style


@dataclasses.dataclass(frozen=True)
class Grid:
    """One split of a stored surface, sorted by coordinates. `values` [beta, alpha] is NaN where nothing is drawn."""

    alpha: np.ndarray
    beta: np.ndarray
    values: np.ndarray
    missing: dict[str, np.ndarray]
    split: str
    attrs: dict

    @property
    def has_area(self) -> bool:
        """Whether contours exist: some square of four neighbours has at least three finite corners."""
        finite = np.isfinite(self.values).astype(int)
        return bool((finite[1:, 1:] + finite[:-1, 1:] + finite[1:, :-1] + finite[:-1, :-1] >= 3).any())


@dataclasses.dataclass(frozen=True)
class Scale:
    """The colour scale: `levels` from the smallest to the largest value, one colour between two neighbours."""

    levels: np.ndarray
    kind: str  # linear, log-spaced, at quantiles, constant
    norm: colors.BoundaryNorm
    cmap: colors.Colormap


def read_grid(ds: xr.Dataset, split: str | None, quantity: str) -> Grid:
    style.require(ds, f"the surface {ds.attrs.get('run', '')!r}", [quantity], ("split", "beta", "alpha"))
    ds = ds.sortby(["alpha", "beta"])
    splits = [str(name) for name in ds["split"].values]
    usual = "dev" if quantity == "error" else "train"
    split = split or (usual if usual in splits else splits[0])
    if split not in splits:
        raise InputError(f"the surface has no split {split!r}, only {', '.join(splits)}")
    stored = ds[quantity].sel(split=split).transpose("beta", "alpha").values
    status = ds["status"].transpose("beta", "alpha").values if "status" in ds else None
    values, bad, todo = style.split_missing(stored, status)
    missing = {style.NOT_FINITE: bad, style.NOT_EVALUATED: todo}
    alpha, beta = (np.asarray(ds[name].values, np.float64) for name in ("alpha", "beta"))
    return Grid(alpha, beta, values, missing, split, dict(ds.attrs))


def choose_scale(values: np.ndarray) -> Scale | None:
    """Chooses levels from the values to draw; None if no value is finite."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return None
    low, high = float(finite.min()), float(finite.max())
    cmap = matplotlib.colormaps[style.COLORMAP]
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        half = abs(low) * 0.05 or 0.5
        levels, kind = np.array([low - half, high + half]), "constant"
        return Scale(levels, kind, colors.BoundaryNorm(levels, cmap.N), cmap)
    log = style.is_log(finite)
    bend = np.log10 if log else np.asarray
    inner_low, inner_high = np.quantile(bend(finite), [0.05, 0.95])
    if bend(high) - bend(low) > style.LOG_SPAN * (inner_high - inner_low) > 0:  # few outliers would hide all the rest
        candidates, kind = np.quantile(finite, np.linspace(0, 1, 11)), "at quantiles"
        gap = 0.0
    else:
        candidates = _log_levels(low, high) if log else ticker.MaxNLocator(11).tick_values(low, high)
        kind = "log-spaced" if log else "linear"
        gap = 0.02 * (bend(high) - bend(low))
    inside = [x for x in candidates if low < x < high and bend(x) - bend(low) > gap and bend(high) - bend(x) > gap]
    levels = np.unique([low, *inside, high])
    return Scale(levels, kind, colors.BoundaryNorm(levels, cmap.N), cmap)


def _log_levels(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.floor(math.log10(high))
    decades = math.log10(high) - math.log10(low)
    steps = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if decades < 2.2 else (1.0, 2.0, 5.0) if decades < 4.5 else (1.0,)
    return [step * 10.0**power for power in range(first, last + 1, math.ceil(decades / 12)) for step in steps]


def cell_edges(coordinates: np.ndarray) -> np.ndarray:
    """The borders of the cells around grid points: half way to the neighbours; a single point gets a unit cell."""
    if len(coordinates) == 1:
        return np.array([coordinates[0] - 0.5, coordinates[0] + 0.5])
    middle = (coordinates[1:] + coordinates[:-1]) / 2
    return np.array([2 * coordinates[0] - middle[0], *middle, 2 * coordinates[-1] - middle[-1]])


def axis_limits(grids: Sequence[Grid], points: Iterable[Sequence[float]]) -> list[tuple[float, float]]:
    """Axis limits that hold the grids, and with a margin every finite point that lies outside or at the border."""
    result = []
    for axis, name in enumerate(("alpha", "beta")):
        extents = [getattr(grid, name) for grid in grids]
        extents = [x if len(x) > 1 else cell_edges(x) for x in extents]
        low, high = min(x.min() for x in extents), max(x.max() for x in extents)
        inside = [float(point[axis]) for point in points if np.isfinite(point[axis])]
        margin = 0.04 * (max([high, *inside]) - min([low, *inside]))
        low, high = min([low, *(x - margin for x in inside)]), max([high, *(x + margin for x in inside)])
        result.append((float(low), float(high)))
    return result
