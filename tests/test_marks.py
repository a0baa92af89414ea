"""Named points of a plane: each lies where its model is, and figures and the page show those that there are."""

import json

import numpy as np
import pytest
from tiny import tiny_checkpoint, tiny_tokenizer

from bertjax.config import DataOptions, ModelOptions, OptimOptions, RunConfig, TrainOptions
from bertjax.errors import InputError
from bertjax.landscape import commands
from bertjax.landscape import plane as planes
from bertjax.landscape.directions import direction, load_ends
from bertjax.landscape.store import END, OTHER_END, START, read_netcdf
from bertjax.landscape.subject import RunSubject
from bertjax.report import draw
from bertjax.report.marks import marks_of
from bertjax.report.page import page
from bertjax.training import loop
from bertjax.tree import flatten


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs from one start on other rows."""
    folder = tmp_path_factory.mktemp("marks")
    tokenizer = tiny_tokenizer(folder / "model")
    tiny_checkpoint(folder / "model", vocab_size=len(tokenizer), num_hidden_layers=1, max_position_embeddings=24)

    def make(name, steps):
        lines = [f"{('good', 'bad')[i % 2]} {name} {i}\t{i % 2}" for i in range(40)]
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
        return loop.train(
            RunConfig(
                name=name,
                runs=str(folder / "runs"),
                model=ModelOptions(path=str(folder / "model")),
                data=DataOptions(train=str(folder / f"{name}.tsv"), dev_rows=8, max_length=24, buckets=(), cache=""),
                optim=OptimOptions(learning_rate=3e-3),
                train=TrainOptions(steps=steps, batch_size=8, eval_batch_size=8, snapshots=1),
            )
        )

    return make("film", 3), make("plot", 5)


def surface(runs, **options):
    return commands.compute(
        commands.Surface(
            run=str(runs[0].folder), points=2, alpha=(0.0, 1.0), beta_points=2, beta=(0.0, 1.0), train_examples=4,
            dev_examples=0, **options
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("x", "y", "y_scale", "names"),
    [
        ("between", "random", "auto", {START, END}),
        ("between", "task", "auto", {START, END, OTHER_END}),
        ("between", "task", "own", {START, END, OTHER_END}),
        ("task", "between", "auto", {START, END, OTHER_END}),
        ("task", "between", "first", {START, END, OTHER_END}),
        ("random", "task", "auto", {START, OTHER_END}),
        ("random", "random", "auto", {START}),
    ],
)
def test_marks_are_where_the_models_are(runs, x, y, y_scale, names, tmp_path):
    x, y = (f"{name}:{runs[1].folder}" if name == "task" else name for name in (x, y))
    path = surface(runs, x=x, y=y, y_scale=y_scale, name="".join(c for c in f"{x}-{y}-{y_scale}" if c.isalnum()))
    stored = read_netcdf(path)
    marks = marks_of(stored.attrs)
    assert set(marks) == names
    ends = load_ends(RunSubject(runs[0]), "fixed")
    axes = [direction(spec, ends, axis)[0] for spec, axis in ((x, "x"), (y, "y"))]
    if stored.attrs["y_scale"] == "first":
        axes[1] = planes.rescale(axes[1], planes.norm(axes[0]))
    plane = planes.make_plane(ends.origin(), axes)
    models = {START: runs[0].params(0), END: runs[0].params(3), OTHER_END: runs[1].params(5)}
    for name, at in marks.items():
        point, model = flatten(plane.at(np.array(at, np.float32))), flatten(models[name])
        for leaf, value in point.items():
            if leaf.startswith("encoder/"):
                np.testing.assert_allclose(np.asarray(value), np.asarray(model[leaf]), rtol=0, atol=1e-6, err_msg=leaf)
    assert draw.draw_result(path)


def test_two_random_directions_are_not_the_same(runs):
    stored = read_netcdf(surface(runs, x="random", y="random", name="noise"))
    assert abs(stored.attrs["cosine"]) < 0.1
    ends = load_ends(RunSubject(runs[0]), "fixed", seed=3)
    first, second, again = (direction("random", ends, axis)[0] for axis in ("x", "y", "x"))
    assert planes.cosine(first, again) == pytest.approx(1.0) and abs(planes.cosine(first, second)) < 0.1


@pytest.mark.parametrize("kind", ["surface", "trajectory"])
def test_a_plane_of_one_direction_is_refused(runs, kind):
    given = {"run": str(runs[0].folder), "x": "between", "y": "between", "name": "flat", "train_examples": 4}
    command = commands.Surface(**given) if kind == "surface" else commands.Trajectory(**given)
    with pytest.raises(InputError, match="parallel"):
        commands.compute(command)
    assert not (runs[0].folder / "landscape" / "flat.nc").exists()


def test_figures_name_no_end_where_there_is_none(runs):
    path = commands.compute(
        commands.Curve(run=str(runs[0].folder), x="random", points=3, train_examples=4, dev_examples=0, name="wander")
    )
    svg = next(file for file in draw.draw_result(path) if file.suffix == ".svg").read_text()
    assert "along one direction" in svg and START in svg and END not in svg
    stored = read_netcdf(path)
    assert json.loads(stored.attrs["marks"]) == {START: [0.0, 0.0]}
    assert START in page(runs[0].folder)


def test_a_path_is_drawn_with_the_marks_of_its_plane(runs):
    other = f"task:{runs[1].folder}"
    path = commands.compute(
        commands.Trajectory(run=str(runs[0].folder), y=other, train_examples=4, dev_examples=0, name="path")
    )
    stored = read_netcdf(path)
    beta = json.loads(stored.attrs["marks"])[OTHER_END][1]
    assert beta == pytest.approx(stored.attrs["norm_y_before_rescaling"] / stored.attrs["norm_y"])
    svg = next(file for file in draw.draw_result(path) if file.suffix == ".svg").read_text()
    assert OTHER_END in svg
