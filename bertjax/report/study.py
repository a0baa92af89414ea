"""The figure of a study: learning curves of all seeds of each combination, and the scores that they end with."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bertjax.errors import InputError
from bertjax.report import style
from bertjax.report.lines import TOP_MARKERS, draw_missing, say

COLUMNS = 4  # combinations side by side
SEED, MEDIAN, FIRST, RANGE = "0.45", style.COLORS[0], style.COLORS[1], style.COLORS[4]
MEAN = BASELINE = "black"


@dataclasses.dataclass(frozen=True)
class Group:
    """The runs of one combination of a study."""

    records: Mapping[int, Sequence[Mapping]]
    """Seed -> records of its metrics.jsonl."""
    scores: Mapping[int, float]
    """Seed -> headline metric at the end; nan: the run diverged or has none."""
    failed: frozenset[int] = frozenset()
    """Seeds of runs that diverged or are no better than the baseline."""


@matplotlib.rc_context(style.STYLE)
def study_figure(
    groups: Mapping[str, Group],
    *,
    title: str,
    headline: str,
    loss_name: str = "cross entropy, nats",
    majority: float = math.nan,
    caption: str = "",
) -> Figure:
    """Two small panels for each combination, dev loss and dev score over the steps, and a panel with all scores.

    Curves: a thin line for each seed, the median as a thick one, a band from the lowest to the highest; the median of
    the first combination is repeated in the others. Steps at which not all seeds have a value have no median.

    Arguments:
      groups: label of the combination -> its runs; the first is the one the others are compared with.
      title: name of the study.
      headline: the dev metric, such as "accuracy".
      loss_name: what the loss is, and its unit.
      majority: score of the majority baseline, nan if there is none.
      caption: one line below.
    """
    if not groups:
        raise InputError("a study's figure needs at least one combination, given none")
    bands = math.ceil(len(groups) / COLUMNS)
    columns = min(len(groups), COLUMNS)
    width = max(8.4, 2.35 * columns + 2.6)
    strip = 1.0 + 0.34 * len(groups)
    figure = style.new_figure(width, 3.5 * bands + strip + 1.0)
    grid = figure.add_gridspec(2 * bands + 1, columns, height_ratios=[1.25] * (2 * bands) + [strip * 0.75])
    panels: dict[str, list[Axes]] = {"dev/loss": [], f"dev/{headline}": []}
    missing: dict[str, None] = {}
    for number, (label, group) in enumerate(groups.items()):
        band, column = divmod(number, columns)
        for row, (key, axes) in enumerate(panels.items()):
            share = axes[0] if axes else None
            axes.append(figure.add_subplot(grid[2 * band + row, column], sharex=share, sharey=share))
            _draw_curves(axes[-1], group, key, next(iter(groups.values())) if number else None, missing)
            last_row = row == 1
            axes[-1].tick_params(labelbottom=last_row, labelleft=column == 0)
            if column == 0:
                name = style.quantity_label({"loss_name": loss_name}, "loss") if row == 0 else headline
                axes[-1].set_ylabel(style.plain(f"dev {name}", 22))
            if row == 0:
                axes[-1].set_title(style.plain(label, 26), fontsize=8.0, pad=9)
            if last_row:
                axes[-1].set_xlabel("training step")
    for key, axes in panels.items():
        values = np.concatenate([_table(group.records, key)[1].ravel() for group in groups.values()])
        if key == "dev/loss" and style.is_log(values):
            style.log_y_axis(axes[0], float(np.nanmin(values)), float(np.nanmax(values)))
            axes[0].set_ylabel(axes[0].get_ylabel() + "\n(log scale)")
        elif key != "dev/loss" and math.isfinite(majority):
            for panel in axes:
                panel.axhline(majority, color=BASELINE, ls=":", lw=1.2, zorder=1)
    _draw_scores(figure.add_subplot(grid[2 * bands, :]), groups, headline, majority)
    return style.finish(figure, title, caption, _handles(groups, majority, missing))


def _draw_curves(axes: Axes, group: Group, key: str, first: Group | None, missing: dict[str, None]) -> None:
    steps, values = _table(group.records, key)
    if not np.isfinite(values).any():
        say(axes, "no finite value" if values.size else "nothing recorded")
        return
    for line in values:
        axes.plot(steps, line, color=SEED, lw=0.7, alpha=0.8, zorder=2)
        lone = np.isfinite(line) & ~_beside(np.isfinite(line))
        axes.plot(steps[lone], line[lone], ls="", marker=".", ms=3, color=SEED, zorder=2)
    whole = np.isfinite(values).all(axis=0)
    if len(values) > 1:
        axes.fill_between(steps[whole], values[:, whole].min(0), values[:, whole].max(0), color=RANGE, alpha=0.35, lw=0)
    if first is not None:
        other, reference = _median(first, key)
        axes.plot(other, reference, color=FIRST, lw=1.6, ls=(0, (4, 2)), zorder=3)
    median = _median(group, key)
    axes.plot(*median, color=MEDIAN, lw=2.0, marker="o" if len(median[0]) <= 12 else None, ms=3.5, zorder=4)
    gone = ~np.isfinite(values).all(axis=0)
    draw_missing(axes, steps, {style.NOT_FINITE: gone}, 6, 0, missing)


def _draw_scores(axes: Axes, groups: Mapping[str, Group], headline: str, majority: float) -> None:
    for row, group in enumerate(groups.values()):
        scores = {seed: score for seed, score in group.scores.items() if math.isfinite(score)}
        offsets = np.linspace(-0.17, 0.17, len(scores)) if len(scores) > 1 else np.zeros(len(scores))
        for (seed, score), offset in zip(scores.items(), offsets, strict=True):
            good = seed not in group.failed
            axes.plot(score, row + offset, ls="", marker="o", ms=5, mfc=RANGE if good else "white", mec="0.2", zorder=3)
        text = f"{len(scores)} of {len(group.scores)} runs" + (f", {len(group.failed)} failed" if group.failed else "")
        if scores:
            values = np.array(list(scores.values()))
            mean, deviation = values.mean(), values.std(ddof=1) if len(values) > 1 else math.nan
            axes.plot([mean, mean], [row - 0.32, row + 0.32], color=MEAN, lw=2.4, zorder=4)
            spread = f" ± {deviation:.3f}" if math.isfinite(deviation) else ""
            text = f"{mean:.3f}{spread}".replace("-", "−") + f"\n{text}"
        # It stands in the legend's column, which is empty so far down: the layout need not make room for it.
        axes.annotate(
            text, (1.0, row), (8, 0), ("axes fraction", "data"), textcoords="offset points", va="center", fontsize=8
        ).set_in_layout(False)
    if math.isfinite(majority):
        axes.axvline(majority, color=BASELINE, ls=":", lw=1.2, zorder=1)
    axes.set_yticks(range(len(groups)), [style.plain(label, 30) for label in groups])
    axes.set_ylim(len(groups) - 0.4, -0.6)
    axes.set_xlabel(style.plain(f"dev {headline} at the end of training; on the right mean ± standard deviation"))


def _handles(groups: Mapping[str, Group], majority: float, missing: Mapping[str, None]) -> list:
    handles = [
        Line2D([], [], color=SEED, lw=0.7, label="one seed"),
        Line2D([], [], color=MEDIAN, lw=2.0, label="median of the seeds"),
        Patch(fc=RANGE, alpha=0.35, label="lowest to highest seed"),
    ]
    if len(groups) > 1:
        name = style.plain(next(iter(groups)), 22)
        handles.append(Line2D([], [], color=FIRST, lw=1.6, ls=(0, (4, 2)), label=f"median of\n{name}"))
    handles += [
        Line2D([], [], ls="", marker="o", ms=5, mfc=RANGE, mec="0.2", label="score of a run"),
        Line2D([], [], ls="", marker="|", ms=10, mew=2.4, color=MEAN, label="mean of the scores"),
    ]
    if any(group.failed for group in groups.values()):
        handles.append(Line2D([], [], ls="", marker="o", ms=5, mfc="white", mec="0.2", label="failed run"))
    if math.isfinite(majority):
        handles.append(Line2D([], [], color=BASELINE, ls=":", lw=1.2, label=f"majority class: {majority:.3f}"))
    handles += [
        Line2D([], [], ls="", color="black", marker=TOP_MARKERS[kind], label=f"a seed is {kind}") for kind in missing
    ]
    return handles


def _table(records: Mapping[int, Sequence[Mapping]], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps [s], and the values [seeds, s] recorded at them; nan where there is none."""
    found = {
        seed: {line["step"]: line[key] for line in lines if isinstance(line.get(key), (int, float))}
        for seed, lines in records.items()
    }
    steps = sorted({step for line in found.values() for step in line})
    values = [[line.get(step, math.nan) for step in steps] for line in found.values()]
    return np.array(steps, np.float64), np.array(values, np.float64).reshape(len(found), len(steps))


def _median(group: Group, key: str) -> tuple[np.ndarray, np.ndarray]:
    steps, values = _table(group.records, key)
    whole = np.isfinite(values).all(axis=0)
    return steps[whole], np.median(values[:, whole], axis=0)


def _beside(finite: np.ndarray) -> np.ndarray:
    """Whether a neighbour is finite."""
    return np.append(finite[1:], False) | np.append(False, finite[:-1])
