"""The trajectory on the page: the path of the snapshots in its plane, and their losses by step."""

import numpy as np
import xarray as xr

from bertjax.report import page_block as blocks
from bertjax.report import style
from bertjax.report.marks import marks_of
from bertjax.report.page_block import Block, Panel
from bertjax.report.page_figures import half_interval, missing_sentence, plain_cell, with_interval
from bertjax.report.page_html import plotly_text, table
from bertjax.report.trajectory import HEADS, PAPER_COLOR

PATHS = {
    "least squares: α, β": ("alpha", "beta", "#D55E00", "solid"),
    "a, b (Hao et al.)": ("a", "b", PAPER_COLOR, "dash"),
}


def trajectory_block(ds: xr.Dataset, title: str) -> Block:
    """The path in units of ‖δ₁‖, in both kinds of coordinates, and the loss under both heads."""
    style.require(ds, "the trajectory", ["a", "b", "alpha", "beta", "length", "off_plane", "step"], ["snapshot"])
    style.require(ds, "the trajectory", list(HEADS), ("split", "snapshot"))
    ds = ds.sortby("step")
    unit = float(ds.attrs.get("norm_x", 1.0))
    plane, path_keys = _plane(ds, unit)
    losses, loss_keys, missing = _losses(ds)
    columns = {
        "step": ds["step"].values,
        "α": ds["alpha"].values,
        "β": ds["beta"].values,
        "a": ds["a"].values,
        "b": ds["b"].values,
        "distance from θ₀": ds["length"].values,
        "distance off the plane": ds["off_plane"].values,
    }
    splits = [str(split) for split in ds["split"].values]
    columns |= {
        f"{split} loss, {words}": ds[name].sel(split=split).values for name, words in HEADS.items() for split in splits
    }
    rows = [
        [str(name), *(plain_cell(float(values[i])) for values in columns.values())]
        for i, name in enumerate(ds["snapshot"].values)
    ]
    last = {name: float(ds[name].values[-1]) / unit for name in ("length", "off_plane")}
    farthest = float(np.nanmax(ds["off_plane"].values)) / unit
    return Block(
        title=title,
        views={"": [plane, losses]},
        legend=[*path_keys, *loss_keys, *(blocks.mark_key(name, blocks.MARKS[name][0]) for name in marks_of(ds.attrs))],
        reading=[
            f"The last snapshot is {style.number(last['length'])} ‖δ₁‖ from θ₀; the path leaves the plane by at most "
            f"{style.number(farthest)} ‖δ₁‖.",
            missing_sentence(missing, len(rows), "snapshots"),
        ],
        caption=" · ".join(
            filter(
                None,
                (
                    f"δ₁: {ds.attrs.get('direction_x', '')}",
                    f"δ₂: {ds.attrs.get('direction_y', '')}",
                    style.caption_of({"": ds}),
                ),
            )
        ),
        table=[table("Snapshots", ["snapshot", *columns], rows, numbers=range(1, len(columns) + 1))],
    )


def _plane(ds: xr.Dataset, unit: float) -> tuple[Panel, list]:
    scale_y = float(ds.attrs.get("norm_y", unit)) / unit
    steps = ds["step"].values
    data, keys = [], []
    for name, (x, y, color, dash) in PATHS.items():
        across = ds[y].values * (scale_y if y == "beta" else 1.0)
        texts = [
            f"step {step}: {style.number(float(u))}, {style.number(float(v))}"
            for step, u, v in zip(steps, ds[x].values, across, strict=True)
        ]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": plotly_text(name),
                "x": ds[x].values,
                "y": across,
                "text": [plotly_text(text) for text in texts],
                "hovertemplate": "%{text}<extra></extra>",
                "line": {"color": color, "width": 2, "dash": dash},
                "marker": {"size": 7, "color": "white", "line": {"color": color, "width": 1.5}},
            }
        )
        keys.append(blocks.line_key(name, color, dash, filled=False))
    data += [blocks.points_of([x], [y * scale_y], name) for name, (x, y) in marks_of(ds.attrs).items()]
    layout = blocks.flat_layout(
        blocks.axis("along δ₁, in units of ‖δ₁‖"), blocks.axis(), shapes=[blocks.horizontal(0.0, "#999999", "dot")]
    )
    layout["hovermode"] = "closest"
    label = "across: β·‖δ₂‖/‖δ₁‖ (least squares), or b (all that is left), in units of ‖δ₁‖"
    return Panel(label=label, data=data, layout=layout, alternative="path of the snapshots in the plane"), keys


def _losses(ds: xr.Dataset) -> tuple[Panel, list, dict[str, int]]:
    steps = ds["step"].values.astype(np.float64)
    status = ds["status"].values if "status" in ds else None
    own = ds["own_head"].values.astype(bool) if "own_head" in ds else np.ones(len(steps), bool)
    data, keys, drawn, uppers, missing = [], [], [], [], {}
    splits = [str(split) for split in ds["split"].values]
    for row, (name, words) in enumerate(HEADS.items()):
        color = style.COLORS[row]
        for split in splits:
            values, bad, todo = style.split_missing(ds[name].sel(split=split).values, status)
            bad &= own | (name != "loss")  # a snapshot without a head of its own is no failure
            half = half_interval(ds, name, {"split": split}, values)
            texts = [f"{split}, {words}: {with_interval(*part)}" for part in zip(values, half, bad, todo, strict=True)]
            data.append(blocks.series(steps, values, texts, split, color, raw=False))
            for kind, mask in ((style.NOT_FINITE, bad), (style.NOT_EVALUATED, todo)):
                if mask.any():
                    missing[kind] = max(missing.get(kind, 0), int(mask.sum()))
                    data.append(blocks.missing_marks(steps, mask, kind, row))
            drawn.append(values)
            uppers.append(values + np.nan_to_num(half))
        keys.append(blocks.line_key(f"loss, {words}", color))
    keys += [blocks.line_key(split, "#444444", blocks.DASH.get(split, "dot"), marker=False) for split in splits]
    everything = np.concatenate(drawn)
    log = style.is_log(everything)
    layout = blocks.flat_layout(
        blocks.axis("training step (optimizer updates)"), blocks.value_axis(everything, np.concatenate(uppers), log)
    )
    if not np.isfinite(everything).any():
        layout["annotations"] = [blocks.note("no finite value")]
    label = style.quantity_label(ds.attrs, "loss") + (" (log scale)" if log else "")
    keys += [blocks.mark_key(kind, blocks.SYMBOLS[kind]) for kind in missing]
    return Panel(label=label, data=data, layout=layout, alternative=f"{label} of the snapshots"), keys, missing
