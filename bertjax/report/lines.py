"""Lines on axes: a series with its markers, what is missing at the top edge, the log axis where it is due."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from bertjax.report import style

TOP_MARKERS = {style.NOT_FINITE: "x", style.NOT_EVALUATED: "|"}


def draw_series(axes: Axes, x: np.ndarray, y: np.ndarray, index: int, split: str, raw: bool = False) -> None:
    """One line with markers at some points, and at every point that has no neighbour to draw a line to."""
    finite = np.isfinite(y)
    lone = finite & ~np.append(finite[1:], False) & ~np.append(False, finite[:-1])
    step = max(1, len(y) // 12)
    marked = (np.arange(len(y)) % step == min(index, step - 1) % step) & (not raw) | lone
    axes.plot(
        x,
        y,
        color=style.COLORS[index % len(style.COLORS)],
        ls=style.DASHES.get(split, ":"),
        lw=0.9 if raw else 1.6,
        alpha=0.75 if raw else 1.0,
        marker=style.MARKERS[index % len(style.MARKERS)],
        ms=4,
        markevery=marked,
        zorder=2 if raw else 3,
    )


def draw_missing(
    axes: Axes, x: np.ndarray, masks: Mapping[str, np.ndarray], index: int, line: int, missing: dict[str, None]
) -> None:
    """Marks at the top edge, one row per line drawn so far, at the points that have no value to draw."""
    for kind, mask in masks.items():
        if mask.any():
            missing[kind] = None
            axes.plot(
                x[mask],
                np.full(mask.sum(), 1.0 - 0.03 * (line % 8)),
                transform=axes.get_xaxis_transform(),
                color=style.COLORS[index % len(style.COLORS)],
                marker=TOP_MARKERS[kind],
                ls="",
                ms=5,
                clip_on=False,
            )


def log_if_due(axes: Axes, values: np.ndarray, bands: np.ndarray | None = None) -> bool:
    if not style.is_log(values):
        return False
    upper = values if bands is None else np.append(values, bands)
    style.log_y_axis(axes, float(np.nanmin(values)), float(np.nanmax(upper)))
    return True


def series_handle(index: int, name: str) -> Line2D:
    color, marker = style.COLORS[index % len(style.COLORS)], style.MARKERS[index % len(style.MARKERS)]
    return Line2D([], [], color=color, marker=marker, ms=4, lw=1.6, label=style.plain(name, 24))


def say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="0.3")
    axes.set_yticks([])
