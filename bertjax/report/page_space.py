"""The surface in 3D: a sheet over the grid, marks on it, and the colours that it shares with the contours."""

from typing import Any

import numpy as np

from bertjax.report import page_block as blocks
from bertjax.report import style
from bertjax.report.grid import Grid, Scale
from bertjax.report.marks import END, OTHER_END, START, marks_of
from bertjax.report.page_html import plotly_text

# Missing points lie on the floor. Of plotly's symbols in space only round ones are in every font.
SYMBOLS = {START: "diamond", END: "square", OTHER_END: "circle"}
FLOOR = {style.NOT_FINITE: ("circle", "●"), style.NOT_EVALUATED: ("circle-open", "○")}


def space(grid: Grid, scale: Scale | None, cells: list[list[str]], quantity: str) -> tuple[list, dict[str, Any]]:
    log = _is_log(grid, scale)
    height = heights(grid, scale)
    finite = np.isfinite(height)
    low, high = (float(np.nanmin(height)), float(np.nanmax(height))) if scale else (0.0, 1.0)
    pad = (high - low) * 0.05 or abs(high) * 0.05 or 0.5
    floor, top = low - pad, high + pad
    data: list[dict[str, Any]] = []
    if scale:
        data += _sheet(grid, scale, height, finite, cells, quantity)
    for kind, mask in grid.missing.items():
        rows, columns = np.nonzero(mask)
        if len(rows):
            look = {"symbol": FLOOR[kind][0], "size": 4, "color": "black"}
            data.append(_spots(grid.alpha[columns], grid.beta[rows], np.full(len(rows), floor), marker=look))
    for name, (x, y) in marks_of(grid.attrs).items():
        at = np.isclose(grid.beta, y)[:, None] & np.isclose(grid.alpha, x)[None] & finite
        z = float(height[at][0]) if at.any() else floor
        symbol = SYMBOLS[name]
        look = {"symbol": symbol, "size": [5, 0.1], "color": "white", "line": {"color": "black", "width": 2}}
        stem = {"color": "black", "width": 3, "dash": "dot"}
        words = {"text": ["", plotly_text(name)], "textposition": "top center"}
        spots = _spots([x, x], [y, y], [z, top], marker=look, line=stem, **words)
        data.append(spots | {"mode": "lines+markers+text"})
    cursor = {"symbol": "circle", "size": 8, "color": blocks.CURSOR, "line": {"color": "white", "width": 1}}
    data.append(_spots([], [], [], marker=cursor))
    z_axis: dict[str, Any] = {
        "range": [floor, top],
        "title": {"text": f"{plotly_text(quantity)}{' (log)' if log else ''}"},
    }
    if log:
        powers = np.linspace(low, high, 5)
        z_axis |= {"tickvals": powers, "ticktext": [f"{10.0**power:.2g}" for power in powers]}
    look = {
        "showbackground": False,
        "gridcolor": "#cccccc",
        "zeroline": False,
        "showspikes": False,
        "color": blocks.INK,
    }
    scene = {
        "xaxis": look | {"title": {"text": "α"}},
        "yaxis": look | {"title": {"text": "β"}},
        "zaxis": look | z_axis,
        "aspectmode": "manual",
        "aspectratio": {"x": 1, "y": 1, "z": 0.7},
        "dragmode": "turntable",
    }
    layout: dict[str, Any] = {
        "autosize": True,
        "font": blocks.FONT,
        "margin": {"l": 0, "r": 0, "t": 0, "b": 0},
        "paper_bgcolor": "white",
        "showlegend": False,
        "scene": scene,
    }
    if scale is None:
        layout["annotations"] = [blocks.note("no finite value")]
    return data, layout


def _is_log(grid: Grid, scale: Scale | None) -> bool:
    return scale is not None and scale.kind != "constant" and style.is_log(grid.values)


def heights(grid: Grid, scale: Scale | None) -> np.ndarray:
    """Heights of the points in the drawing: the logarithm where the axis is logarithmic."""
    return np.log10(grid.values) if _is_log(grid, scale) else grid.values


def _sheet(
    grid: Grid, scale: Scale, height: np.ndarray, finite: np.ndarray, cells: list[list[str]], quantity: str
) -> list[dict[str, Any]]:
    """Faces where four neighbours are finite; a finite point without a face becomes a dot."""
    values, positions = color_positions(grid.values, scale)
    _, steps, bar = colors_of(scale, positions)
    face = finite[1:, 1:] & finite[:-1, 1:] & finite[1:, :-1] & finite[:-1, :-1]
    used = np.zeros(finite.shape, bool)
    for rows in (slice(1, None), slice(None, -1)):
        for columns in (slice(1, None), slice(None, -1)):
            used[rows, columns] |= face
    hover = f"α %{{x:.3g}}, β %{{y:.3g}}<br>{plotly_text(quantity)} %{{text}}<extra></extra>"
    shades = {"colorscale": steps, "cmin": positions[0], "cmax": positions[-1], "colorbar": bar | {"len": 0.75}}
    data: list[dict[str, Any]] = []
    if face.any():
        grid_lines = {"show": True, "color": "#444444", "width": 1, "highlight": False}
        mesh = {
            axis: grid_lines | {"start": float(at[0]), "end": float(at[-1]), "size": float(np.diff(at).min())}
            for axis, at in (("x", grid.alpha), ("y", grid.beta))
        }
        data.append(
            {
                "type": "surface",
                "x": grid.alpha,
                "y": grid.beta,
                "z": height,
                "surfacecolor": values,
                "text": [[plotly_text(text) for text in row] for row in cells],
                "hovertemplate": hover,
                "connectgaps": False,
                "contours": mesh if max(finite.shape) <= 31 else {},
                "lighting": {"ambient": 0.85, "diffuse": 0.35, "specular": 0.05, "roughness": 0.9},
                **shades,
            }
        )
    lone = finite & ~used
    if lone.any():
        rows, columns = np.nonzero(lone)
        look = {"size": 4, "color": values[lone], "showscale": not face.any(), **shades}
        texts = [plotly_text(cells[row][column]) for row, column in zip(rows, columns, strict=True)]
        spots = _spots(grid.alpha[columns], grid.beta[rows], height[lone], marker=look)
        data.append(spots | {"text": texts, "hovertemplate": hover})
    return data


def _spots(x: Any, y: Any, z: Any, **more: Any) -> dict[str, Any]:
    return {"type": "scatter3d", "mode": "markers", "x": x, "y": y, "z": z, "hoverinfo": "skip", **more}


def color_positions(values: np.ndarray, scale: Scale) -> tuple[np.ndarray, np.ndarray]:
    """Values and levels on an axis on which the levels between the ends are evenly spaced, as plotly needs it.

    The first is a copy of the values on linear levels; else the position among the levels, 0 for the lowest.
    """
    levels = scale.levels
    if scale.kind in ("linear", "constant"):
        return values, levels
    bend = np.log10 if scale.kind == "log-spaced" else np.asarray
    known = np.isfinite(values)
    positions = np.full(values.shape, np.nan)
    positions[known] = np.interp(bend(values[known]), bend(levels), np.arange(len(levels)))
    return positions, np.arange(len(levels), dtype=np.float64)


def colors_of(scale: Scale, positions: np.ndarray) -> tuple[list[str], list[list[Any]], dict[str, Any]]:
    """The colour of each band between two levels, the same as steps from 0 to 1, and the bar that names the levels."""
    shades = scale.cmap(scale.norm((scale.levels[1:] + scale.levels[:-1]) / 2))
    bands = [f"rgb({', '.join(str(round(255 * part)) for part in shade[:3])})" for shade in shades]
    edges = (positions - positions[0]) / (positions[-1] - positions[0])
    edges[-1] = 1.0
    steps = [[float(edges[i + side]), color] for i, color in enumerate(bands) for side in (0, 1)]
    constant = scale.kind == "constant"
    levels = scale.levels.mean(keepdims=True) if constant else scale.levels
    spots = positions.mean(keepdims=True) if constant else positions
    # Names of levels close to the ends would be written over those of the ends.
    shown = [constant or i in (0, len(edges) - 1) or 0.04 < edges[i] < 0.96 for i in range(len(spots))]
    names = [name for name, show in zip(style.distinct_labels(levels.tolist()), shown, strict=True) if show]
    look = {"thickness": 14, "len": 1.0, "outlinewidth": 0.5, "ticks": "outside"}
    return bands, steps, look | {"tickvals": spots[shown], "ticktext": names}
