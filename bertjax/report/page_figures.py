"""Plots of the page along one axis: learning curves, loss curves, rollback bars. Same words as the other figures."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from bertjax.report import page_block as blocks
from bertjax.report import style
from bertjax.report.marks import END, marks_of
from bertjax.report.page_block import Block, Panel
from bertjax.report.page_html import Html, clean, table

RAW = "train/loss"  # drawn thinner: it is the loss of the steps, with dropout


def learning_block(records: Sequence[Mapping[str, Any]], headline: str, loss_label: str, majority: float) -> Block:
    """Learning curves: losses in one panel, the dev score and the majority baseline in the other.

    Arguments:
      records: lines of metrics.jsonl.
      headline: the dev metric that is drawn.
      loss_label: what is averaged and its unit.
      majority: accuracy of the majority class; NaN where it is not stored.
    """
    splits: dict[str, str] = {}
    missing: dict[str, int] = {}
    drawn_values = 0
    panels = []
    for keys, label in (((RAW, "dev/loss"), loss_label), ((f"dev/{headline}",), f"dev {headline}")):
        data, drawn = [], []
        for key in keys:
            steps, values, bad = steps_of(records, key)
            if not len(steps):
                continue
            split = key.partition("/")[0]
            splits.setdefault(split, blocks.DASH[split])
            texts = [f"{key}: {_spoken(value, b)}" for value, b in zip(values, bad, strict=True)]
            data.append(blocks.series(steps, values, texts, split, style.COLORS[0], raw=key == RAW))
            if bad.any():
                missing[style.NOT_FINITE] = missing.get(style.NOT_FINITE, 0) + int(bad.sum())
                data.append(blocks.missing_marks(steps, bad, style.NOT_FINITE, len(drawn)))
            drawn.append(values)
            drawn_values += len(values)
        values = np.concatenate([*drawn, np.empty(0)])
        log = keys[0] == RAW and style.is_log(values)
        layout = blocks.flat_layout(
            blocks.axis("training step (optimizer updates)", rangemode="tozero"),
            blocks.value_axis(values, np.empty(0), log),
        )
        if math.isfinite(majority) and headline == "accuracy" and keys[0] != RAW:
            layout["shapes"] = [blocks.horizontal(majority)]
            # A shape does not widen the axis: an unseen point on the line does.
            data.append({"type": "scatter", "x": [0], "y": [majority], "opacity": 0, "hoverinfo": "skip"})
        if not np.isfinite(values).any():
            layout["annotations"] = [blocks.note("no finite value recorded" if drawn else "nothing recorded")]
        label += " (log scale)" if log else ""
        panels.append(Panel(label=label, data=data, layout=layout, alternative=f"{label} over the training steps"))
    legend = [
        blocks.line_key(split, style.COLORS[0], dash, filled=split != "dev") for split, dash in splits.items()
    ] + [blocks.mark_key(kind, blocks.SYMBOLS[kind]) for kind in missing]
    if math.isfinite(majority) and headline == "accuracy":
        legend.append(blocks.line_key(f"majority baseline: {majority:.3f}", "#444444", "dash", marker=False))
    steps = sorted({record["step"] for record in records if "step" in record})
    columns = list(dict.fromkeys(key for record in records for key in record if key != "step"))
    by_step = {step: {} for step in steps}
    for record in records:
        by_step.get(record.get("step"), {}).update(record)
    rows = [[step, *(_cell(by_step[step][key]) if key in by_step[step] else "" for key in columns)] for step in steps]
    shown = [key for key in (RAW, "dev/loss", f"dev/{headline}") if key in columns]
    texts = [
        f"step {step}: " + ", ".join(f"{key} {_cell(by_step[step][key])}" for key in shown if key in by_step[step])
        for step in steps
    ]
    return Block(
        title="Learning curves",
        views={"": panels},
        legend=legend,
        reading=[_learning_sentence(records, headline), missing_sentence(missing, drawn_values, "recorded values")],
        caption="Train: mean over the steps since the last record, dropout on. Dev: all dev rows, dropout off.",
        table=[table("Records of metrics.jsonl", ["step", *columns], rows, numbers=range(len(columns) + 1))],
        reader=blocks.line_reader("step", steps, texts, len(steps) - 1) if steps else None,
    )


def curve_block(ds: xr.Dataset, title: str) -> Block:
    """Loss and, where it is stored, error rate along δ₁."""
    style.require(ds, "the curve", ["loss"], ("split", "alpha"))
    ds = ds.sortby("alpha")
    alpha = np.asarray(ds["alpha"].values, np.float64)
    named = {name: x for name, (x, y) in marks_of(ds.attrs).items() if y == 0}
    splits = [str(split) for split in ds["split"].values]
    status = ds["status"].values if "status" in ds else None
    panels, tables = [], []
    kinds: dict[str, int] = {}
    spoken: list[list[str]] = [[] for _ in alpha]
    readings = []
    for quantity in [name for name in ("loss", "error") if name in ds]:
        label = style.quantity_label(ds.attrs, quantity)
        log = quantity == "loss" and style.is_log(_finite_part(ds[quantity], status))
        lines, uppers, marks, bands, edge = [], [np.empty(0)], [], [], []
        for row, split in enumerate(splits):
            values, bad, todo = style.split_missing(ds[quantity].sel(split=split).values, status)
            half = half_interval(ds, quantity, {"split": split}, values)
            texts = [with_interval(*cell) for cell in zip(values, half, bad, todo, strict=True)]
            hover = [f"{split}: {text}" for text in texts]
            lines.append(blocks.series(alpha, values, hover, split, style.COLORS[0], raw=False))
            uppers.append(values + half)
            bands.append((values - half, values + half))
            for kind, mask in ((style.NOT_FINITE, bad), (style.NOT_EVALUATED, todo)):
                if mask.any():
                    kinds[kind] = max(kinds.get(kind, 0), int(mask.sum()))
                    edge.append(blocks.missing_marks(alpha, mask, kind, row))
            for name, at in named.items():
                here = np.isclose(alpha, at, rtol=0, atol=1e-9) & np.isfinite(values)
                if here.any():
                    marks.append(blocks.points_of(alpha[here], values[here], name))
            for index, text in enumerate(texts):
                spoken[index].append(f"{split} {quantity} {text}")
            readings.append(_curve_sentence(alpha, values, split, quantity))
        everything = np.concatenate([line["y"] for line in lines])
        y_axis = blocks.value_axis(everything, np.concatenate(uppers), log)
        lowest = 10 ** y_axis["range"][0] if log else -np.inf
        areas = [
            blocks.band(alpha, np.maximum(low, lowest), high, style.COLORS[0])
            for low, high in bands
            if np.isfinite(low).any()
        ]
        layout = blocks.flat_layout(
            blocks.axis("α: position on the line θ(α) = θ₀ + α·δ₁"),
            y_axis,
            shapes=[blocks.vertical(at) for at in named.values()],
        )
        if not np.isfinite(everything).any():
            layout["annotations"] = [blocks.note("no finite value")]
        label += " (log scale)" if log else ""
        panels.append(
            Panel(label=label, data=areas + lines + marks + edge, layout=layout, alternative=f"{label} over α")
        )
        tables.append(_line_table(ds, quantity, label, alpha, splits, status))
    legend = [
        blocks.line_key(split, style.COLORS[0], blocks.DASH.get(split, "dot"), filled=split != "dev")
        for split in splits
    ]
    if any(f"{quantity}_se" in ds for quantity in ("loss", "error")):
        legend.append(blocks.box_key("±1.96 standard errors", "rgba(0, 114, 178, 0.2)"))
    legend += [blocks.mark_key(name, blocks.MARKS[name][0]) for name in named]
    legend += [blocks.mark_key(kind, blocks.SYMBOLS[kind]) for kind in kinds]
    direction = str(ds.attrs.get("direction_x", "")) or "θ₁ − θ₀"
    start = int(np.argmin(np.abs(alpha - named.get(END, 0.0))))
    return Block(
        title=title,
        views={"": panels},
        legend=legend,
        reading=[*readings, missing_sentence(kinds, len(alpha), "points")],
        caption=" · ".join(filter(None, (f"δ₁: {direction}", style.caption_of({"": ds})))),
        table=tables,
        reader=blocks.line_reader(
            "α", alpha.tolist(), [f"α = {a:.4g}: {'; '.join(s)}" for a, s in zip(alpha, spoken, strict=True)], start
        ),
    )


def steps_of(records: Sequence[Mapping[str, Any]], key: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, values and the mask "not finite" of one key, by step; null and words count as not finite."""
    found = sorted(
        ((record["step"], record[key]) for record in records if key in record and "step" in record),
        key=lambda pair: pair[0],
    )
    steps = np.array([step for step, _ in found], np.float64)
    values, bad, _ = style.split_missing(np.array([_number(value) for _, value in found], np.float64), None)
    return steps, values, bad


def cell(value: float, bad: bool = False, todo: bool = False) -> str:
    """A stored number in a table: six significant digits; what is missing in words."""
    if todo:
        return style.NOT_EVALUATED
    return style.NOT_FINITE if bad or not math.isfinite(value) else f"{value:.6g}"


def _line_table(
    ds: xr.Dataset, quantity: str, label: str, alpha: np.ndarray, splits: list[str], status: np.ndarray | None
) -> Html:
    columns, cells = ["α"], [[f"{a:.6g}"] for a in alpha]
    for split in splits:
        values, bad, todo = style.split_missing(ds[quantity].sel(split=split).values, status)
        errors = stored(ds, f"{quantity}_se", {"split": split}, values.shape)
        columns += [f"{split} {quantity}", "standard error"]
        for row, filled in enumerate(cells):
            filled += [cell(values[row], bad[row], todo[row]), plain_cell(errors[row])]
    return table(label, columns, cells, numbers=range(len(columns)))


def stored(ds: xr.Dataset, name: str, at: Mapping[str, str], shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(ds[name].sel(at).values, np.float64) if name in ds else np.full(shape, np.nan)


def half_interval(ds: xr.Dataset, quantity: str, at: Mapping[str, str], values: np.ndarray) -> np.ndarray:
    """Half the 95 % interval; NaN where there is none to draw."""
    errors = stored(ds, f"{quantity}_se", at, values.shape) * style.INTERVAL
    return np.where(np.isfinite(errors) & np.isfinite(values), errors, np.nan)


def _finite_part(values: xr.DataArray, status: np.ndarray | None) -> np.ndarray:
    values = values.transpose("split", ...).values
    return np.concatenate([style.split_missing(part, status)[0] for part in values])


def with_interval(value: float, half: float, bad: bool, todo: bool) -> str:
    if todo or bad:
        return style.NOT_EVALUATED if todo else style.NOT_FINITE
    return (
        f"{value:.3f}" + (f" ± {half:.3f}" if math.isfinite(half) else "")
        if 1e-3 <= abs(value) < 1e4
        else (f"{value:.3g}" + (f" ± {half:.2g}" if math.isfinite(half) else ""))
    )


def _spoken(value: float, bad: bool) -> str:
    return style.NOT_FINITE if bad else f"{value:.4g}"


def plain_cell(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else "–"


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def _cell(value: Any) -> str:
    return cell(_number(value)) if value is None or isinstance(value, (int, float)) else clean(value)


def _curve_sentence(alpha: np.ndarray, values: np.ndarray, split: str, quantity: str) -> str:
    finite = np.isfinite(values)
    if not finite.any():
        return f"{split} {quantity}: no finite value."
    parts = [
        f"{style.number(values[at][0])} at α = {int(where)} ({name})"
        for name, where in (("start", 0.0), ("end", 1.0))
        if (at := np.isclose(alpha, where, rtol=0, atol=1e-9) & finite).any()
    ]
    low = int(np.nanargmin(values))
    return f"{split} {quantity}: " + "; ".join(
        [*parts, f"lowest {style.number(values[low])} at α = {style.number(alpha[low])}."]
    )


def _learning_sentence(records: Sequence[Mapping[str, Any]], headline: str) -> str:
    steps, values, _ = steps_of(records, f"dev/{headline}")
    if not np.isfinite(values).any():
        return ""
    best = int(np.nanargmax(values))
    return (
        f"dev {headline}: {_spoken(values[0], not math.isfinite(values[0]))} at step {steps[0]:.0f}, "
        f"{_spoken(values[-1], not math.isfinite(values[-1]))} at step {steps[-1]:.0f}; "
        f"highest {values[best]:.4g} at step {steps[best]:.0f}."
    )


def missing_sentence(missing: Mapping[str, int], count: int, what: str) -> str:
    found = [f"{number} {kind}" for kind, number in missing.items() if number]
    return f"Of {count} {what}: {', '.join(found)}; drawn as missing." if found else ""
