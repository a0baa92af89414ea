"""The surface of the page: contours on the same levels and colours as the other figures, and a sheet to turn in 3D."""

from typing import Any

import numpy as np
import xarray as xr

from bertjax.report import page_block as blocks
from bertjax.report import style
from bertjax.report.grid import Grid, Scale, cell_edges, choose_scale, read_grid
from bertjax.report.marks import marks_of
from bertjax.report.page_block import Block, Panel
from bertjax.report.page_figures import cell, missing_sentence, with_interval
from bertjax.report.page_html import Html, plotly_text, table
from bertjax.report.page_space import FLOOR, color_positions, colors_of, heights, space

DIMS = ("split", "beta", "alpha")
VIEWS = (("contours", "contours"), ("space", "3D"))


def surface_block(ds: xr.Dataset, title: str) -> Block:
    """Every stored quantity and split of a surface, as contours and in 3D."""
    style.require(ds, "the surface", ["loss"], DIMS)
    ds = ds.sortby(["alpha", "beta"])
    stored = [str(name) for name, array in ds.data_vars.items() if set(array.dims) == set(DIMS)]
    quantities = sorted(
        (name for name in stored if not name.endswith("_se")), key=lambda name: (name != "loss", name != "error", name)
    )
    splits = [str(split) for split in ds["split"].values]
    views, tables, texts, readings = {}, [], {}, []
    kinds: dict[str, int] = {}
    for quantity in quantities:
        for split in splits:
            grid = read_grid(ds, split, quantity)
            scale = choose_scale(grid.values)
            cells = _texts(ds, grid, quantity)
            texts[f"{quantity}/{split}"] = [
                [
                    f"α = {a:.4g}, β = {b:.4g}: {split} {quantity} {text}"
                    for a, text in zip(grid.alpha, row, strict=True)
                ]
                for b, row in zip(grid.beta, cells, strict=True)
            ]
            label = f"{split}, {style.quantity_label(ds.attrs, quantity)}"
            if scale and scale.kind != "linear":
                label += " (constant)" if scale.kind == "constant" else f" (levels {scale.kind})"
            for view, function in (("contours", _contours), ("space", space)):
                data, layout = function(grid, scale, cells, quantity)
                words = "contours over α and β" if view == "contours" else "3D surface over α and β"
                views[f"{view}/{quantity}/{split}"] = [
                    Panel(
                        label=label,
                        data=data,
                        layout=layout,
                        alternative=f"{words}: {label}",
                        in_space=view == "space",
                        heights=heights(grid, scale) if view == "space" else None,
                    )
                ]
            for kind, mask in grid.missing.items():
                kinds[kind] = max(kinds.get(kind, 0), int(mask.sum()))
            tables.append(_table(grid, label))
            readings.append(_sentence(grid, split, quantity))
    alpha, beta = (np.asarray(ds[name].values, np.float64) for name in ("alpha", "beta"))
    legend = [blocks.mark_key(name, blocks.MARKS[name][0]) for name in marks_of(ds.attrs)]
    legend += [
        blocks.mark_key(f"{kind} (in 3D {FLOOR[kind][1]} on the floor)", blocks.SYMBOLS[kind])
        for kind, number in kinds.items()
        if number
    ]
    return Block(
        title=title,
        views=views,
        controls={
            "View": VIEWS,
            "Quantity": [(name, {"error": "error rate"}.get(name, name)) for name in quantities],
            "Rows": [(split, split) for split in splits],
        },
        legend=legend,
        reading=[*readings, missing_sentence(kinds, len(alpha) * len(beta), "points")],
        caption=" · ".join(
            filter(
                None,
                (
                    "θ(α, β) = θ₀ + α·δ₁ + β·δ₂",
                    *(
                        f"{name}: {ds.attrs[f'direction_{axis}']}"
                        for name, axis in (("δ₁", "x"), ("δ₂", "y"))
                        if f"direction_{axis}" in ds.attrs
                    ),
                    style.caption_of({"": ds}),
                ),
            )
        ),
        table=tables,
        reader={
            "kind": "grid",
            "names": ["α", "β"],
            "x": alpha.tolist(),
            "y": beta.tolist(),
            "texts": texts,
            "start": [int(np.argmin(np.abs(alpha - 1.0))), int(np.argmin(np.abs(beta)))],
        },
        size="wide",
        height=480,
    )


def _contours(grid: Grid, scale: Scale | None, cells: list[list[str]], quantity: str) -> tuple[list, dict[str, Any]]:
    data: list[dict[str, Any]] = []
    gaps = any(mask.any() for mask in grid.missing.values())
    if scale:
        values, positions = color_positions(grid.values, scale)
        bands, steps, bar = colors_of(scale, positions)
        shared = {
            "z": values,
            "colorbar": bar,
            "text": [[plotly_text(text) for text in row] for row in cells],
            "hovertemplate": f"α %{{x:.3g}}, β %{{y:.3g}}<br>{plotly_text(quantity)} %{{text}}<extra></extra>",
            "hoverongaps": False,
        }
        if gaps or not grid.has_area or len(bands) < 2:  # cells, so that no colour reaches into what is missing
            edges = {"x": cell_edges(grid.alpha), "y": cell_edges(grid.beta)}
            ends = {"zmin": positions[0], "zmax": positions[-1]}
            data.append({"type": "heatmap", "colorscale": steps, **edges, **ends, **shared})
        else:
            inner = positions[1:-1]
            size = float(np.diff(inner).min()) if len(inner) > 1 else float(positions[-1] - positions[0])
            # plotly gives band k of n the colour at k / (n - 1).
            shades = [[k / (len(bands) - 1), color] for k, color in enumerate(bands)]
            filled = {"start": inner[0], "end": inner[-1], "size": size, "showlines": False}
            ends = {"zmin": positions[0], "zmax": positions[-1]}
            place = {"type": "contour", "x": grid.alpha, "y": grid.beta}
            data.append({**place, **shared, **ends, "colorscale": shades, "contours": filled, "line": {"smoothing": 0}})
            data += [place | line | {"z": values} for line in _contour_lines(scale, inner, size)]
    for kind, mask in grid.missing.items():
        rows, columns = np.nonzero(mask)
        if len(rows):
            look = {"symbol": blocks.SYMBOLS[kind], "size": 8, "line": {"width": 1.5, "color": blocks.INK}}
            data.append(_dots(grid.alpha[columns], grid.beta[rows], look) | {"hovertext": kind})
    for name, (x, y) in marks_of(grid.attrs).items():
        data.append(blocks.points_of([x], [y], name))
    data.append(_dots([], [], {"symbol": "circle-open", "size": 17, "line": {"width": 3, "color": blocks.CURSOR}}))
    layout = blocks.flat_layout(
        blocks.axis(_axis_text(grid, "x"), showgrid=False),
        blocks.axis(_axis_text(grid, "y"), showgrid=False),
        hovermode="closest",
    )
    if scale is None:
        layout["annotations"] = [blocks.note("no finite value")]
    return data, layout


def _contour_lines(scale: Scale, inner: np.ndarray, size: float) -> list[dict[str, Any]]:
    """Lines at the levels, white on the dark half of the colours and black on the light one, with their values."""
    shades = scale.cmap(scale.norm(scale.levels[1:-1]))[:, :3]
    light = shades @ (0.299, 0.587, 0.114) >= 0.5
    lines = []
    for color, chosen in (("white", inner[~light]), ("black", inner[light])):
        if len(chosen):
            look = {"coloring": "none", "start": chosen[0], "end": chosen[-1], "size": size}
            if scale.kind == "linear":  # elsewhere the values of plotly are positions among the levels
                look |= {"showlabels": True, "labelfont": {"size": 11, "color": color}}
            stroke = {"width": 0.8, "color": color, "smoothing": 0}
            lines.append({"contours": look, "line": stroke, "showscale": False, "hoverinfo": "skip"})
    return lines


def _dots(x: Any, y: Any, marker: dict[str, Any]) -> dict[str, Any]:
    marker = {"color": marker["line"]["color"]} | marker
    return {"type": "scatter", "mode": "markers", "x": x, "y": y, "marker": marker, "hoverinfo": "text"}


def _axis_text(grid: Grid, axis: str) -> str:
    letter, name = ("α", "δ₁") if axis == "x" else ("β", "δ₂")
    norm = grid.attrs.get(f"norm_{axis}")
    return f"{letter}, in units of {name}" + ("" if norm is None else f" (‖{name}‖ = {style.number(float(norm))})")


def _texts(ds: xr.Dataset, grid: Grid, quantity: str) -> list[list[str]]:
    half = np.full(grid.values.shape, np.nan)
    if f"{quantity}_se" in ds:
        half = ds[f"{quantity}_se"].sel(split=grid.split).transpose("beta", "alpha").values * style.INTERVAL
    bad, todo = grid.missing[style.NOT_FINITE], grid.missing[style.NOT_EVALUATED]
    return [
        [
            with_interval(grid.values[at], half[at], bool(bad[at]), bool(todo[at]))
            for at in ((i, j) for j in range(len(grid.alpha)))
        ]
        for i in range(len(grid.beta))
    ]


def _table(grid: Grid, label: str) -> Html:
    bad, todo = grid.missing[style.NOT_FINITE], grid.missing[style.NOT_EVALUATED]
    rows = [
        [f"{beta:.6g}", *(cell(grid.values[i, j], bad[i, j], todo[i, j]) for j in range(len(grid.alpha)))]
        for i, beta in enumerate(grid.beta)
    ]
    columns = ["β \\ α", *(f"{alpha:.6g}" for alpha in grid.alpha)]
    return table(label, columns, rows, numbers=range(len(columns)))


def _sentence(grid: Grid, split: str, quantity: str) -> str:
    if not np.isfinite(grid.values).any():
        return f"{split} {quantity}: no finite value."
    i, j = np.unravel_index(np.nanargmin(grid.values), grid.values.shape)
    parts = []
    for name, (x, y) in marks_of(grid.attrs).items():
        at = np.isclose(grid.alpha, x)[None] & np.isclose(grid.beta, y)[:, None] & np.isfinite(grid.values)
        if at.any():
            parts.append(f"{style.number(grid.values[at][0])} at the {name}")
    place = f"α = {style.number(grid.alpha[j])}, β = {style.number(grid.beta[i])}"
    lowest = f"lowest {style.number(grid.values[i, j])} at {place}"
    highest = f"highest {style.number(float(np.nanmax(grid.values)))}"
    return f"{split} {quantity}: " + "; ".join([*parts, lowest, highest]) + "."
