"""Coordinates of a path in a plane: closed forms, and figures that are whole."""

import jax
import numpy as np
import pytest
import xarray as xr

from bertjax.errors import InputError
from bertjax.landscape.trajectory import COORDINATES, Projection
from bertjax.report.trajectory import trajectory_figure

RNG = np.random.default_rng(0)


def tree(vector):
    """A tree of three leaves, one of which does not move."""
    return {"a": vector[:3].reshape(3, 1), "b": {"c": vector[3:]}, "still": None}


D1, D2 = RNG.normal(size=7), RNG.normal(size=7)


def test_ends_project_to_zero_and_one():
    projection = Projection(tree(D1), tree(D2))
    start = projection.coordinates(tree(np.zeros(7)))
    assert set(start) == set(COORDINATES) and all(value == 0 for value in start.values())
    end = projection.coordinates(tree(D1))
    np.testing.assert_allclose(
        [end[name] for name in ("a", "b", "alpha", "beta", "off_plane")], [1, 0, 1, 0, 0], atol=1e-12
    )
    assert end["length"] == pytest.approx(np.linalg.norm(D1))


def test_coordinates_are_those_of_linear_algebra():
    for _ in range(20):
        step = RNG.normal(size=7)
        found = Projection(tree(D1), tree(D2)).coordinates(tree(step))
        basis = np.stack([D1, D2], axis=1)
        best, residual, _, _ = np.linalg.lstsq(basis, step, rcond=None)
        np.testing.assert_allclose([found["alpha"], found["beta"]], best, rtol=1e-9)
        assert found["off_plane"] == pytest.approx(np.sqrt(residual[0]))
        a = step @ D1 / (D1 @ D1)
        assert found["a"] == pytest.approx(a)
        # the paper's formula, where it has digits
        assert found["b"] == pytest.approx(np.sqrt((np.linalg.norm(step) / np.linalg.norm(D1)) ** 2 - a**2))
        in_plane = Projection(tree(D1), tree(D2)).coordinates(tree(0.3 * D1 - 2.0 * D2))
        np.testing.assert_allclose(
            [in_plane["alpha"], in_plane["beta"], in_plane["off_plane"]], [0.3, -2, 0], atol=1e-9
        )


def test_b_keeps_its_digits_near_the_end():
    """The printed formula is a difference of two ones here."""
    across = np.linalg.qr(np.stack([D1, D2], axis=1))[0][:, 1]
    for size in (1e-3, 1e-6, 1e-9):
        step = tree(D1 + size * np.linalg.norm(D1) * across)
        assert Projection(tree(D1), tree(D2)).coordinates(step)["b"] == pytest.approx(size, rel=1e-5)


def test_gradient_descent_on_a_quadratic_ends_at_its_minimum():
    """On ½Σ hᵢ(xᵢ−mᵢ)² each coordinate decays by (1−ηh)ᵏ: the whole path is known."""
    curvature, minimum, rate = np.linspace(0.2, 1.5, 7), RNG.normal(size=7), 0.5
    end = minimum * (1 - (1 - rate * curvature) ** 200)
    projection = Projection(tree(end), tree(D2))
    previous = -1.0
    for k in (0, 1, 3, 10, 50, 200):
        step = minimum * (1 - (1 - rate * curvature) ** k)
        found = projection.coordinates(tree(step))
        assert found["a"] == pytest.approx(step @ end / (end @ end)) and found["a"] > previous
        assert found["length"] ** 2 == pytest.approx((found["a"] ** 2 + found["b"] ** 2) * (end @ end))
        previous = found["a"]
    assert (found["a"], found["b"]) == (pytest.approx(1), pytest.approx(0, abs=1e-12))


def test_planes_that_are_none_are_refused():
    for second in (D1 * -2.0, D1 * (1 + 1e-12)):
        with pytest.raises(InputError, match="parallel"):
            Projection(tree(D1), tree(second))
    with pytest.raises(InputError, match="not zero"):
        Projection(tree(D1), jax.tree.map(np.zeros_like, tree(D2)))


def stored(count=5, **attrs):
    t = np.linspace(0, 1, count)
    loss = np.stack([1.2 - t, 1.3 - t])
    data = {
        "a": t, "b": t * (1 - t), "alpha": t, "beta": 0.1 * t * (1 - t), "length": 3 * t, "off_plane": t * (1 - t),
        "step": np.arange(count) * 10,
    }  # fmt: skip
    dataset = xr.Dataset({name: ("snapshot", value) for name, value in data.items()})
    for name, values in (("loss", loss), ("loss_final_head", loss - 0.1)):
        dataset[name] = (("split", "snapshot"), values)
        dataset[f"{name}_se"] = (("split", "snapshot"), np.full_like(values, 0.02))
    dataset["loss"][0, 0] = np.nan
    own = np.ones(count, np.int8)
    own[0] = 0
    dataset["own_head"], dataset["status"] = ("snapshot", own), ("snapshot", np.ones(count, np.int8))
    shown = {"run": "tiny", "norm_x": 3.0, "norm_y": 6.0, "y_scale": "own", "loss_name": "cross entropy, nats"}
    return dataset.assign_coords(split=["train", "dev"]).assign_attrs(shown | attrs)


def plane_surface():
    alpha, beta = np.linspace(-0.5, 1.5, 5), np.linspace(-1, 1, 5)
    values = 0.3 + (alpha[None] - 1) ** 2 + beta[:, None] ** 2
    return xr.Dataset(
        {"loss": (("split", "beta", "alpha"), values[None])},
        {"split": ["train"], "alpha": alpha, "beta": beta},
        {"run": "tiny", "norm_x": 3.0, "norm_y": 6.0, "y_scale": "own", "loss_name": "cross entropy, nats"},
    )


def line_of(figure, label):
    handles = figure.legends[0].legend_handles
    color = next(h.get_color() for h in handles if h.get_label() == label)
    return next(line for line in figure.axes[0].lines if line.get_color() == color and line.get_marker() in "os")


@pytest.mark.parametrize("over", [False, True])
def test_both_paths_are_drawn_in_the_units_of_the_axis(over):
    dataset = stored()
    figure = trajectory_figure(dataset, plane_surface() if over else None)
    # δ₂ is twice as long as δ₁ here.
    squares, paper = line_of(figure, "least squares").get_xydata(), line_of(figure, "a, b (Hao et al.)").get_xydata()
    np.testing.assert_allclose(squares, np.stack([dataset["alpha"], dataset["beta"] * (1 if over else 2)], axis=1))
    np.testing.assert_allclose(paper, np.stack([dataset["a"], dataset["b"] * (0.5 if over else 1)], axis=1))
    low, high = figure.axes[0].get_ylim()
    assert low <= 0 and high >= paper[:, 1].max()
    figure.draw_without_rendering()


@pytest.mark.parametrize("count", [2, 5])
def test_a_trajectory_is_drawn_whatever_its_values(count, tmp_path):
    from bertjax.report.figures import save

    for number, dataset in enumerate(
        [stored(count), stored(count, direction_y="x" * 300), stored(count).assign(loss=lambda d: d["loss"] * np.nan)]
    ):
        before = dataset.copy(deep=True)
        files = save(trajectory_figure(dataset), tmp_path / f"{number}")
        assert all(file.stat().st_size > 2000 for file in files)
        assert dataset.identical(before)
    with pytest.raises(InputError, match="no variable 'off_plane'"):
        trajectory_figure(stored().drop_vars("off_plane"))
