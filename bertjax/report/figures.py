"""Figures from stored results only: loss curves, surfaces, layer rollback, learning curves. Drawn without the model.

Every function returns a matplotlib Figure, draws the values as they are stored (no smoothing, filling or shifting) and
names what is missing; `save` writes PNG and SVG.
"""

import math
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bertjax.errors import InputError
from bertjax.report import style
from bertjax.report.lines import TOP_MARKERS, draw_missing, draw_series, log_if_due, say, series_handle
from bertjax.report.marks import END, markers, shared_marks
from bertjax.report.style import save
from bertjax.report.surfaces import compare_surfaces_figure, contour_figure, surface_figure

__all__ = [
    "compare_surfaces_figure",
    "contour_figure",
    "curve_figure",
    "learning_figure",
    "rollback_figure",
    "save",
    "surface_figure",
]


@matplotlib.rc_context(style.STYLE)
def curve_figure(
    curves: Mapping[str, xr.Dataset],
    *,
    quantity: str = "loss",
    absolute: bool = False,
    marks: Mapping[str, float] | None = None,
) -> Figure:
    """One or several 1D curves on one scale: loss on the left, error rate on the right if it is stored.

    Arguments:
      curves: name -> stored curve with `loss` (split, alpha); a band shows ±1.96 standard errors where stored.
      quantity: "loss", or "error" for the right panel alone.
      absolute: the x axis is the distance from the start in parameter space instead of α.
      marks: named values of α; None: those that the results store.
    """
    style.same_definition(curves, "loss")
    if marks is None:
        marks = {name: x for name, (x, y) in shared_marks(ds.attrs for ds in curves.values()).items() if y == 0}
    if absolute and (lacking := [name for name, ds in curves.items() if "norm_x" not in ds.attrs]):
        raise InputError(f"an absolute axis needs the attribute norm_x, which is not stored in {', '.join(lacking)}")
    quantities = [quantity]
    if quantity == "loss" and any("error" in ds for ds in curves.values()):
        quantities.append("error")
    figure = style.new_figure(4.3 * len(quantities) + 2.0, max(4.3, 0.22 * len(curves) + 2.6))
    panels = figure.subplots(1, len(quantities), squeeze=False)[0]
    missing: dict[str, None] = {}
    splits: dict[str, None] = {}
    for axes, shown in zip(panels, quantities, strict=True):
        _draw_curves(axes, curves, shown, absolute, marks, missing, splits)
        axes.set_xlabel(_curve_x_label(list(curves.values()), absolute))
    first = next(iter(curves.values())).attrs
    handles = [series_handle(index, name) for index, name in enumerate(curves)] if len(curves) > 1 else []
    handles += [
        Line2D([], [], color="0.2", ls=style.DASHES.get(split, ":"), label=style.plain(split)) for split in splits
    ]
    if any(f"{shown}_se" in ds for ds in curves.values() for shown in quantities):
        handles.append(Patch(fc="0.5", alpha=0.35, label="±1.96 standard errors"))
    handles += [
        Line2D([], [], ls="", marker=shape, ms=size * 0.8, mfc="white", mec="black", label=style.plain(name, 24))
        for name, (shape, size) in markers(marks).items()
    ]
    handles += [Line2D([], [], ls="", color="0.2", marker=TOP_MARKERS[kind], label=kind) for kind in missing]
    name = (
        next(iter(curves)) if len(curves) == 1 else " and ".join(curves) if len(curves) < 4 else f"{len(curves)} runs"
    )
    kind = "Loss" if quantity == "loss" else "Error rate"
    line = "on the line from start to end" if marks.get(END) == 1 else "along one direction"
    title = f"{kind} {line}: {first.get('run', name) if len(curves) == 1 else name}"
    return style.finish(figure, title, style.caption_of(curves), handles)


@matplotlib.rc_context(style.STYLE)
def rollback_figure(ds: xr.Dataset, *, split: str | None = None) -> Figure:
    """Bars of the score (of the loss, where a task has no score) with each layer group reset to its start values.

    Arguments:
      ds: stored rollback; `score` or `loss` (split, group), groups from "none" (trained model) to "all"; the score
        of a majority baseline in the attribute `majority`.
      split: default "dev", or the only one there is.
    """
    quantity = "score" if "score" in ds or "loss" not in ds else "loss"
    style.require(ds, "the rollback", [quantity], ("split", "group"))
    splits = [str(name) for name in ds["split"].values]
    split = split or ("dev" if "dev" in splits else splits[0])
    if split not in splits:
        raise InputError(f"the rollback has no split {split!r}, only {', '.join(splits)}")
    groups = [str(group) for group in ds["group"].values]
    scores, bad, _ = style.split_missing(ds[quantity].sel(split=split).values, None)
    errors = np.full(scores.shape, np.nan)
    if f"{quantity}_se" in ds:
        errors, _, _ = style.split_missing(style.INTERVAL * ds[f"{quantity}_se"].sel(split=split).values, None)
    score_name = str(ds.attrs.get("score_name", "score"))
    if quantity == "loss":
        score_name = style.quantity_label(ds.attrs, "loss")
    spoken = {"none": "none (trained model)", "all": "all (start model's encoder, trained head)"}

    figure = style.new_figure(8.6, max(3.2, 2.0 + 0.3 * len(groups)))
    axes = figure.subplots()
    rows = np.arange(len(groups))
    ends = np.isin(groups, ["none", "all"])
    axes.barh(rows, scores, height=0.62, color=np.where(ends, "0.75", style.COLORS[4]), edgecolor="0.3", linewidth=0.6)
    known = np.isfinite(errors) & np.isfinite(scores)
    if known.any():
        axes.errorbar(scores[known], rows[known], xerr=errors[known], ls="", color="black", capsize=3, lw=1.2)
    if bad.any():
        axes.plot(np.zeros(bad.sum()), rows[bad], ls="", marker="x", color="black", clip_on=False)
    for row, (score, error) in enumerate(zip(scores, errors, strict=True)):
        interval = f" ± {error:.3f}" if math.isfinite(error) else ""
        text = f"{_three(score)}{interval}" if math.isfinite(score) else style.NOT_FINITE
        axes.annotate(text, (1.0, row), (6, 0), ("axes fraction", "data"), textcoords="offset points", va="center")
    references = {"trained model": ("none", "-"), "start model": ("all", "--")}
    lines = {
        name: (float(scores[groups.index(group)]), dash)
        for name, (group, dash) in references.items()
        if group in groups
    }
    if "majority" in ds.attrs and quantity == "score":
        lines["majority baseline"] = (float(ds.attrs["majority"]), ":")
    handles = []
    for color, (name, (value, dash)) in zip(("#000000", "#0072B2", "#D55E00"), lines.items(), strict=False):
        if math.isfinite(value):
            axes.axvline(value, color=color, ls=dash, lw=1.4, zorder=1.5)
            label = f"{name}: {_three(value)}"
            handles.append(Line2D([], [], color=color, ls=dash, lw=1.4, label=label))
    axes.axvline(0, color="0.3", lw=0.8)
    axes.set_yticks(rows, [style.plain(spoken.get(group, group), 30) for group in groups])
    axes.set_ylim(len(groups) - 0.4, -0.6)
    axes.set_xlabel(style.plain(f"{split} {score_name}, with 95 % interval (±1.96 standard errors)"))
    axes.set_ylabel("layers rolled back to θ₀\n(no further training)")
    title = f"Layer rollback: {ds.attrs.get('run', score_name)}"
    return style.finish(figure, title, style.caption_of({"": ds}), handles)


@matplotlib.rc_context(style.STYLE)
def learning_figure(
    runs: Mapping[str, Sequence[Mapping]],
    *,
    headline: str | None = None,
    baselines: Mapping[str, float] | None = None,
    loss_name: str = "cross entropy, nats",
    caption: str = "",
) -> Figure:
    """Learning curves: train and dev loss over the steps on the left, the dev score on the right.

    Arguments:
      runs: name -> records, {"step", "train/loss", ...} and {"step", "dev/loss", "dev/<metric>", ...} in any order.
      headline: the dev metric, such as "accuracy"; default: the first one recorded beside the loss.
      baselines: name -> score, drawn as horizontal lines.
      loss_name: what is averaged and its unit.
      caption: one line below, such as the number of examples.
    """
    if not runs:
        raise InputError("learning curves need at least one run, given none")
    recorded = [key for records in runs.values() for record in records for key in record if key.startswith("dev/")]
    headline = (headline or next((key for key in recorded if key != "dev/loss"), "score")).removeprefix("dev/")
    figure = style.new_figure(10.6, max(4.3, 0.22 * (len(runs) + len(baselines or {})) + 2.4))
    left, right = figure.subplots(1, 2)
    missing: dict[str, None] = {}
    drawn_keys: dict[str, None] = {}
    for axes, keys in ((left, ("train/loss", "dev/loss")), (right, (f"dev/{headline}",))):
        drawn = []
        for index, records in enumerate(runs.values()):
            for key in keys:
                steps, values = _series(records, key)
                if not len(steps):
                    continue
                drawn_keys |= {key.partition("/")[0]: None}
                values, bad, _ = style.split_missing(values, None)
                draw_series(axes, steps, values, index, key.partition("/")[0], raw=key == "train/loss")
                draw_missing(axes, steps, {style.NOT_FINITE: bad}, index, len(drawn), missing)
                drawn.append(values)
        values = np.concatenate([*drawn, np.empty(0)])
        if not np.isfinite(values).any():
            say(axes, "no finite value recorded" if drawn else "nothing recorded")
        log = axes is left and log_if_due(axes, values)
        name = style.quantity_label({"loss_name": loss_name}, "loss") if axes is left else f"dev {headline}"
        axes.set_ylabel(style.plain(name, 46) + ("\n(log scale)" if log else ""))
        axes.set_xlabel("training step (optimizer updates)")
    handles = [series_handle(index, name) for index, name in enumerate(runs)]
    handles += [Line2D([], [], color="0.2", ls=style.DASHES[split], label=split) for split in drawn_keys]
    for index, (name, value) in enumerate((baselines or {}).items()):
        if math.isfinite(value):
            look = {
                "color": ("0.15", "0.5")[index % 2],
                "ls": (0, ((6, 2), (2, 2), (6, 2, 1, 2))[index % 3]),
                "lw": 1.2,
            }
            right.axhline(value, zorder=1, **look)
            handles.append(Line2D([], [], label=style.plain(f"{name}: {_three(value)}", 26), **look))
    handles += [Line2D([], [], ls="", color="0.2", marker=TOP_MARKERS[kind], label=kind) for kind in missing]
    title = f"Learning curves: {next(iter(runs))}" if len(runs) == 1 else "Learning curves"
    return style.finish(figure, title, caption, handles)


def _draw_curves(
    axes: Axes,
    curves: Mapping[str, xr.Dataset],
    quantity: str,
    absolute: bool,
    marks: Mapping[str, float],
    missing: dict[str, None],
    splits: dict[str, None],
) -> None:
    shown = {name: ds for name, ds in curves.items() if quantity == "loss" or quantity in ds}
    label = style.same_definition(shown, quantity)
    drawn, bands = [], []
    for index, (name, ds) in enumerate(curves.items()):
        if name not in shown:
            continue
        style.require(ds, f"the curve {name!r}", [quantity], ("split", "alpha"))
        ds = ds.sortby("alpha")
        alpha = np.asarray(ds["alpha"].values, np.float64)
        unit = float(ds.attrs["norm_x"]) if absolute else 1.0
        status = ds["status"].values if "status" in ds else None
        for split in map(str, ds["split"].values):
            splits[split] = None
            values, bad, todo = style.split_missing(ds[quantity].sel(split=split).values, status)
            draw_series(axes, alpha * unit, values, index, split)
            draw_missing(
                axes, alpha * unit, {style.NOT_FINITE: bad, style.NOT_EVALUATED: todo}, index, len(drawn), missing
            )
            if f"{quantity}_se" in ds:
                half, _, _ = style.split_missing(style.INTERVAL * ds[f"{quantity}_se"].sel(split=split).values, status)
                axes.fill_between(
                    alpha * unit, values - half, values + half, color=style.COLORS[index % 7], alpha=0.2, lw=0
                )
                bands.append(values + half)
            drawn.append(values)
            for value, (shape, size) in zip(marks.values(), markers(marks).values(), strict=True):
                at = np.isclose(alpha, value, rtol=0, atol=1e-9) & np.isfinite(values)
                axes.plot(
                    alpha[at] * unit, values[at], ls="", marker=shape, ms=size, mfc="white", mec="black", zorder=5
                )
        for value in marks.values():
            axes.axvline(value * unit, color=style.COLORS[index % 7] if absolute else "0.6", lw=0.7, ls=":", zorder=0)
    values = np.concatenate(drawn)
    if not np.isfinite(values).any():
        say(axes, "no finite value")
    log = quantity == "loss" and log_if_due(axes, values, np.concatenate([*bands, np.empty(0)]))
    axes.set_ylabel(style.plain(label, 46) + ("\n(log scale)" if log else ""))


def _series(records: Sequence[Mapping], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of one key, by step; null counts as not finite."""
    found = [(record["step"], record[key]) for record in records if key in record and "step" in record]
    pairs = np.array([[step, math.nan if value is None else value] for step, value in found], np.float64).reshape(-1, 2)
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    return pairs[:, 0], pairs[:, 1]


def _three(score: float) -> str:
    return f"{score:.3f}".replace("-", "−")


def _curve_x_label(datasets: Sequence[xr.Dataset], absolute: bool) -> str:
    directions = {str(ds.attrs.get("direction_x", "")) for ds in datasets}
    delta = f"δ₁: {directions.pop()}" if len(directions) == 1 and "" not in directions else "δ₁ = θ₁ − θ₀"
    if absolute:
        text = "distance from the start, α·‖δ₁‖ (L2 norm of parameters)"
    else:
        text = "α: position on the line θ(α) = θ₀ + α·δ₁"
    return f"{text}\n{style.plain(delta, 60)}"
