"""How bertjax figures look and are saved: palette, line styles, safe text, labels, captions, log axes, PNG and SVG."""

import functools
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import xarray as xr
from matplotlib import font_manager, ticker
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bertjax.errors import InputError
from bertjax.paths import replacing

STYLE = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "axes.labelsize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.titlesize": 11.0,
    "figure.titleweight": "bold",
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
    "legend.fontsize": 8.0,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "text.usetex": False,
    "svg.fonttype": "none",  # text stays text: searchable, and readable by a screen reader
    "svg.hashsalt": "bertjax",
}
# Okabe and Ito (2008) without yellow, which is too pale for a line on white. Seven colours and eight markers: 56 pairs.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "v", "P", "<", "h", ">")
DASHES = {"train": "-", "dev": "--"}  # any further split is dotted
COLORMAP = "cividis"
NOT_FINITE, NOT_EVALUATED = "not finite", "not evaluated"
INTERVAL = 1.96  # standard errors on each side of a 95 % interval
LOG_SPAN = 30.0  # largest ratio of the values that is drawn on a linear axis
DPI = 150


def save(figure: Figure, path_without_suffix: str | Path) -> list[Path]:
    """Writes a figure as PNG and as SVG; the same data give the same bytes. Returns both paths."""
    base = Path(path_without_suffix)
    written = []
    with matplotlib.rc_context(STYLE):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # the layout found above holds for both files, and for a second save
        for suffix, metadata in ((".png", {}), (".svg", {"Date": None})):
            target = base.with_name(base.name + suffix)
            with replacing(target) as temporary:
                figure.savefig(temporary, format=suffix[1:], dpi=DPI, metadata=metadata)
            written.append(target)
    return written


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in inches with constrained layout and its own Agg canvas, unknown to pyplot."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def finish(figure: Figure, title: str, caption: str, handles: Sequence = ()) -> Figure:
    """Adds the title above, the caption below and a legend on the right; long text is broken into lines that fit."""
    width = figure.get_figwidth()
    figure.suptitle(plain(title, int((width - 2.2) * 8.5)), x=0.01, ha="left")
    if caption:
        figure.supxlabel(plain(caption, int(width * 18)), fontsize=7.5, x=0.01, ha="left", color="0.25")
    if handles:
        figure.legend(handles=handles, loc="outside right upper")
    return figure


def plain(text: object, width: int | None = None) -> str:
    """Text that is drawn as it is written: no math markup, known glyphs only, broken into lines of `width` letters."""
    text = " ".join(str(text).replace("->", "→").split())
    text = "".join(letter if ord(letter) in _glyphs() else "?" for letter in text)
    if width:
        text = textwrap.fill(text, width, break_on_hyphens=False)
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text  # a legend drops labels with a leading underscore


@functools.cache
def _glyphs() -> frozenset[int]:
    return frozenset(font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap())


def number(value: float) -> str:
    """A number for a label: three significant digits, more where a whole number needs them."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def distinct_labels(values: Sequence[float]) -> list[str]:
    """The shortest labels, of three significant digits or more, that tell the values apart."""
    labels: list[str] = []
    for digits in range(3, 18):
        labels = [f"{value:.{digits}g}".replace("-", "−") for value in values]
        if len(set(labels)) == len(set(values)):
            break
    return labels


def quantity_label(attrs: Mapping, quantity: str) -> str:
    """The definition of a stored quantity with its unit, from the data set's attributes."""
    if quantity == "loss":
        name, _, unit = str(attrs.get("loss_name", "loss")).partition(", ")
        return f"mean {name} per example" + (f", {unit}" if unit else "")
    if quantity == "error":
        name = str(attrs.get("error_name", "error rate"))
        return "error rate: share of wrong answers" if name == "error rate" else name
    return str(attrs.get(f"{quantity}_name", quantity))


def caption_of(datasets: Mapping[str, xr.Dataset]) -> str:
    """One line on what was measured: examples, head, ‖δ₁‖ and so on; what all data sets share is said once."""
    parts = []
    for key, form in (
        ("examples", "examples: {}"),
        ("head", "head: {}"),
        ("norm_x", "‖δ₁‖ = {}"),
        ("norm_y", "‖δ₂‖ = {}"),
        ("cosine", "cos(δ₁, δ₂) = {}"),
    ):
        found = {name: _show(ds.attrs[key]) for name, ds in datasets.items() if key in ds.attrs}
        if len(set(found.values())) == 1 and len(found) == len(datasets):
            parts.append(form.format(next(iter(found.values()))))
        elif found:
            parts.append(form.format(", ".join(f"{value} ({name})" for name, value in found.items())))
    return " · ".join(parts)


def _show(value: object) -> str:
    return number(float(value)) if isinstance(value, (float, np.floating)) else str(value)


def require(ds: xr.Dataset, what: str, variables: Iterable[str], dims: Iterable[str]) -> None:
    """Raises InputError unless `ds` has these variables, each with these dimensions, of at least one entry."""
    problems = []
    for name in variables:
        if name not in ds:
            problems.append(f"no variable {name!r} (there are: {', '.join(map(str, ds.data_vars)) or 'none'})")
        elif set(ds[name].dims) != set(dims):
            problems.append(f"{name!r} has dimensions {tuple(ds[name].dims)}, expected {tuple(dims)}")
        elif ds[name].size == 0:
            problems.append(f"{name!r} is empty")
    if problems:
        raise InputError(f"{what} cannot be drawn: " + "; ".join(problems))


def same_definition(datasets: Mapping[str, xr.Dataset], quantity: str) -> str:
    """The label that all data sets share.

    Raises:
      InputError: there is none to draw, or they are not in one unit.
    """
    labels = {name: quantity_label(ds.attrs, quantity) for name, ds in datasets.items()}
    if len(set(labels.values())) != 1:
        given = "; ".join(f"{name}: {label}" for name, label in labels.items()) or "nothing"
        raise InputError(f"one scale needs one definition of the {quantity}, given {given}")
    return next(iter(labels.values()))


def split_missing(values: np.ndarray, status: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sorts stored values by what can be drawn.

    Arguments:
      values: numbers of any shape. A copy is made, nothing is written to it.
      status: same shape; 0 todo, 1 done, 2 not finite. None: every value counts as evaluated.
    Returns:
      The values with NaN wherever nothing is drawn, the mask "not finite" and the mask "not evaluated".
    """
    values = np.array(values, np.float64)
    todo = np.zeros(values.shape, bool) if status is None else ~(np.asarray(status) > 0)
    bad = ~np.isfinite(values) & ~todo
    return np.where(bad | todo, np.nan, values), bad, todo


def is_log(values: np.ndarray) -> bool:
    """Whether a log scale is due: all finite values are positive and their ratio is above 30."""
    finite = values[np.isfinite(values)]
    return bool(
        finite.size and finite.min() > 0 and math.log(finite.max()) - math.log(finite.min()) > math.log(LOG_SPAN)
    )


def log_y_axis(axes: Axes, low: float, high: float) -> None:
    """A log y axis around [low, high], with plain numbers at 1, 2, 5 per decade while there is room for them."""
    axes.set_yscale("log")
    axes.set_ylim(low / 1.5, high * 1.5)
    dense = math.log10(high) - math.log10(low) < 3.5
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if dense else (1,)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
