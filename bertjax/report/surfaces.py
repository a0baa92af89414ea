"""Figures of 2D surfaces: contours, 3D, several on one colour scale. Values are drawn as they are stored."""

from collections.abc import Mapping

import matplotlib
import numpy as np
import xarray as xr
from matplotlib import patheffects, ticker
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path as Outline
from mpl_toolkits.mplot3d.art3d import Poly3DCollection

from bertjax.errors import InputError
from bertjax.report import style
from bertjax.report.grid import Grid, Scale, axis_limits, cell_edges, choose_scale, read_grid
from bertjax.report.marks import Points, markers, marks_of, shared_marks

HATCHES = {style.NOT_FINITE: ("xxxx", "0.85"), style.NOT_EVALUATED: ("....", "1.0")}
PATH_COLOR = "#D55E00"
SCALES = {"own": "its own scale", "first": "rescaled to ‖δ₁‖"}


def contour_figure(
    ds: xr.Dataset,
    *,
    split: str | None = None,
    quantity: str = "loss",
    path: np.ndarray | None = None,
    marks: Points | None = None,
) -> Figure:
    """Filled contours and labelled contour lines of a surface.

    Arguments:
      ds: a stored surface, `quantity` with dimensions (split, beta, alpha).
      split: default "train" for the loss and "dev" for the error rate, or the only one there is.
      quantity: "loss" or "error".
      path: a trajectory [n, 2] of (α, β) to draw on top.
      marks: named points (α, β); None: those that the surface stores.
    """
    return compare_surfaces_figure({"": ds}, split=split, quantity=quantity, path=path, marks=marks)


@matplotlib.rc_context(style.STYLE)
def compare_surfaces_figure(
    surfaces: Mapping[str, xr.Dataset],
    *,
    split: str | None = None,
    quantity: str = "loss",
    path: np.ndarray | None = None,
    marks: Points | None = None,
) -> Figure:
    """Contours of several surfaces side by side on one colour scale and one pair of axes; see `contour_figure`."""
    label = style.same_definition(surfaces, quantity)
    grids = {name: read_grid(ds, split, quantity) for name, ds in surfaces.items()}
    path = _checked_path(path)
    scale = choose_scale(np.concatenate([grid.values.ravel() for grid in grids.values()]))
    columns = min(len(grids), 3)
    rows = -(-len(grids) // columns)
    single = len(grids) == 1
    figure = style.new_figure(7.6 if single else 3.1 * columns + 2.6, 5.2 if single else 3.0 * rows + 1.2)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    marks = shared_marks(ds.attrs for ds in surfaces.values()) if marks is None else marks
    limits = axis_limits(list(grids.values()), [*marks.values(), *([] if path is None else path)])
    names: dict[str, None] = {}
    for axes, (name, grid) in zip(panels.flat, grids.items(), strict=False):
        draw_contours(axes, grid, scale, labelled=single)
        _draw_marks(axes, marks, path)
        if name:
            axes.set_title(style.plain(f"{name} ({grid.split})", 36))
        names |= {kind: None for kind, mask in grid.missing.items() if mask.any()}
    for axes in panels.flat[len(grids) :]:
        axes.set_visible(False)
    panels[0, 0].set(xlim=limits[0], ylim=limits[1])
    first = next(iter(grids.values()))
    split_text = "" if not single else f"{first.split}, "
    if single:
        panels[0, 0].set(xlabel=axis_label(first, "x", 60), ylabel=axis_label(first, "y", 50))
    else:
        for column in range(columns):  # the lowest panel of each column carries the label
            used = [row for row in range(rows) if row * columns + column < len(grids)]
            panels[used[-1], column].set_xlabel("α")
            panels[used[-1], column].tick_params(labelbottom=True)
        for row in range(rows):
            panels[row, 0].set_ylabel("β")
    if scale:
        color_bar(figure, panels.ravel().tolist(), scale, split_text + label)
    title = (
        f"{_title(quantity)}: {first.attrs.get('run', first.split)}" if single else f"{_title(quantity)}s on one scale"
    )
    definition = "θ(α, β) = θ₀ + α·δ₁ + β·δ₂"
    if not single:
        texts = [": ".join(filter(None, _axis_texts(list(grids.values()), axis))) for axis in ("x", "y")]
        definition = " · ".join([definition, *texts])
    empty = "" if scale else f"nothing to draw: {split_text}{label}"
    caption = " · ".join(filter(None, (definition, empty, style.caption_of(surfaces))))
    handles = _legend(marks, path, names)
    if single:
        place = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.2, "columnspacing": 1.2}
        panels[0, 0].legend(handles=handles, ncols=3 if max(map(len, marks), default=0) > 12 else 5, **place)
    return style.finish(figure, title, caption, () if single else handles)


@matplotlib.rc_context(style.STYLE)
def surface_figure(
    ds: xr.Dataset,
    *,
    split: str | None = None,
    quantity: str = "loss",
    marks: Points | None = None,
    elevation: float = 35.0,
    azimuth: float = -60.0,
) -> Figure:
    """The surface in 3D, seen from `elevation` and `azimuth` degrees; see `contour_figure` for the rest."""
    grid = read_grid(ds, split, quantity)
    scale = choose_scale(grid.values)
    label = style.quantity_label(ds.attrs, quantity)
    figure = style.new_figure(8.4, 5.6)
    axes = figure.add_subplot(projection="3d", computed_zorder=False)
    axes.view_init(elevation, azimuth)
    axes.set_box_aspect((1, 1, 0.7), zoom=0.9)
    log = scale is not None and scale.kind != "constant" and style.is_log(grid.values)
    height = np.log10(grid.values) if log else grid.values  # drawing coordinates of a log axis
    marks = marks_of(ds.attrs) if marks is None else marks
    limits = axis_limits([grid], marks.values())
    axes.set(xlim=limits[0], ylim=limits[1])
    floor = 0.0
    if scale is None:
        axes.text2D(0.6, 0.95, "no finite value", transform=axes.transAxes, ha="center", va="center")
        axes.set_zticks([])
    else:
        low, high = float(np.nanmin(height)), float(np.nanmax(height))
        pad = (high - low) * 0.05 or abs(high) * 0.05 or 0.5
        floor = low - pad
        axes.set_zlim(floor, high + pad)
        _draw_sheet(axes, grid, height, scale)
        if log:
            axes.zaxis.set_major_locator(ticker.MaxNLocator(6, integer=high - low > 3))
            axes.tick_params(axis="z", pad=7)
            axes.zaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{10.0**value:.2g}"))
        color_bar(figure, [axes], scale, f"{grid.split}, {label}", shrink=0.75, pad=0.12)
    for kind, mask in grid.missing.items():
        rows, columns = np.nonzero(mask)
        if len(rows):
            marker = "x" if kind == style.NOT_FINITE else "."
            axes.plot(grid.alpha[columns], grid.beta[rows], floor, ls="", marker=marker, color="black", ms=4, zorder=1)
    for (x, y), (shape, size) in zip(marks.values(), markers(marks).values(), strict=True):
        at = np.isclose(grid.beta, y)[:, None] & np.isclose(grid.alpha, x)[None] & np.isfinite(height)
        z = float(height[at][0]) if at.any() else floor
        axes.plot([x, x], [y, y], [floor, z], color="black", lw=0.8, ls=":", zorder=4)
        axes.plot([x], [y], [z], ls="", marker=shape, ms=size, mfc="white", mec="black", zorder=5)
    axes.set_xlabel(_axis_texts([grid], "x")[0], labelpad=7)
    axes.set_ylabel(_axis_texts([grid], "y")[0], labelpad=7)
    axes.set_zlabel(f"{quantity} (log scale)" if log else quantity, labelpad=14 if log else 6)
    directions = (f"{name}: {_axis_texts([grid], axis)[1]}" for name, axis in (("δ₁", "x"), ("δ₂", "y")))
    directions = [text for text in directions if not text.endswith(": ")]
    empty = "" if scale else f"nothing to draw: {grid.split}, {label}"
    caption = " · ".join(filter(None, ("θ(α, β) = θ₀ + α·δ₁ + β·δ₂", *directions, empty, style.caption_of({"": ds}))))
    names = {kind: None for kind, mask in grid.missing.items() if mask.any()}
    handles = _legend(marks, None, names, in_space=True)
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(-0.05, 1.0))
    return style.finish(figure, f"{_title(quantity)}: {ds.attrs.get('run', grid.split)}", caption)


def _checked_path(path: np.ndarray | None) -> np.ndarray | None:
    if path is None:
        return None
    path = np.array(path, np.float64)
    if path.ndim != 2 or path.shape[1] != 2:
        raise InputError(f"a trajectory path must have shape [n, 2] of (α, β), given {path.shape}")
    return path


def draw_contours(axes: Axes, grid: Grid, scale: Scale | None, labelled: bool) -> None:
    """Filled contours, contour lines (with their values where labelled) and hatched gaps."""
    x_edges, y_edges = cell_edges(grid.alpha), cell_edges(grid.beta)
    masked = np.ma.masked_invalid(grid.values)
    gaps = any(mask.any() for mask in grid.missing.values())
    if scale and (gaps or not grid.has_area):  # cells below, so that finite points next to missing ones are seen
        axes.pcolormesh(x_edges, y_edges, masked, norm=scale.norm, cmap=scale.cmap, rasterized=True, zorder=1)
    for kind, mask in grid.missing.items():
        _hatch(axes, x_edges, y_edges, mask, kind)
    if scale is None:
        box = {"facecolor": "white", "edgecolor": "0.5"}
        axes.text(0.5, 0.5, "no finite value", transform=axes.transAxes, ha="center", va="center", bbox=box, zorder=6)
    elif grid.has_area:
        axes.contourf(
            grid.alpha, grid.beta, masked, levels=scale.levels, norm=scale.norm, cmap=scale.cmap, zorder=2
        ).set_edgecolor("face")
        low, high = masked.min(), masked.max()
        lines = [level for level in scale.levels[1:-1] if low < level < high]
        if lines:
            _draw_lines(axes, grid, masked, lines, scale, labelled)


def _draw_lines(axes: Axes, grid: Grid, masked: np.ma.MaskedArray, lines: list, scale: Scale, labelled: bool) -> None:
    shades = scale.cmap(np.linspace(0, 1, len(scale.levels)))[1:-1]
    chosen = shades[np.isin(scale.levels[1:-1], lines)]
    inks = ["white" if shade[:3] @ (0.299, 0.587, 0.114) < 0.5 else "black" for shade in chosen]
    drawn = axes.contour(grid.alpha, grid.beta, masked, levels=lines, colors=inks, linewidths=0.7, zorder=3)
    if not labelled:
        return
    names = dict(zip(lines, style.distinct_labels(lines), strict=True))
    every = 1 if len(lines) <= 8 else 2
    (x_low, x_high), (y_low, y_high) = ((c[0], c[-1]) for c in (grid.alpha, grid.beta))
    for text in axes.clabel(drawn, levels=lines[::every], fmt=names, fontsize=7, inline=False, zorder=4):
        x, y = text.get_position()
        x, y = (x - x_low) / (x_high - x_low), (y - y_low) / (y_high - y_low)
        if not (0.05 < x < 0.95 and 0.03 < y < 0.97):
            text.remove()  # it would be cut by the frame
            continue
        text.set(color="black", bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6})


def _hatch(axes: Axes, x_edges: np.ndarray, y_edges: np.ndarray, mask: np.ndarray, kind: str) -> None:
    boxes = [
        Outline.unit_rectangle().transformed(
            matplotlib.transforms.Affine2D()
            .scale(x_edges[j + 1] - x_edges[j], y_edges[i + 1] - y_edges[i])
            .translate(x_edges[j], y_edges[i])
        )
        for i, j in np.argwhere(mask)
    ]
    if boxes:
        hatch, face = HATCHES[kind]
        patch = PathPatch(Outline.make_compound_path(*boxes), hatch=hatch, fc=face, ec="0.35", lw=0.0, zorder=1.5)
        axes.add_patch(patch)


def _draw_marks(axes: Axes, marks: Points, path: np.ndarray | None) -> None:
    if path is not None:
        outline = [patheffects.Stroke(linewidth=3.6, foreground="white"), patheffects.Normal()]
        axes.plot(*path.T, color=PATH_COLOR, lw=1.8, path_effects=outline, zorder=5)
        axes.plot(*path.T, ls="", marker="o", ms=4.5, mfc=PATH_COLOR, mec="white", mew=0.8, zorder=5)
    for (x, y), (shape, size) in zip(marks.values(), markers(marks).values(), strict=True):
        axes.plot([x], [y], ls="", marker=shape, ms=size, mfc="white", mec="black", zorder=6)


def _draw_sheet(axes, grid: Grid, height: np.ndarray, scale: Scale) -> None:
    """Faces between neighbouring finite points; rows, columns and lone points that span no face as line and dots."""
    x, y = np.meshgrid(grid.alpha, grid.beta)
    points = np.stack([x, y, height], axis=-1)  # [beta, alpha, 3]
    finite = np.isfinite(height)
    faces, means, used = [], [], np.zeros(finite.shape, bool)
    for i in range(len(grid.beta) - 1):
        for j in range(len(grid.alpha) - 1):
            corners = [c for c in ((i, j), (i, j + 1), (i + 1, j + 1), (i + 1, j)) if finite[c]]
            if len(corners) >= 3:
                faces.append(np.array([points[c] for c in corners]))
                means.append(np.mean([grid.values[c] for c in corners]))
                for corner in corners:
                    used[corner] = True
    if faces:
        sheet = Poly3DCollection(faces, linewidths=0.25, zorder=2, rasterized=True)
        shades = scale.cmap(scale.norm(np.array(means)))
        sheet.set_facecolor(shades)
        sheet.set_edgecolor("0.2" if max(finite.shape) <= 61 else shades)
        axes.add_collection3d(sheet)
    if 1 in finite.shape:
        axes.plot(*points.reshape(-1, 3).T, color="0.3", lw=1.0, zorder=2)
    lone = finite & ~used
    if lone.any():
        shades = scale.cmap(scale.norm(grid.values[lone]))
        axes.scatter(*points[lone].T, c=shades, s=22, edgecolors="black", linewidths=0.4, depthshade=False, zorder=3)


def color_bar(figure: Figure, panels: list, scale: Scale, label: str, **place: float) -> None:
    """The colour scale beside its panels."""
    ticks = scale.levels if scale.kind != "constant" else scale.levels.mean(keepdims=True)
    note = "" if scale.kind == "linear" else "\n(constant)" if scale.kind == "constant" else f"\n(levels {scale.kind})"
    bar = figure.colorbar(ScalarMappable(scale.norm, scale.cmap), ax=panels, aspect=25, **{"pad": 0.03, **place})
    bar.set_ticks(ticks, labels=style.distinct_labels(ticks), minor=False)
    bar.minorticks_off()
    bar.set_label(style.plain(label, 60) + note)


def axis_label(grid: Grid, axis: str, width: int) -> str:
    """What the axis "x" or "y" is, with its direction, in lines of `width` letters."""
    return "\n".join(style.plain(text, width) for text in _axis_texts([grid], axis) if text)


def _axis_texts(grids: list[Grid], axis: str) -> tuple[str, str]:
    """What the coordinate is, and the direction if all grids share it, else an empty text."""
    letter, name = ("α", "δ₁") if axis == "x" else ("β", "δ₂")
    directions = {str(grid.attrs.get(f"direction_{axis}", "")) for grid in grids}
    norms = {style.number(float(g.attrs[f"norm_{axis}"])) for g in grids if f"norm_{axis}" in g.attrs}
    scales = {SCALES.get(str(grid.attrs.get("y_scale", "")), "") for grid in grids} if axis == "y" else {""}
    scale = scales.pop() if len(scales) == 1 else ""
    size = f"‖{name}‖ = {norms.pop()}" if len(norms) == len(grids) == 1 else ""
    note = ", ".join(filter(None, (size, scale)))
    text = f"{letter}, in units of {name}" + (f" ({note})" if note else "")
    direction = directions.pop() if len(directions) == 1 else ""
    return text, direction


def _title(quantity: str) -> str:
    return {"loss": "Loss surface", "error": "Error surface"}.get(quantity, f"Surface of {quantity}")


def _legend(marks: Mapping, path: np.ndarray | None, names: Mapping[str, None], in_space: bool = False) -> list:
    handles: list = [
        Line2D([], [], ls="", marker=shape, ms=size * 0.8, mfc="white", mec="black", label=style.plain(name, 24))
        for name, (shape, size) in markers(marks).items()
    ]
    if path is not None:
        handles.append(Line2D([], [], color=PATH_COLOR, lw=1.8, marker="o", ms=4.5, label="trajectory"))
    for name in names:
        if in_space:
            marker = "x" if name == style.NOT_FINITE else "."
            handles.append(Line2D([], [], ls="", marker=marker, color="black", ms=5, label=name))
        else:
            hatch, face = HATCHES[name]
            handles.append(Patch(hatch=hatch, fc=face, ec="0.35", lw=0.0, label=name))
    return handles
