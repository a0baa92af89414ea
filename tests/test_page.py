"""report.html: whole, offline, escaped, every word defined; what is missing is named, stored values are untouched."""

import dataclasses
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import plotly.graph_objects as go
import pytest
from test_figures import SURFACES, curve, records, rollback, surface
from test_trajectory import stored as trajectory

from bertjax.config import RunConfig
from bertjax.errors import InputError
from bertjax.report import page as page_module
from bertjax.report.grid import choose_scale
from bertjax.report.page import page, write_page
from bertjax.report.page_definitions import TERMS
from bertjax.report.page_figures import curve_block, learning_block
from bertjax.report.page_html import el, plotly_text, script_json
from bertjax.report.page_rollback import rollback_block
from bertjax.report.page_space import color_positions, colors_of
from bertjax.report.page_surface import surface_block
from bertjax.report.page_tables import field_meanings
from bertjax.report.page_trajectory import trajectory_block

INFO = {
    "status": "done",
    "task": "classification",
    "head": "classification",
    "headline": "accuracy",
    "labels": ["bad", "good"],
    "architecture": {"num_hidden_layers": 2},
    "fresh": ["head/bias"],
    "steps": 40,
    "rows": {"train": 4000, "dev": 1000},
    "versions": {"jax": "0.10.2"},
    "devices": ["cpu:0"],
    "processes": 1,
    "data": {"reviews.csv": "abc123"},
    "parameters": {"start": "0011", "end": "2233"},
    "best_step": 39,
    "results": {"dev": {"loss": 0.5, "accuracy": 0.89, "f1_macro": 0.88}},
}
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "</script><script>alert(3)</script>",
    "</title></style></textarea><!-- ' --><b>",
    "%{x} {{x}} &lt;i&gt; ]]>",
)
WHOLE_SCRIPT = page_module.plotly_script


class Tree(HTMLParser):
    """All elements with their attributes, the text, and what was not closed in order."""

    VOID = ("meta", "link", "input", "line", "circle", "path", "rect")

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.texts, self.scripts = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.scripts if self.open and self.open[-1] in ("script", "style") else self.texts).append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def all(self, name):
        return [attrs for tag, attrs in self.elements if tag == name]

    @property
    def figures(self):
        return json.loads(next(text for text in self.scripts if text.startswith("[")), parse_constant=pytest.fail)


@pytest.fixture(autouse=True)
def _short_script(monkeypatch):
    """plotly's script is the same in every page; it is 5 MB."""
    monkeypatch.setattr(page_module, "plotly_script", lambda: "/* plotly */")


def make_run(folder, *, config=None, info=None, lines=None, **results):
    """A run's folder with these results, name -> data set."""
    (folder / "landscape").mkdir(parents=True)
    config = json.loads(json.dumps(dataclasses.asdict(RunConfig(name=folder.name)))) | (config or {})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "run.json").write_text(json.dumps(INFO | (info or {})))
    if lines:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        speed = {"step": 9, "seconds": 1.0, "examples_per_second": 32.0}
        (folder / "timing.jsonl").write_text(json.dumps(speed) + "\n")
    for name, dataset in results.items():
        dataset.to_netcdf(folder / "landscape" / f"{name}.nc", engine="h5netcdf")
    return folder


def full_run(folder, **more):
    results = {
        "curve": curve(kind="curve", majority=0.6),
        "surface": surface(SURFACES["bowl"]),
        "rollback": rollback(kind="rollback", majority=0.6),
        "trajectory": trajectory(kind="trajectory"),
    }
    return make_run(folder, lines=records(), **(results | more))


def blocks_of(**attrs):
    """One figure of every kind from every odd result."""
    for name, values in SURFACES.items():
        yield f"surface {name}", surface_block(surface(values, **attrs), name)
    for name, dataset in {
        "plain": curve(**attrs),
        "not finite": curve(bad=[0, 5], todo=[6, 16], **attrs),
        "all not finite": curve(loss=np.nan, bad=range(17), **attrs),
        "log": curve(loss=np.exp(np.linspace(-5, 9, 17)), **attrs),
        "zero": curve(loss=0.0, error=False, **attrs),
        "negative": curve(loss=-3.0, **attrs),
    }.items():
        yield f"curve {name}", curve_block(dataset, name)
    yield "rollback", rollback_block(rollback(**attrs), "rollback")
    yield "rollback not finite", rollback_block(rollback(score=[0.9, np.nan, np.inf, 0.1, 0.2], majority=0.5), "r")
    yield "rollback of a regression", rollback_block(rollback(**attrs).drop_vars(["score", "score_se"]), "r")
    yield "trajectory", trajectory_block(trajectory(**attrs), "t")
    bad = trajectory(4, **attrs)
    bad["loss"] = bad["loss"] * np.nan
    yield "trajectory not finite", trajectory_block(bad, "t")
    yield "trajectory of two", trajectory_block(trajectory(2, **attrs), "t")
    for name, lines in {"": records(), "bad": records(bad=True), "one": records()[:1], "dev": records()[-1:]}.items():
        yield f"learning {name}", learning_block(lines, "accuracy", "loss", 0.5)


def strings(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


def test_every_figure_is_what_plotly_accepts_and_all_its_numbers_are_finite_or_null():
    for name, block in blocks_of():
        data = json.loads(script_json(block.data(1)), parse_constant=pytest.fail)
        assert data["views"], name
        for panels in data["views"].values():
            for panel in panels:
                figure = go.Figure(panel["data"], panel["layout"])  # raises on anything plotly does not know
                assert panel["label"] and panel["alternative"], name
                axes = figure.layout
                assert panel["in_space"] == bool(panel["layout"].get("scene")), name
                assert panel["in_space"] or axes.xaxis.title.text or "bars of" in panel["alternative"], name
        Tree(block.html(1, named=True))


def test_whole_page(tmp_path):
    tree = Tree(page(full_run(tmp_path / "reviews")))
    ids = [attrs["id"] for _, attrs in tree.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    order = ["learning", "curve", "surface", "rollback", "trajectory"]
    order += ["tables", "configuration", "versions", "definitions"]
    assert [attrs["id"] for attrs in tree.all("section")] == order
    assert {attrs["href"] for attrs in tree.all("a")} == {f"#{name}" for name in order}
    assert len(tree.figures) == len(tree.all("figure")) == 5
    assert {figure["id"] for figure in tree.figures} <= set(ids)
    for text in (
        "reviews",
        "0.890 dev accuracy",
        "majority baseline 0.600",
        "+29.0 percentage points",
        "classification, 2 labels: bad, good",
        "pre-trained weights",
        "train 4,000, dev 1,000",
        "landscape/surface.nc",
        "7 × 10 (beta × alpha)",
        "train 128, dev 64",
        "abc123",
        "2233",
        "0.10.2",
        "num_hidden_layers",
    ):
        assert text in tree.text, text
    assert "No curve is stored" not in tree.text


def test_everything_interactive_has_a_name_and_every_figure_a_table(tmp_path):
    text = page(full_run(tmp_path / "run"))
    tree = Tree(text)
    for figure in re.findall(r"<figure.*?</figure>", text, re.S):
        inner = Tree(figure)
        assert inner.all("table") and inner.all("summary") and inner.all("figure")[0]["aria-label"]
        assert all(
            attrs["role"] == "img" and attrs["aria-label"] for attrs in inner.all("div") if attrs["class"] == "plot"
        )
    inputs = len(re.findall(r"<label>(?:(?!</label>).)*<input", text, re.S))
    assert inputs == len(tree.all("input")) > 10
    groups = {}
    for attrs in tree.all("input"):
        if attrs["type"] == "radio":
            groups.setdefault(attrs["name"], []).append("checked" in attrs)
    assert groups and all(sum(checked) == 1 and len(checked) > 1 for checked in groups.values())
    scrolled = [attrs for attrs in tree.all("div") if attrs.get("class") == "scroll"]
    assert scrolled and all(attrs["tabindex"] == "0" and attrs["aria-label"] for attrs in scrolled)


def test_no_address_outside_the_page_and_the_policy_allows_its_own_scripts_only(tmp_path, monkeypatch):
    monkeypatch.setattr(page_module, "plotly_script", WHOLE_SCRIPT)
    text = write_page(full_run(tmp_path / "run")).read_text(encoding="utf-8")
    tree = Tree(text)
    for tag, attrs in tree.elements:
        assert not {"src", "srcset", "action", "poster", "background"} & set(attrs), tag
        assert all(not name.startswith("on") for name in attrs)
        assert attrs.get("href", "#").startswith(("#", "data:,"))
    css = next(text for text in tree.scripts if text.startswith(":root"))
    assert "url(" not in css and "@import" not in css
    policy = next(attrs["content"] for attrs in tree.all("meta") if attrs.get("http-equiv"))
    assert "default-src 'none'" in policy and "http" not in policy and "unsafe-eval" not in policy
    allowed = re.search(r"script-src (.*)", policy).group(1).split()
    scripts = [text for text in tree.scripts if not text.startswith((":root", "["))]
    assert allowed == [page_module._hash(script) for script in scripts] and len(scripts) == 2
    assert "plotly.js v" in text and text.count("plotly.js v") == WHOLE_SCRIPT().count("plotly.js v")


def test_every_definition_and_every_option_has_its_row(tmp_path):
    tree = Tree(page(full_run(tmp_path / "run", config=None)))
    for term, (meaning, unit, source) in TERMS.items():
        assert term in tree.text and unit and source
        assert "{" in meaning or " ".join(meaning.split()) in tree.text
    assert "Mean cross entropy per example" in tree.text and "nats" in tree.text
    meanings = field_meanings()
    for name, value in dataclasses.asdict(RunConfig()).items():
        for field in [f"{name}.{inner}" for inner in value] if isinstance(value, dict) else [name]:
            assert meanings[field] and meanings[field] in tree.text


def test_differences_from_the_defaults_come_first(tmp_path):
    config = {"optim": {"learning_rate": 0.125, "of_another_version": [1, "x"]}, "seed_of_old": None}
    text = page(make_run(tmp_path / "other", config=config))
    changed = Tree(
        re.search(r"<table(?:(?!<table).)*?<caption>Options that differ.*?</table>", text, re.S).group()
    ).text
    for word in ("name other run", "optim.learning_rate 0.125 5e-05", "optim.of_another_version 1, x none"):
        assert word in changed
    assert "train.epochs" not in changed and "train.epochs" in text
    assert "Every option has its default value" in page(make_run(tmp_path / "run"))


def test_missing_values_are_named_and_counted_not_drawn(tmp_path):
    values = np.array(SURFACES["bowl"])
    values[2, 3], values[4, 5] = np.nan, np.inf
    dataset = surface(values)
    dataset["status"][0, 0] = 0  # one point is still to do
    run = make_run(
        tmp_path / "run",
        lines=records(bad=True),
        surface=dataset,
        curve=curve(bad=[0, 5], todo=[6]),
        rollback=rollback(),
    )
    tree = Tree(page(run))
    assert "Of 70 points: 2 not finite, 1 not evaluated" in tree.text
    assert "Of 17 points: 2 not finite, 1 not evaluated" in tree.text
    view = tree.figures[2]["views"]["contours/loss/train"][0]["data"][0]
    holes = {(i, j) for i, row in enumerate(view["z"]) for j, value in enumerate(row) if value is None}
    assert view["type"] == "heatmap" and holes == {(2, 3), (4, 5), (0, 0)}
    line = tree.figures[1]["views"][""][0]["data"][2]
    assert [i for i, y in enumerate(line["y"]) if y is None] == [0, 5, 6] and line["connectgaps"] is False


def test_values_are_drawn_as_they_are_stored_and_files_stay_as_they_were(tmp_path):
    run = full_run(tmp_path / "run")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    written = write_page(run)
    assert written == run / "report.html"
    first = written.read_bytes()
    assert write_page(run).read_bytes() == first  # same data, same bytes
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before | {written: first}
    dataset, figures = surface(SURFACES["bowl"]), Tree(first.decode()).figures
    for split in ("train", "dev"):
        for quantity in ("loss", "error"):
            stored = dataset[quantity].sel(split=split).values
            for view, key in (("contours", "z"), ("space", "z")):
                drawn = figures[2]["views"][f"{view}/{quantity}/{split}"][0]["data"][0]
                np.testing.assert_array_equal(np.array(drawn[key], np.float64), stored)
                np.testing.assert_array_equal(drawn["x"], dataset["alpha"].values)
                np.testing.assert_array_equal(drawn["y"], dataset["beta"].values)
    lines = [trace for trace in figures[1]["views"][""][0]["data"] if trace.get("name") in ("train", "dev")]
    np.testing.assert_array_equal([line["y"] for line in lines], curve()["loss"].values)
    np.testing.assert_array_equal(figures[3]["views"]["dev"][0]["data"][0]["x"], rollback()["score"].sel(split="dev"))


@pytest.mark.parametrize("name", ["bowl", "negative", "seven decades", "outlier", "nearly constant", "two by two"])
def test_surface_has_the_levels_and_colours_of_the_other_figures(name):
    values = SURFACES[name]
    scale = choose_scale(values)
    positions, at = color_positions(values, scale)
    bands, steps, bar = colors_of(scale, at)
    assert (np.diff(at) > 0).all() and len(bands) == len(at) - 1
    # A value lies in the same band as among the levels themselves.
    band = np.clip(np.searchsorted(at, positions, side="right") - 1, 0, len(bands) - 1)
    expected = np.clip(np.searchsorted(scale.levels, values, side="right") - 1, 0, len(bands) - 1)
    near = np.isclose(positions[..., None], at, rtol=0, atol=1e-9).any(axis=-1)
    np.testing.assert_array_equal(band[~near], expected[~near])
    shades = scale.cmap(scale.norm((scale.levels[1:] + scale.levels[:-1]) / 2))[:, :3]
    given = [[int(part) for part in color[4:-1].split(",")] for color in bands]
    np.testing.assert_allclose(given, shades * 255, atol=0.51)
    gray = np.array(given) @ (0.299, 0.587, 0.114)
    assert (np.diff(gray) > 0).all()  # readable without colour
    assert steps[0][0] == 0.0 and steps[-1][0] == 1.0
    assert {str(bar["tickvals"][i]) for i in (0, -1)} == {str(at[i]) for i in (0, -1)}  # both ends have their names
    assert len(set(bar["ticktext"])) == len(bar["ticktext"])


def test_inner_levels_are_evenly_spaced_for_plotly():
    for name, values in SURFACES.items():
        scale = choose_scale(values)
        if scale and len(scale.levels) > 3:
            _, at = color_positions(values, scale)
            np.testing.assert_allclose(np.diff(at[1:-1]), at[2] - at[1], rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("kept", [(), ("curve",), ("surface",), ("rollback",), ("curve", "rollback")])
def test_a_run_with_few_results_says_which_command_makes_the_others(tmp_path, kept):
    makers = {"curve": curve(), "surface": surface(SURFACES["bowl"]), "rollback": rollback(kind="rollback")}
    makers["trajectory"] = trajectory(kind="trajectory")
    run = make_run(tmp_path / "my run", **{name: makers[name] for name in kept})
    tree = Tree(page(run))
    for kind in makers:
        assert (f"python landscape.py {kind} '{run}'" in tree.text) == (kind not in kept)
    assert len(tree.all("figure")) == len(kept)
    assert "No metrics are recorded yet" in tree.text
    if not kept:
        assert len([text for text in tree.scripts if text.startswith("/* plotly")]) == 0


def test_a_run_in_training_shows_its_last_scores(tmp_path):
    run = make_run(tmp_path / "run", info={"status": "training", "results": None, "best_step": None}, lines=records())
    tree = Tree(page(run))
    assert "status training" in tree.text and "0.890 dev accuracy" in tree.text  # 0.5 + 39 / 100
    run = make_run(tmp_path / "new", info={"status": "training", "results": None})
    assert "No dev accuracy is recorded yet" in Tree(page(run)).text


def test_two_results_of_one_kind_and_name_stay_apart(tmp_path):
    run = make_run(tmp_path / "run", curve=curve(), moved=curve(loss=2.0), fixed=curve(loss=3.0, run="another"))
    tree = Tree(page(run))
    assert [attrs["id"] for attrs in tree.all("figure")] == ["figure-1", "figure-2", "figure-3"]
    for name in ("curve.nc", "moved.nc", "fixed.nc"):
        assert f"Loss curve: {name}" in tree.text
    losses = [figure["views"][""][0]["data"][2]["y"][0] for figure in tree.figures]
    assert len(set(losses)) == 3


def test_files_that_cannot_be_shown_are_listed(tmp_path):
    run = make_run(tmp_path / "run", curve=curve().drop_vars("loss"), other=curve(kind="pictures"))
    (run / "landscape" / "broken.nc").write_bytes(b"not netCDF")
    (run / "landscape" / "half.zarr").mkdir()
    text = Tree(page(run)).text
    assert "the curve cannot be drawn: no variable 'loss'" in text
    assert "broken.nc is not a readable netCDF file" in text and "not finished" in text and "half.zarr" in text
    assert "pictures" in text


def test_not_a_run_or_damaged_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match=r"has no run\.json"):
        write_page(tmp_path)
    run = make_run(tmp_path / "run")
    (run / "run.json").write_text("[1]")
    with pytest.raises(InputError, match=r"run\.json is damaged: expected an object"):
        write_page(run)
    (run / "run.json").write_text("{")
    with pytest.raises(InputError, match=r"run\.json is damaged"):
        write_page(run)
    (run / "run.json").write_text(json.dumps(INFO))
    (run / "config.json").unlink()
    with pytest.raises(InputError, match=r"config\.json does not exist"):
        write_page(run)
    assert not list(run.glob("*report*")) and not list(run.glob(".*report*"))


def test_hostile_words_stay_words(tmp_path):
    everything = " ".join(HOSTILE)
    attrs = {name: everything for name in ("run", "direction_x", "direction_y", "head", "examples", "loss_name")}
    attrs |= {"error_name": everything, "score_name": everything, "identity": json.dumps({everything: everything})}
    hostile_splits = {"split": [HOSTILE[0], f"b/{HOSTILE[1]}"]}
    run = make_run(
        tmp_path / "a<b>&'\"c",
        config={"name": everything, "model": {"path": everything, "init": HOSTILE[0]}, HOSTILE[1]: HOSTILE[2]},
        info={
            "labels": list(HOSTILE),
            "task": everything,
            "headline": HOSTILE[0],
            "rows": {HOSTILE[0]: HOSTILE[1]},
            "versions": {HOSTILE[0]: HOSTILE[1]},
            "data": {HOSTILE[2]: HOSTILE[0]},
            "devices": [everything],
            "results": {"dev": {HOSTILE[0]: 0.5}},
            HOSTILE[3]: {HOSTILE[0]: [HOSTILE[1]]},
        },
        lines=[*records(), {"step": 50, f"dev/{HOSTILE[0]}": 0.7, HOSTILE[1]: HOSTILE[2]}],
        curve=curve(**attrs).assign_coords(hostile_splits),
        surface=surface(SURFACES["nan cells"], **attrs).assign_coords(hostile_splits),
        rollback=rollback(groups=("none", *HOSTILE, "all"), kind="rollback", **attrs).assign_coords(hostile_splits),
    )
    tree = Tree(page(run))
    assert not tree.all("img") and not tree.all("textarea") and len(tree.all("script")) == 3 and len(tree.all("b")) == 2
    assert all(not name.startswith("on") for _, attributes in tree.elements for name in attributes)
    for word in HOSTILE:
        assert " ".join(word.split()) in tree.text
    for figure in tree.figures:
        for panels in figure["views"].values():
            for panel in panels:
                for text in strings([panel["data"], panel["layout"]]):
                    left = text.replace("<br>", "").replace("<extra></extra>", "")
                    assert "<" not in left and "%{x} {{" not in left, text  # plotly reads HTML and templates


def test_text_that_no_file_may_hold():
    assert el("p", "a\x00b\ud800c\x85\x1b") == "<p>ab?c</p>"
    assert el("p", "<", title='"&') == '<p title="&quot;&amp;">&lt;</p>'
    assert plotly_text("%{x} <b>&amp; one two", 12) == "%\u200b{x}<br>&lt;b&gt;&amp;amp; one<br>two"
    text = script_json({"a": "</script>", "b": [math.nan, math.inf, np.float32(0.5), np.arange(2)], 3: "\ud800"})
    assert "<" not in text
    assert json.loads(text) == {"a": "</script>", "b": [None, None, 0.5, [0, 1]], "3": "?"}


def test_no_device_is_touched_and_no_model_is_built():
    script = "import sys, bertjax.report.page; sys.exit('jax' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_result_of_the_library_interface():
    """A surface of any loss, with a further quantity and one split, has its views too."""
    dataset = surface(SURFACES["bowl"]).isel(split=[0])
    dataset["margin"] = dataset["loss"] * 2
    dataset = dataset.drop_vars("error")
    dataset.attrs = {"kind": "surface"}
    block = surface_block(dataset, "surface")
    assert set(block.views) == {f"{view}/{name}/train" for view in ("contours", "space") for name in ("loss", "margin")}
