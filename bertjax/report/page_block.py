"""One figure of the page: its plots in all their views, controls, legend, a sentence that reads it, its table.

A view is what one choice of the controls shows: a list of panels, each a plotly figure with the label of its values.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.report import style
from bertjax.report.marks import END, OTHER_END, START
from bertjax.report.page_html import Html, details, el, join, plotly_text

INK, GRID = "#222222", "#dddddd"
FONT = {"family": "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif", "size": 12, "color": INK}
DASH = {"train": "solid", "dev": "dash"}  # any further split is dotted
SYMBOLS = {style.NOT_FINITE: "x-thin", style.NOT_EVALUATED: "line-ns"}
MARKS = {START: ("diamond", 11), END: ("star", 15), OTHER_END: ("pentagon", 13)}
CURSOR = "#d55e00"

_DASHES = {"solid": None, "dash": "6 3", "dot": "2 3", "dashdot": "7 3 2 3"}
_SHAPES = {
    "diamond": "M17 1 22 6 17 11 12 6Z",
    "star": "M17 0 18.8 4.2 23 4.5 19.8 7.3 20.9 11.6 17 9.2 13.1 11.6 14.2 7.3 11 4.5 15.2 4.2Z",
    "pentagon": "M17 0.5 22.5 4.5 20.4 11 13.6 11 11.5 4.5Z",
    "x-thin": "M13 2 21 10M21 2 13 10",
    "line-ns": "M17 1V11",
}


@dataclasses.dataclass(kw_only=True)
class Panel:
    """One plot: the label of its values and a plotly figure as plain data.

    In space, `heights` [y, x] is where the marker that reads the surface stands; None: on the floor.
    """

    label: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    alternative: str
    in_space: bool = False
    heights: Any = None


@dataclasses.dataclass(kw_only=True)
class Block:
    """A figure of the page.

    Attributes:
      title: heading.
      views: choice of every control, joined by "/" -> panels. Without controls the only key is "".
      controls: name of a control -> its choices as (value, text).
      legend: entries made by `line_key`, `mark_key` and `box_key`.
      caption: what was measured.
      reading: a sentence with the values that matter.
      table: the values.
      reader: positions that a slider steps through, as data for page.js; see `line_reader`.
      size: class of the plots: "wide", "tall" or "row" (two side by side).
    """

    title: str
    views: Mapping[str, Sequence[Panel]]
    legend: Sequence[Html] = ()
    caption: str = ""
    reading: Sequence[str] = ()
    table: Sequence[Html] = ()
    controls: Mapping[str, Sequence[tuple[str, str]]] = dataclasses.field(default_factory=dict)
    reader: dict[str, Any] | None = None
    size: str = "row"
    height: int = 300

    def data(self, number: int) -> dict[str, Any]:
        """What page.js needs to draw the figure with this number."""
        return {
            "id": f"figure-{number}",
            "controls": [[name, choices[0][0]] for name, choices in self.controls.items()],
            "views": {key: [dataclasses.asdict(panel) for panel in panels] for key, panels in self.views.items()},
            "reader": self.reader,
        }

    def html(self, number: int, named: bool) -> Html:
        """The figure without its plots, which page.js draws; named: with its title above."""
        first = next(iter(self.views.values()))
        name = f"figure-{number}"
        plots = [
            el(
                "div",
                el("p", panel.label, class_="label"),
                el("div", class_="plot", role="img", aria_label=panel.alternative, style=f"height:{self.height}px"),
                class_="panel",
            )
            for panel in first
        ]
        return el(
            "figure",
            el("h3", self.title) if named else None,
            self._choices(name),
            el("div", *plots, class_=f"panels {self.size}"),
            el("ul", *(el("li", entry) for entry in self.legend), class_="legend") if self.legend else None,
            _sliders(name, self.reader, any(panel.in_space for panels in self.views.values() for panel in panels)),
            el("figcaption", *(el("p", line) for line in (*self.reading, self.caption) if line)),
            details("Values of this figure as a table", *self.table) if self.table else None,
            id=name,
            aria_label=self.title,
        )

    def _choices(self, figure: str) -> Html | None:
        groups = [
            el(
                "fieldset",
                el("legend", name),
                *(
                    el(
                        "label",
                        el("input", type="radio", name=f"{figure}-{name}", value=value, checked=index == 0),
                        text,
                    )
                    for index, (value, text) in enumerate(choices)
                ),
            )
            for name, choices in self.controls.items()
            if len(choices) > 1
        ]
        return el("div", *groups, class_="controls", data_needs_script=True) if groups else None


def line_key(text: str, color: str, dash: str = "solid", marker: bool = True, filled: bool = True) -> Html:
    """Legend entry of a line."""
    stroke = {"stroke": color, "stroke_width": "2"}
    dot = el("circle", cx="17", cy="6", r="3.5", fill=color if filled else "white", **stroke) if marker else None
    return _entry(text, el("line", x1="0", y1="6", x2="34", y2="6", stroke_dasharray=_DASHES[dash], **stroke), dot)


def mark_key(text: str, symbol: str) -> Html:
    """Legend entry of a mark."""
    return _entry(text, el("path", d=_SHAPES[symbol], fill="white", stroke="black", stroke_width="1.3"))


def box_key(text: str, color: str) -> Html:
    """Legend entry of an area."""
    return _entry(text, el("rect", x="5", y="1", width="24", height="10", fill=color))


def _entry(text: str, *shapes: Html | None) -> Html:
    return join([el("svg", *shapes, width="34", height="12", viewBox="0 0 34 12", aria_hidden="true"), text])


def line_reader(name: str, positions: Sequence[float], texts: Sequence[str], start: int) -> dict[str, Any]:
    """A slider that steps through positions on the x axis and says the values there."""
    return {"kind": "line", "names": [name], "x": list(positions), "texts": list(texts), "start": [start]}


def _sliders(figure: str, reader: dict[str, Any] | None, in_space: bool) -> Html | None:
    rows = []
    if reader:
        axes = [reader["x"]] if reader["kind"] == "line" else [reader["x"], reader["y"]]
        for index, (name, values, start) in enumerate(zip(reader["names"], axes, reader["start"], strict=True)):
            rows.append(_slider(f"Read at {name}", f"read-{index}", 0, len(values) - 1, start))
        rows.append(el("output", class_="reading", id=f"{figure}-output", aria_live="polite"))
    if in_space:
        turns = (("Turn", "turn", -180, 180, -60), ("Tilt", "tilt", 0, 90, 35), ("Distance", "distance", 100, 400, 200))
        space = [_slider(text, role, low, high, value) for text, role, low, high, value in turns]
        rows.append(el("div", *space, el("button", "Reset view", type="button"), class_="space", hidden=True))
    return el("div", *rows, class_="sliders", data_needs_script=True) if rows else None


def _slider(text: str, role: str, low: int, high: int, value: int) -> Html:
    return el(
        "label",
        el("span", text),
        el("input", type="range", min=low, max=high, step=1, value=value, data_role=role),
    )


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis of a plotly figure."""
    look = {"gridcolor": GRID, "zeroline": False, "linecolor": "#777777", "ticks": "outside", "ticklen": 4}
    return look | ({"title": {"text": plotly_text(title), "standoff": 6}} if title else {}) | more


def flat_layout(x: dict[str, Any], y: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The layout of a plot with two axes, and an invisible third one from 0 to 1 for marks at the upper edge."""
    edge = {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}
    return {
        "autosize": True,
        "font": FONT,
        "margin": {"l": 52, "r": 16, "t": 12, "b": 48},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "showlegend": False,
        "hovermode": "x unified",
        "xaxis": x,
        "yaxis": y,
        "yaxis2": edge,
    } | more


def value_axis(values: np.ndarray, bands: np.ndarray, log: bool) -> dict[str, Any]:
    """The y axis around all values and the upper ends of their bands; log where it is due (as in the other figures)."""
    if not log:
        return axis()
    low, high = np.log10(np.nanmin(values) / 1.5), np.log10(np.nanmax(np.append(values, bands)) * 1.5)
    digits = (1, 2, 5) if high - low < 3.5 else (1,)
    every = max(1, round((high - low) / 8))
    powers = range(math.floor(low), math.ceil(high) + 1, every)
    ticks = [digit * 10.0**power for power in powers for digit in digits]
    ticks = [tick for tick in ticks if low <= math.log10(tick) <= high]
    return axis(type="log", range=[low, high], tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])


def vertical(x: float, color: str = "#999999", dash: str = "dot", width: float = 1.0) -> dict[str, Any]:
    """A line over the whole height of a plot."""
    line = {"color": color, "width": width, "dash": dash}
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line, "layer": "below"}


def horizontal(y: float, color: str = "#444444", dash: str = "dash") -> dict[str, Any]:
    """A line over the whole width of a plot."""
    line = {"color": color, "width": 1.3, "dash": dash}
    return {"type": "line", "y0": y, "y1": y, "xref": "paper", "x0": 0, "x1": 1, "line": line, "layer": "below"}


def note(text: str) -> dict[str, Any]:
    """Words in the middle of a plot that has nothing else to show."""
    return {"text": plotly_text(text), "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5} | {
        "showarrow": False,
        "bgcolor": "white",
        "bordercolor": "#777777",
        "borderpad": 5,
    }


def series(x: np.ndarray, y: np.ndarray, texts: Sequence[str], split: str, color: str, raw: bool) -> dict[str, Any]:
    """One line; a value that is missing leaves a gap."""
    dash = DASH.get(split, "dot")
    marker = {"size": 4 if raw else 6, "color": color if split != "dev" else "white"}
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plotly_text(split),
        "x": x,
        "y": y,
        "text": [plotly_text(text) for text in texts],
        "hovertemplate": "%{text}<extra></extra>",
        "line": {"color": color, "width": 1.2 if raw else 2, "dash": dash},
        "marker": marker | {"line": {"color": color, "width": 1.3}},
        "connectgaps": False,
    }


def band(x: np.ndarray, low: np.ndarray, high: np.ndarray, color: str) -> dict[str, Any]:
    """The area between two lines, one polygon for each stretch without gaps."""
    known = np.isfinite(low) & np.isfinite(high)
    xs: list[float | None] = []
    ys: list[float | None] = []
    for part in np.split(np.arange(len(x)), np.flatnonzero(np.diff(known.astype(int))) + 1):
        if len(part) and known[part[0]]:
            xs += [*x[part], *x[part][::-1], None]
            ys += [*high[part], *low[part][::-1], None]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": xs[:-1],
        "y": ys[:-1],
        "fill": "toself",
        "fillcolor": f"rgba({', '.join(str(int(color[i : i + 2], 16)) for i in (1, 3, 5))}, 0.2)",
        "line": {"width": 0},
        "hoverinfo": "skip",
    }


def missing_marks(x: np.ndarray, mask: np.ndarray, kind: str, row: int) -> dict[str, Any]:
    """Marks at the upper edge where a value is missing."""
    return {
        "type": "scatter",
        "mode": "markers",
        "yaxis": "y2",
        "x": x[mask],
        "y": np.full(int(mask.sum()), 0.98 - 0.04 * row),
        "marker": {"symbol": SYMBOLS[kind], "size": 8, "color": INK, "line": {"width": 1.6, "color": INK}},
        "text": [plotly_text(kind)] * int(mask.sum()),
        "hovertemplate": "%{text}<extra></extra>",
    }


def points_of(x: Sequence[float], y: Sequence[float], name: str) -> dict[str, Any]:
    """A named mark such as start and end."""
    symbol, size = MARKS[name]
    look = {"symbol": symbol, "size": size, "color": "white", "line": {"color": "black", "width": 1.3}}
    return {
        "type": "scatter",
        "mode": "markers",
        "x": list(x),
        "y": list(y),
        "marker": look,
        "hoverinfo": "skip",
        "name": plotly_text(name),
    }
