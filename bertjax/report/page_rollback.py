"""The rollback bars of the page: the score with each group of layers set back to its values before training."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from bertjax.report import page_block as blocks
from bertjax.report import style
from bertjax.report.page_block import Block, Panel
from bertjax.report.page_figures import cell, half_interval, missing_sentence, plain_cell, stored, with_interval
from bertjax.report.page_html import Html, plotly_text, table


def rollback_block(ds: xr.Dataset, title: str) -> Block:
    """Bars of the score (of the loss where no score is stored) with each group of layers at its start values."""
    quantity = "score" if "score" in ds else "loss"
    style.require(ds, "the rollback", [quantity], ("split", "group"))
    groups = [str(group) for group in ds["group"].values]
    splits = sorted((str(split) for split in ds["split"].values), key=lambda split: split != "dev")
    name = str(ds.attrs.get("score_name", "score")) if quantity == "score" else style.quantity_label(ds.attrs, "loss")
    spoken = {"none": "none (trained model)", "all": "all (start model's encoder, trained head)"}
    views, legend, readings = {}, [], []
    for split in splits:
        values, bad, todo = style.split_missing(
            ds[quantity].sel(split=split).values, ds["status"].values if "status" in ds else None
        )
        half = half_interval(ds, quantity, {"split": split}, values)
        texts = [with_interval(*cell) for cell in zip(values, half, bad, todo, strict=True)]
        references = {
            f"{who}: {style.number(values[groups.index(group)])}": (values[groups.index(group)], color, dash)
            for who, group, color, dash in (
                ("trained model", "none", "#000000", "solid"),
                ("start model", "all", "#0072B2", "dash"),
            )
            if group in groups
        }
        if quantity == "score" and math.isfinite(majority := float(ds.attrs.get("majority", math.nan))):
            references[f"majority baseline: {majority:.3f}"] = (majority, "#D55E00", "dot")
        references = {text: look for text, look in references.items() if math.isfinite(look[0])}
        label = f"{split} {name}, with 95 % interval (±1.96 standard errors)"
        views[split] = [
            Panel(
                label=label,
                data=_bars(groups, values, half, bad | todo, texts),
                layout=_bar_layout([spoken.get(group, group) for group in groups], references, values),
                alternative=f"bars of {label}, one for each group of layers",
            )
        ]
        if split == splits[0]:
            legend = [blocks.line_key(text, color, dash, marker=False) for text, (_, color, dash) in references.items()]
        readings.append(missing_sentence({style.NOT_FINITE: int(bad.sum())}, len(groups), f"{split} groups"))
    return Block(
        title=title,
        views=views,
        controls={"Rows": [(split, split) for split in splits]},
        legend=legend,
        reading=[
            "Each bar: one group of layers is set back to θ₀ in the trained model, without further training.",
            *readings,
        ],
        caption=style.caption_of({"": ds}),
        table=[_rollback_table(ds, groups, splits)],
        size="wide",
        height=110 + 38 * len(groups),
    )


def _bars(groups: Sequence[str], values: np.ndarray, half: np.ndarray, lost: np.ndarray, texts: list[str]) -> list:
    rows = np.arange(len(groups))
    colors = ["#bfbfbf" if group in ("none", "all") else style.COLORS[4] for group in groups]
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": values,
        "y": rows,
        "width": 0.66,
        "marker": {"color": colors, "line": {"color": "#444444", "width": 1}},
        "error_x": {"type": "data", "array": half, "color": "black", "thickness": 1.3, "width": 4},
        "text": [plotly_text(text) for text in texts],
        "textposition": "inside",
        "insidetextanchor": "start",
        "constraintext": "none",
        "textfont": {"color": "black"},
        "hovertemplate": "%{text}<extra></extra>",
    }
    gone = {
        "type": "scatter",
        "mode": "markers+text",
        "x": np.zeros(int(lost.sum())),
        "y": rows[lost],
        "marker": {"symbol": "x-thin", "size": 9, "line": {"width": 1.6, "color": blocks.INK}},
        "text": [plotly_text(text) for text, is_lost in zip(texts, lost, strict=True) if is_lost],
        "textposition": "middle right",
        "hoverinfo": "skip",
        "cliponaxis": False,
    }
    return [bars, gone] if lost.any() else [bars]


def _bar_layout(names: list[str], references: dict[str, tuple[float, str, str]], values: np.ndarray) -> dict[str, Any]:
    ticks = {"tickvals": list(range(len(names))), "ticktext": [plotly_text(name, 22) for name in names]}
    y_axis = blocks.axis(range=[len(names) - 0.4, -0.6], automargin=True, showgrid=False, fixedrange=True, **ticks)
    shapes = [
        blocks.vertical(value, color, dash, 1.6) | {"layer": "above"} for value, color, dash in references.values()
    ]
    layout = blocks.flat_layout(blocks.axis(rangemode="tozero"), y_axis, shapes=shapes, hovermode="closest")
    layout["margin"] = {"l": 20, "r": 16, "t": 6, "b": 34}
    if not np.isfinite(values).any():
        layout["annotations"] = [blocks.note("no finite value")]
    return layout


def _rollback_table(ds: xr.Dataset, groups: list[str], splits: list[str]) -> Html:
    status = ds["status"].values if "status" in ds else None
    columns, cells = ["group"], [[group] for group in groups]
    for split in splits:
        for quantity in [name for name in ("score", "error", "loss") if name in ds]:
            values, bad, todo = style.split_missing(ds[quantity].sel(split=split).values, status)
            columns += [f"{split} {quantity}", "standard error"]
            errors = stored(ds, f"{quantity}_se", {"split": split}, values.shape)
            for row, filled in enumerate(cells):
                filled += [cell(values[row], bad[row], todo[row]), plain_cell(errors[row])]
    if "moved" in ds:
        columns.append("moved distance")
        for filled, moved in zip(cells, ds["moved"].values, strict=True):
            filled.append(cell(float(moved)))
    return table("Scores of the rollback", columns, cells, numbers=range(1, len(columns)))
