"""Figure of a stored trajectory: the path in its plane, over the surface where there is one, and losses by step."""

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bertjax.report import style, surfaces
from bertjax.report.grid import axis_limits, choose_scale, read_grid
from bertjax.report.lines import draw_missing, draw_series, log_if_due, say
from bertjax.report.marks import markers, marks_of

# Variable -> what it is, number of its colour and marker (those of the paths are not used again).
HEADS = {"loss_final_head": ("final head", 4), "loss": ("own head", 0)}
PAPER_COLOR = "#009E73"
_HALO = {"lw": 3.4, "color": "white", "zorder": 4.5}


@matplotlib.rc_context(style.STYLE)
def trajectory_figure(ds: xr.Dataset, surface: xr.Dataset | None = None) -> Figure:
    """The path in the plane on the left; loss and distance against training steps on the right.

    Arguments:
      ds: stored trajectory; `a`, `b`, `alpha`, `beta`, `length`, `off_plane`, `step` (snapshot), and `loss` and
        `loss_final_head` (split, snapshot).
      surface: a stored surface of the same plane to draw the path over; None: the path alone.
    """
    style.require(ds, "the trajectory", ["a", "b", "alpha", "beta", "length", "off_plane", "step"], ["snapshot"])
    style.require(ds, "the trajectory", ["loss", "loss_final_head"], ("split", "snapshot"))
    ds = ds.sortby("step")
    figure = style.new_figure(11.4, 5.4)
    panels = figure.subplot_mosaic([["plane", "loss"], ["plane", "distance"]], width_ratios=(1.25, 1))
    handles = _draw_plane(figure, panels["plane"], ds, surface)
    handles += _draw_losses(panels["loss"], ds)
    handles += _draw_distances(panels["distance"], ds)
    panels["loss"].sharex(panels["distance"])
    panels["loss"].tick_params(labelbottom=False)
    over = "" if surface is None else " over the loss surface"
    note = "least squares: where the path is nearest to in the plane; a, b: δ₂ stands for the whole rest"
    caption = " · ".join(filter(None, (note, style.caption_of({"": ds}))))
    return style.finish(figure, f"Trajectory{over}: {ds.attrs.get('run', '')}", caption, handles)


def _draw_plane(figure: Figure, axes: Axes, ds: xr.Dataset, surface: xr.Dataset | None) -> list:
    norms = [float(ds.attrs.get(name, 1.0)) for name in ("norm_x", "norm_y")]
    grid = read_grid(surface, None, "loss") if surface is not None else None
    # Both paths in the units of the axis: δ₂ over a surface, δ₁ where the path is alone.
    unit = norms[1] if grid else norms[0]
    squares = np.stack([ds["alpha"].values, ds["beta"].values * norms[1] / unit], axis=1)
    paper = np.stack([ds["a"].values, ds["b"].values * norms[0] / unit], axis=1)
    marks = {name: (x, y * norms[1] / unit) for name, (x, y) in marks_of(ds.attrs).items()}
    handles = []
    if grid:
        scale = choose_scale(grid.values)
        surfaces.draw_contours(axes, grid, scale, labelled=True)
        if scale:
            label = style.quantity_label(grid.attrs, "loss")
            surfaces.color_bar(figure, [axes], scale, f"{grid.split}, {label}", pad=0.02)
        axes.set(xlabel=surfaces.axis_label(grid, "x", 54), ylabel=surfaces.axis_label(grid, "y", 46))
        handles = [Line2D([], [], color="0.4", lw=0.7, label=f"{grid.split} loss, contours")]
    else:
        axes.axhline(0.0, color="0.6", lw=0.7, ls=":")
        axes.set_xlabel(style.plain(f"α along δ₁: {ds.attrs.get('direction_x', '')}", 54))
        axes.set_ylabel(style.plain(f"β along δ₂, in units of ‖δ₁‖. δ₂: {ds.attrs.get('direction_y', '')}", 46))
    for path, color, shape, dash, name in (
        (paper, PAPER_COLOR, "s", (0, (4, 2)), "a, b (Hao et al.)"),
        (squares, surfaces.PATH_COLOR, "o", "-", "least squares"),
    ):
        if grid:
            axes.plot(*path.T, **_HALO)
        axes.plot(*path.T, color=color, lw=1.7, ls=dash, marker=shape, ms=4.5, mec="white", mew=0.6, zorder=5)
        handles.append(Line2D([], [], color=color, lw=1.7, ls=dash, marker=shape, ms=4.5, label=name))
    for (name, (x, y)), (shape, size) in zip(marks.items(), markers(marks).values(), strict=True):
        look = {"ls": "", "marker": shape, "mfc": "white", "mec": "black"}
        axes.plot([x], [y], ms=size, zorder=6, **look)
        handles.append(Line2D([], [], ms=size * 0.8, label=style.plain(name, 24), **look))
    points = [*squares, *paper, *marks.values()]
    if grid:
        x_limits, y_limits = axis_limits([grid], points)
    else:
        finite = np.array([p for p in points if np.isfinite(p).all()])
        (x_low, y_low), (x_high, y_high) = finite.min(axis=0), finite.max(axis=0)
        x_pad, y_pad = 0.06 * (x_high - x_low), 0.08 * (y_high - y_low) or 0.5
        x_limits, y_limits = (x_low - x_pad, x_high + x_pad), (y_low - y_pad, y_high + y_pad)
    axes.set(xlim=x_limits, ylim=y_limits)
    return handles


def _draw_losses(axes: Axes, ds: xr.Dataset) -> list:
    steps, status = ds["step"].values.astype(np.float64), ds["status"].values if "status" in ds else None
    own = ds["own_head"].values.astype(bool) if "own_head" in ds else np.ones(len(steps), bool)
    drawn, bands, missing = [], [], {}
    splits = [str(name) for name in ds["split"].values]
    for name, (_, index) in HEADS.items():
        for split in splits:
            values, bad, todo = style.split_missing(ds[name].sel(split=split).values, status)
            draw_series(axes, steps, values, index, split)
            draw_missing(axes, steps, {style.NOT_FINITE: bad & (own | (name != "loss"))}, index, len(drawn), missing)
            draw_missing(axes, steps, {style.NOT_EVALUATED: todo}, index, len(drawn), missing)
            if f"{name}_se" in ds:
                half = style.INTERVAL * ds[f"{name}_se"].sel(split=split).values
                color = style.COLORS[index % len(style.COLORS)]
                axes.fill_between(steps, values - half, values + half, color=color, alpha=0.18, lw=0)
                bands.append(values + half)
            drawn.append(values)
    values = np.concatenate(drawn)
    if not np.isfinite(values).any():
        say(axes, "no finite value")
    log = log_if_due(axes, values, np.concatenate([*bands, np.empty(0)]))
    axes.set_ylabel(style.plain(style.quantity_label(ds.attrs, "loss"), 30) + ("\n(log scale)" if log else ""))
    handles = [
        Line2D([], [], color=style.COLORS[i], marker=style.MARKERS[i], ms=4, lw=1.6, label=f"loss, {name}")
        for name, i in reversed(HEADS.values())
    ]
    handles += [Line2D([], [], color="0.2", ls=style.DASHES.get(s, ":"), label=style.plain(s)) for s in splits]
    if bands:
        handles.append(Patch(fc="0.5", alpha=0.35, label="±1.96 standard errors"))
    return handles


def _draw_distances(axes: Axes, ds: xr.Dataset) -> list:
    unit, steps = float(ds.attrs.get("norm_x", 1.0)), ds["step"].values
    handles = []
    for name, label, color, dash, shape in (
        ("length", "distance from θ₀", "#000000", "-", "D"),
        ("off_plane", "distance off the plane", "#CC79A7", (0, (5, 2)), "v"),
    ):
        look = {"color": color, "ls": dash, "lw": 1.5, "marker": shape, "ms": 4}
        axes.plot(steps, ds[name].values / unit, **look)
        handles.append(Line2D([], [], label=label, **look))
    axes.set_ylim(bottom=0)
    axes.set(xlabel="training step (optimizer updates)", ylabel="distance in units of ‖δ₁‖\n(L2 norm)")
    return handles
