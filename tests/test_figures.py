"""Figures of stored results: always labelled and whole, missing values named, files reproducible, data untouched."""

import subprocess
import sys

import numpy as np
import pytest
import xarray as xr
from matplotlib.text import Text

from bertjax.errors import InputError
from bertjax.report import figures
from bertjax.report.grid import choose_scale

pytestmark = pytest.mark.filterwarnings("error")

ALPHA, BETA = np.linspace(-1, 2, 10), np.linspace(-1, 1, 7)
ATTRS = {
    "run": "sst2-tiny",
    "direction_x": "start -> end of fine-tuning",
    "norm_x": 12.25,
    "head": "fixed",
    "examples": "train 128, dev 64",
    "loss_name": "cross entropy, nats",
    "error_name": "error rate",
}


def bowl(alpha=ALPHA, beta=BETA):
    return 0.4 + (alpha[None] - 1) ** 2 + 0.7 * beta[:, None] ** 2


def with_cells(values, cells, value):
    values = np.array(values, np.float64)
    values[tuple(np.transpose(cells))] = value
    return values


LONE = np.full((7, 10), np.nan)
LONE[::2, ::2] = bowl()[::2, ::2]
SURFACES = {
    "bowl": bowl(),
    "constant": np.full((7, 10), 0.6931),
    "zeros": np.zeros((7, 10)),
    "negative": bowl() - 3,
    "zero and large": bowl() * 1e3 - bowl().min() * 1e3,
    "nan cells": with_cells(bowl(), [(0, 0), (0, 1), (3, 4)], np.nan),
    "infinite cells": with_cells(bowl(), [(6, 9), (2, 2)], np.inf),
    "minus infinity": with_cells(bowl(), [(6, 0)], -np.inf),
    "all nan": np.full((7, 10), np.nan),
    "lone points": LONE,
    "one finite": with_cells(np.full((7, 10), np.nan), [(3, 3)], 1.0),
    "seven decades": np.exp(5 * bowl()),
    "float32 extremes": with_cells(bowl(), [(0, 0), (1, 1)], [1e38, 1e-38]),
    "outlier": with_cells(bowl() - 1, [(2, 3)], 1e9),
    "rounding noise": 0.6931 + 1e-15 * bowl(),
    "nearly constant": 0.6931 + 1e-7 * bowl(),
    "one row": bowl()[3:4],
    "one column": bowl()[:, 3:4],
    "one point": bowl()[3:4, 3:4],
    "one nan": np.full((1, 1), np.nan),
    "two by two": bowl()[:2, :2],
}
NAMED = {name for name, values in SURFACES.items() if not np.isfinite(values).all()}


def surface(values, **attrs):
    values = np.stack([values, values])
    beta, alpha = BETA[: values.shape[1]], ALPHA[: values.shape[2]]
    status = np.where(np.isfinite(values[0]), 1, 2).astype(np.int8)
    dims = ("split", "beta", "alpha")
    data = {"loss": (dims, values), "error": (dims, values / 10), "status": (dims[1:], status)}
    extra = {"kind": "surface", "direction_y": "start -> end on MRPC", "norm_y": 12.25, "cosine": 0.031}
    return xr.Dataset(data, {"split": ["train", "dev"], "alpha": alpha, "beta": beta}, ATTRS | extra | attrs)


def curve(loss=None, bad=(), todo=(), error=True, **attrs):
    alpha = np.linspace(-4, 4, 17)
    loss = 0.3 + 0.05 * (alpha - 1) ** 2 if loss is None else np.broadcast_to(np.float64(loss), alpha.shape)
    loss = np.stack([loss, loss + 0.1])
    status = np.ones(17, np.int8)
    for cells, code, value in ((bad, 2, np.inf), (todo, 0, np.nan)):
        loss[:, list(cells)], status[list(cells)] = value, code
    dims = ("split", "alpha")
    data = {"loss": (dims, loss), "loss_se": (dims, np.full_like(loss, 0.02)), "status": (dims[1:], status)}
    if error:
        data |= {"error": (dims, loss / 9), "error_se": (dims, np.full_like(loss, 0.01))}
    return xr.Dataset(data, {"split": ["train", "dev"], "alpha": alpha}, ATTRS | {"kind": "curve"} | attrs)


def rollback(score=0.9, groups=("none", "layers 0-1", "layers 2-3", "embeddings", "all"), **attrs):
    score = np.stack([np.linspace(0.95, 0.6, len(groups)), np.broadcast_to(np.float64(score), len(groups))])
    dims = ("split", "group")
    data = {"score": (dims, score), "score_se": (dims, np.full_like(score, 0.02)), "loss": (dims, 1 - score)}
    coords = {"split": ["train", "dev"], "group": list(groups)}
    return xr.Dataset(data, coords, ATTRS | {"score_name": "accuracy"} | attrs)


def records(last=40, bad=False):
    train = [{"step": step, "train/loss": 0.7 * 0.9**step, "train/learning_rate": 1e-5} for step in range(1, last)]
    dev = [
        {"step": step, "dev/loss": 0.5, "dev/accuracy": 0.5 + step / 100, "dev/f1": 0.4} for step in range(9, last, 10)
    ]
    broken = [{"step": last, "train/loss": float("nan"), "dev/loss": None, "dev/accuracy": float("inf")}] if bad else []
    return train + dev + broken


def texts(figure):
    """All text on the figure except the tick labels, in one line."""
    parts = [figure.get_suptitle(), figure.get_supxlabel(), *(t.get_text() for t in figure.findobj(match=Text))]
    return " ".join(" ".join(parts).split())


def assert_whole(figure):
    """Labelled axes, something drawn, and nothing beyond the edge of the canvas."""
    figure.set_dpi(60)
    figure.canvas.draw()
    assert np.asarray(figure.canvas.buffer_rgba())[..., :3].std() > 5
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert any(axes.get_xlabel() for axes in panels)
    assert all(axes.get_ylabel() or len(panels) > 2 for axes in panels)
    width, height = figure.get_size_inches()
    box = figure.get_tightbbox(figure.canvas.get_renderer())
    assert box.x0 > -0.02 and box.y0 > -0.02 and box.x1 < width + 0.02 and box.y1 < height + 0.02, box
    assert any(name in texts(figure) for name in ("cross entropy", "error rate", "accuracy", "spearman"))


@pytest.mark.parametrize("draw", [figures.contour_figure, figures.surface_figure])
@pytest.mark.parametrize("name", SURFACES)
def test_a_surface_is_always_a_labelled_picture(name, draw):
    ds = surface(SURFACES[name])
    before = ds.copy(deep=True)
    figure = draw(ds)
    assert_whole(figure)
    assert ("not finite" in texts(figure)) == (name in NAMED)
    assert ("no finite value" in texts(figure)) == (not np.isfinite(SURFACES[name]).any())
    assert "start → end of fine-tuning" in texts(figure) and "12.2" in texts(figure) and "head: fixed" in texts(figure)
    xr.testing.assert_identical(ds, before)


@pytest.mark.parametrize("draw", [figures.contour_figure, figures.surface_figure])
def test_points_not_evaluated_are_named_even_if_a_number_is_stored(draw):
    ds = surface(bowl())
    ds["status"][:2] = 0
    assert "not evaluated" in texts(draw(ds)) and "not finite" not in texts(draw(ds))


def test_a_grid_drawn_from_either_end_looks_the_same():
    ds = surface(bowl())
    flipped = ds.isel(alpha=slice(None, None, -1), beta=slice(None, None, -1)).transpose("alpha", "beta", "split")
    images = []
    for each in (ds, flipped):
        figure = figures.contour_figure(each)
        figure.canvas.draw()
        images.append(np.asarray(figure.canvas.buffer_rgba()))
    np.testing.assert_array_equal(*images)


@pytest.mark.parametrize("name", SURFACES)
def test_levels_run_from_the_smallest_to_the_largest_stored_value(name):
    values = SURFACES[name]
    finite = values[np.isfinite(values)]
    scale = choose_scale(values)
    if not finite.size:
        assert scale is None
    elif name in ("constant", "zeros", "one point", "one finite", "rounding noise"):
        assert scale.kind == "constant" and scale.levels[0] < finite.min() <= finite.max() < scale.levels[-1]
    else:
        assert (scale.levels[0], scale.levels[-1]) == (finite.min(), finite.max())
        assert 2 <= len(scale.levels) <= 16 and (np.diff(scale.levels) > 0).all()
        kinds = {"seven decades": "log-spaced", "outlier": "at quantiles", "float32 extremes": "at quantiles"}
        assert scale.kind == kinds.get(name, "linear")


def test_trajectory_outside_the_grid_stays_in_the_picture():
    path = np.array([[0.0, 0.0], [0.5, 3.0], [np.nan, 1.0], [1.0, 0.0]])
    figure = figures.contour_figure(surface(bowl()), path=path)
    assert figure.axes[0].get_ylim()[1] > 3.0 and "trajectory" in texts(figure)
    assert_whole(figure)
    with pytest.raises(InputError, match=r"\[n, 2\]"):
        figures.contour_figure(surface(bowl()), path=np.zeros((3, 3)))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_compared_surfaces_share_one_colour_scale(count):
    surfaces = {f"run {i}": surface(bowl() * (1 + i)) for i in range(count)}
    figure = figures.compare_surfaces_figure(surfaces)
    assert_whole(figure)
    norms = [a.norm for axes in figure.axes for a in axes.collections if getattr(a, "filled", False)]
    assert len(norms) == count and len({id(norm) for norm in norms}) == 1
    assert norms[0].vmin == bowl().min() and norms[0].vmax == bowl().max() * count


def test_compared_surfaces_with_all_kinds_of_gaps():
    names = ("bowl", "all nan", "one row", "lone points", "constant")
    figure = figures.compare_surfaces_figure({name: surface(SURFACES[name]) for name in names})
    assert_whole(figure)
    assert "not finite" in texts(figure)


def test_one_scale_needs_one_definition():
    other = surface(bowl(), loss_name="squared error")
    with pytest.raises(InputError, match="squared error"):
        figures.compare_surfaces_figure({"a": surface(bowl()), "b": other})
    with pytest.raises(InputError, match="nothing"):
        figures.compare_surfaces_figure({})
    with pytest.raises(InputError, match="nothing"):
        figures.curve_figure({})


CURVES = {
    "one": {"sst2": curve()},
    "two": {"pre-trained": curve(), "from scratch": curve(np.geomspace(1, 90, 17), norm_x=30.0)},
    "no error rate": {"a": curve(error=False)},
    "some with error rate": {"a": curve(error=False), "b": curve()},
    "gaps": {"a": curve(bad=(0, 1, 8), todo=(15, 16)), "b": curve(bad=(0, 5, 7))},
    "all missing": {"a": curve(bad=range(17))},
    "constant": {"a": curve(0.0)},
    "negative": {"a": curve(np.linspace(-5, 500, 17))},
    "zero and large": {"a": curve(np.linspace(0, 500, 17))},
    "one point": {"a": curve().isel(alpha=[8])},
    "one split": {"a": curve().isel(split=[1])},
    "odd names": {"_$a^{$": curve(run="運行 😀"), "a rather long name of a run that needs several lines": curve()},
    "many": {f"run {i}": curve(0.1 * i) for i in range(12)},
}


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("name", CURVES)
def test_curves_are_always_a_labelled_picture(name, absolute):
    before = {key: ds.copy(deep=True) for key, ds in CURVES[name].items()}
    figure = figures.curve_figure(CURVES[name], absolute=absolute)
    assert_whole(figure)
    assert ("not finite" in texts(figure)) == (name in ("gaps", "all missing"))
    assert ("not evaluated" in texts(figure)) == (name == "gaps")
    assert figure.axes[0].get_yscale() == ("log" if name == "two" else "linear")
    assert ("log scale" in figure.axes[0].get_ylabel()) == (name == "two")
    for key, ds in CURVES[name].items():
        xr.testing.assert_identical(ds, before[key])


def test_lines_are_the_stored_values():
    ds = curve(bad=(3,))
    lines = figures.curve_figure({"a": ds}).axes[0].get_lines()
    for split in range(2):
        expected = np.where(np.isfinite(ds["loss"][split]), ds["loss"][split], np.nan)
        assert any(np.array_equal(line.get_ydata(), expected, equal_nan=True) for line in lines)


def test_error_rate_alone_and_missing_parts_are_said():
    assert "error rate" in figures.curve_figure({"a": curve()}, quantity="error").axes[0].get_ylabel()
    with pytest.raises(InputError, match="norm_x"):
        figures.curve_figure({"a": curve().drop_attrs()}, absolute=True)
    with pytest.raises(InputError, match="no variable 'loss'"):
        figures.curve_figure({"a": curve().drop_vars("loss")})
    with pytest.raises(InputError, match="no split 'test'"):
        figures.contour_figure(surface(bowl()), split="test")
    with pytest.raises(InputError, match="dimensions"):
        figures.contour_figure(curve())


ROLLBACKS = {
    "usual": rollback([0.9, 0.8, 0.7, 0.85, 0.5], majority=0.51),
    "not finite": rollback([0.9, np.nan, 0.7, np.inf, 0.5]),
    "all missing": rollback(np.nan, majority=float("nan")),
    "negative": rollback([0.9, 0.8, -0.2, 0.85, -0.1], score_name="spearman"),
    "zeros": rollback(0.0),
    "one group": rollback(0.9, groups=("none",)),
    "many groups": rollback(0.9, groups=("none", *(f"layer {i}" for i in range(24)), "all")),
    "no interval": rollback().drop_vars("score_se"),
}


@pytest.mark.parametrize("name", ROLLBACKS)
def test_rollback_prints_every_score(name):
    ds = ROLLBACKS[name]
    before = ds.copy(deep=True)
    figure = figures.rollback_figure(ds)
    assert_whole(figure)
    for score in ds["score"].sel(split="dev").values:
        assert (f"{score:.3f}".replace("-", "−") if np.isfinite(score) else "not finite") in texts(figure)
    assert ("majority baseline: 0.510" in texts(figure)) == (name == "usual")
    xr.testing.assert_identical(ds, before)


RUNS = {
    "one": {"a": records()},
    "two": {"pre-trained": records(), "from scratch": records(30)},
    "gaps": {"a": records(bad=True)},
    "no records": {"a": []},
    "train only": {"a": [{"step": 1, "train/loss": 0.5}]},
    "dev only": {"a": [{"step": 1, "dev/accuracy": 0.5}], "b": []},
    "all missing": {"a": [{"step": i, "train/loss": None, "dev/accuracy": None} for i in range(3)]},
}


@pytest.mark.parametrize("name", RUNS)
def test_learning_curves_are_always_a_labelled_picture(name):
    baselines = {"majority class": 0.509, "bag of words": 0.8}
    figure = figures.learning_figure(RUNS[name], baselines=baselines, caption="train 100, dev 50")
    assert_whole(figure)
    assert ("not finite" in texts(figure)) == (name in ("gaps", "all missing"))
    assert ("nothing recorded" in texts(figure)) == (name in ("no records", "train only", "dev only"))
    assert "bag of words: 0.800" in texts(figure) and "train 100, dev 50" in texts(figure)


def test_headline_chooses_the_dev_metric():
    for headline in ("f1", "dev/f1"):
        assert figures.learning_figure({"a": records()}, headline=headline).axes[1].get_ylabel() == "dev f1"


def test_a_fine_grid_is_drawn_in_space_too():
    alpha = np.linspace(-1, 2, 70)
    values = bowl(alpha)[None]
    fine = xr.Dataset(
        {"loss": (("split", "beta", "alpha"), values)}, {"split": ["train"], "alpha": alpha, "beta": BETA}
    )
    figures.surface_figure(fine).draw_without_rendering()


DRAW = {
    "curve": lambda: figures.curve_figure(CURVES["gaps"]),
    "contour": lambda: figures.contour_figure(surface(SURFACES["nan cells"]), path=np.zeros((2, 2))),
    "surface": lambda: figures.surface_figure(surface(SURFACES["nan cells"])),
    "compare": lambda: figures.compare_surfaces_figure({"a": surface(bowl()), "b": surface(LONE)}),
    "rollback": lambda: figures.rollback_figure(ROLLBACKS["usual"]),
    "learning": lambda: figures.learning_figure(RUNS["gaps"]),
}


@pytest.mark.parametrize("name", DRAW)
def test_files_are_reproducible_and_keep_text_as_text(name, tmp_path):
    figure = DRAW[name]()
    saved = figures.save(figure, tmp_path / "deep" / "figure.v1")
    assert [path.name for path in saved] == ["figure.v1.png", "figure.v1.svg"]
    first = [path.read_bytes() for path in saved]
    assert first[0].startswith(b"\x89PNG") and b"<text" in first[1]
    assert figure.get_suptitle().split("\n")[0].encode() in first[1]
    for again in (figures.save(figure, tmp_path / "again"), figures.save(DRAW[name](), tmp_path / "anew")):
        assert [path.read_bytes() for path in again] == first
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "again.png",
        "again.svg",
        "anew.png",
        "anew.svg",
        "deep",
    ]


def test_a_stored_file_is_drawn_without_jax(tmp_path):
    surface(SURFACES["nan cells"]).to_netcdf(tmp_path / "surface.nc", engine="h5netcdf")
    code = (
        "import sys, xarray; from bertjax.report import figures\n"
        f"ds = xarray.open_dataset({str(tmp_path / 'surface.nc')!r}, engine='h5netcdf')\n"
        f"figures.save(figures.contour_figure(ds), {str(tmp_path / 'surface')!r})\n"
        "assert not {'jax', 'flax', 'matplotlib.pyplot'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "surface.svg").exists()
