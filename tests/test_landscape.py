"""Landscapes: grids equal closed forms, points are kept as they are, an interrupted grid is the uninterrupted one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import InputError
from bertjax.landscape import evaluate as evaluation
from bertjax.landscape import plane as planes
from bertjax.landscape.blocks import DONE, NOT_FINITE, TODO, GridStore
from bertjax.landscape.directions import FILTER_AXES, random_direction
from bertjax.landscape.store import read_netcdf, write_netcdf
from bertjax.landscape.surface import coordinates, line, surface

RNG = np.random.default_rng(0)
A = RNG.normal(size=(6, 6)).astype(np.float32)
PARAMS = {"w": RNG.normal(size=(2, 3)).astype(np.float32), "b": (RNG.normal(size=4).astype(np.float32),)}
D1 = jax.tree.map(lambda x: RNG.normal(size=x.shape).astype(np.float32), PARAMS)
D2 = jax.tree.map(lambda x: RNG.normal(size=x.shape).astype(np.float32), PARAMS)
TARGETS = RNG.normal(size=(13, 10)).astype(np.float32)


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def quadratic(params, batch):
    """Half the squared distance of the parameters from each example."""
    vector = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(params)])
    return 0.5 * jnp.sum(jnp.square(batch - vector[None]), axis=1)


def closed_form(alpha, beta=0.0):
    point = flat(PARAMS).astype(np.float64) + alpha * flat(D1) + beta * flat(D2)
    return 0.5 * np.square(TARGETS - point).sum(axis=1)


@pytest.mark.parametrize("batch_size", [None, 5, 13])
@pytest.mark.parametrize(
    "x",
    [np.linspace(-1, 1, 4), np.linspace(-1, 1, 5), np.array([-3.0, -0.5, 0.0, 0.1, 2.0]), np.array([0.7])],
    ids=["even", "odd", "asymmetric", "single"],
)
def test_curve_equals_closed_form(x, batch_size):
    result = surface(quadratic, PARAMS, [D1], x=x, data=TARGETS, batch_size=batch_size)
    expected = np.stack([closed_form(a) for a in x])
    np.testing.assert_allclose(result["example_loss"], expected, rtol=1e-6)
    np.testing.assert_allclose(result["loss"].sel(split="all"), expected.mean(1), rtol=1e-6)
    se = expected.std(axis=1, ddof=1) / np.sqrt(13)
    np.testing.assert_allclose(result["loss_se"].sel(split="all"), se, rtol=1e-5)
    assert (result["status"] == DONE).all() and result["alpha"].values.tolist() == x.tolist()


@pytest.mark.parametrize(("nx", "ny"), [(4, 4), (5, 5), (3, 6), (7, 2), (1, 4), (4, 1)])
def test_surface_equals_closed_form(nx, ny):
    x, y = np.linspace(-1.0, 2.0, nx), np.linspace(-0.3, 1.7, ny)
    result = surface(quadratic, PARAMS, [D1, D2], x=x, y=y, data=TARGETS, batch_size=4)
    assert result["loss"].dims == ("split", "beta", "alpha")
    for beta in y:
        for alpha in x:
            got = result["example_loss"].sel(alpha=alpha, beta=beta).values
            np.testing.assert_allclose(got, closed_form(alpha, beta), rtol=1e-6)


def test_ten_line_example_that_is_not_bert():
    inputs = RNG.normal(size=(50, 3)).astype(np.float32)
    labels = (inputs @ np.array([1.0, -2.0, 0.5], np.float32) > 0).astype(np.float32)

    def logistic_loss(params, batch):
        x, y = batch
        z = jnp.sum(x * params["w"][None], axis=1) + params["b"]
        return jax.nn.softplus(z) - y * z

    start = {"w": jnp.zeros(3), "b": jnp.zeros(())}
    direction = {"w": jnp.array([1.0, -2.0, 0.5]), "b": None}
    result = surface(logistic_loss, start, [direction], x=np.linspace(0, 5, 11), data=(inputs, labels))
    loss = result["loss"].sel(split="all").values
    assert loss[0] == pytest.approx(np.log(2), rel=1e-6)  # at zero parameters every class is equally likely
    assert (np.diff(loss) < 0).all()  # the direction separates the classes


def test_scalar_loss_without_data_and_extra_values():
    def rosenbrock(p):
        value = (1.0 - p[0]) ** 2 + 100.0 * (p[1] - p[0] ** 2) ** 2
        return {"loss": value, "error": jnp.where(value > 1, 1.0, 0.0)}

    x, y = np.linspace(-1, 1, 5), np.linspace(0, 2, 3)
    origin = np.zeros(2, np.float32)
    result = surface(rosenbrock, origin, [np.array([1.0, 0.0], np.float32), np.array([0.0, 1.0], np.float32)], x=x, y=y)
    expected = (1 - x[None]) ** 2 + 100 * (y[:, None] - x[None] ** 2) ** 2
    np.testing.assert_allclose(result["loss"].sel(split="all"), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(result["error"].sel(split="all"), expected > 1)
    assert np.isnan(result["loss_se"]).all()  # one example has no standard error


def test_no_examples_is_an_error():
    for data in (np.zeros((0, 10), np.float32), {}):
        with pytest.raises(InputError, match="example"):
            surface(quadratic, PARAMS, [D1], x=[0.0], data=data)
    with pytest.raises(InputError, match="no examples"):
        evaluation.Examples((), np.zeros(0, int))


@pytest.mark.parametrize(
    ("directions", "x", "y", "message"),
    [
        ([], [0.0], None, "directions"),
        ([D1], [0.0], [0.0], "directions"),
        ([D1, D2], [0.0], None, "directions"),
        ([D1], [0.0, 0.0], None, "increasing"),
        ([D1], [1.0, 0.0], None, "increasing"),
        ([D1], [np.nan], None, "finite"),
        ([D1], [], None, "increasing"),
        ([{"w": D1["w"]}], [0.0], None, "structure"),
        ([{"w": D1["w"].T, "b": D1["b"]}], [0.0], None, r"\['w'\].*shape"),
        ([jax.tree.map(np.zeros_like, D1)], [0.0], None, "zero everywhere"),
        ([jax.tree.map(lambda x: x * np.float32(np.nan), D1)], [0.0], None, "not finite"),
    ],
)
def test_wrong_inputs_are_named(directions, x, y, message):
    with pytest.raises(InputError, match=message):
        surface(quadratic, PARAMS, directions, x=x, y=y, data=TARGETS)


def test_loss_function_of_wrong_shape_is_named():
    with pytest.raises(InputError, match="one value per example"):
        surface(lambda p, batch: jnp.sum(batch), PARAMS, [D1], x=[0.0], data=TARGETS)
    with pytest.raises(InputError, match="'loss'"):
        surface(lambda p, batch: {"cost": batch[:, 0]}, PARAMS, [D1], x=[0.0], data=TARGETS)


def test_leaves_that_are_no_floats_or_do_not_move_are_carried():
    origin = {
        "w": np.ones(3, np.float32),
        "count": np.array([1, 2, 3], np.int32),
        "still": np.float32(2.0),
        "half": jnp.ones(2, jnp.bfloat16),
    }
    direction = {
        "w": np.ones(3, np.float32),
        "count": np.array([5, 5, 5]),
        "still": None,
        "half": jnp.ones(2, jnp.bfloat16),
    }
    at = planes.make_plane(origin, [direction]).at(jnp.array([0.5], jnp.float32))
    assert at["count"].tolist() == [1, 2, 3] and at["count"].dtype == np.int32
    assert float(at["still"]) == 2.0 and at["w"].tolist() == [1.5] * 3
    assert at["half"].dtype == jnp.bfloat16 and at["half"].tolist() == [1.5] * 2


def test_zero_leaves_are_dropped_and_norms_are_right():
    direction = {"w": D1["w"], "b": (np.zeros(4, np.float32),)}
    plane = planes.make_plane(PARAMS, [direction])
    assert [step is None for step in plane.directions[0]] == [True, False]  # leaves are in order of their names
    assert planes.norm(D1) == pytest.approx(np.linalg.norm(flat(D1)), rel=1e-6)
    assert planes.norm({"w": D1["w"], "b": (None,)}) == pytest.approx(np.linalg.norm(D1["w"]), rel=1e-6)
    cosine = flat(D1) @ flat(D2) / np.linalg.norm(flat(D1)) / np.linalg.norm(flat(D2))
    assert planes.cosine(D1, D2) == pytest.approx(cosine, rel=1e-5)
    assert planes.norm(planes.rescale(D2, 3.0)) == pytest.approx(3.0, rel=1e-6)
    with pytest.raises(InputError, match="norm"):
        planes.rescale(jax.tree.map(np.zeros_like, D2), 1.0)


POINTS = np.stack([np.linspace(-1, 1, 11), np.linspace(2, 0, 11)], axis=1)


def run_grid(store=None, block=8, points=POINTS, loss=None, mesh=None, **options):
    plane = planes.make_plane(PARAMS, [D1, D2])
    examples = evaluation.Examples((TARGETS[:12].reshape(3, 4, 10),), np.arange(12))
    loss = loss or (lambda params, batch: {"loss": quadratic(params, batch)})
    return evaluation.evaluate(
        loss, plane, points, examples, store=store, block=block, points_per_step=1, mesh=mesh, **options
    )


def test_centre_twice_is_bitwise_equal():
    twice = np.concatenate([POINTS[3:4], POINTS, POINTS[3:4]])
    values = run_grid(points=twice)["loss"]
    np.testing.assert_array_equal(values[0], values[-1])
    np.testing.assert_array_equal(values[0], values[4])


def test_interrupted_grid_is_bitwise_the_uninterrupted_one(tmp_path, monkeypatch):
    whole = run_grid(tmp_path / "whole.zarr", identity={"a": 1})
    write = GridStore.write

    def dies_after(count):
        def limited(self, number, values):
            nonlocal count
            if count == 0:
                raise KeyboardInterrupt
            count -= 1
            write(self, number, values)

        return limited

    for survivors in (0, 1):
        path = tmp_path / f"cut{survivors}.zarr"
        monkeypatch.setattr(GridStore, "write", dies_after(survivors))
        with pytest.raises(KeyboardInterrupt):
            run_grid(path, identity={"a": 1})
        assert (GridStore.open(path).status() == TODO).sum() == 11 - 8 * survivors
        monkeypatch.setattr(GridStore, "write", write)
        # the stored block size wins over the one asked for
        resumed = run_grid(path, identity={"a": 1}, block=16)
        np.testing.assert_array_equal(resumed["loss"], whole["loss"])
        np.testing.assert_array_equal(resumed["status"], whole["status"])


def test_values_without_status_are_computed_again(tmp_path):
    path = tmp_path / "grid.zarr"
    whole = run_grid(path)
    store = GridStore.open(path)
    store._group["status"][:8] = TODO
    store._group["loss"][:8] = -1.0  # values of a block that was cut before its status was written
    np.testing.assert_array_equal(run_grid(path)["loss"], whole["loss"])


def test_store_of_another_computation_or_damaged_is_refused(tmp_path):
    path = tmp_path / "grid.zarr"
    run_grid(path, identity={"seed": 1, "head": "fixed"})
    with pytest.raises(InputError, match=r"seed: 1 -> 2"):
        run_grid(path, identity={"seed": 2, "head": "fixed"})
    (path / "zarr.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        run_grid(path, identity={"seed": 1, "head": "fixed"})


DAMAGE = {
    "flipped": lambda file: file.write_bytes(
        bytes([*file.read_bytes()[:5], file.read_bytes()[5] ^ 4]) + file.read_bytes()[6:]
    ),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-6]),
    "emptied": lambda file: file.write_bytes(b""),
    "lost": lambda file: file.unlink(),
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("array", ["loss", "status"])
def test_a_damaged_block_is_named_and_computed_again(array, how, tmp_path, capsys):
    path = tmp_path / "grid.zarr"
    whole = run_grid(path)
    DAMAGE[how](path / array / "c" / ("1/0" if array == "loss" else "1"))
    store = GridStore.open(path)
    assert store.missing_blocks() == [1]
    # A status that is lost is that of a block to do: nothing is wrong with it.
    assert ("damaged block 1" in capsys.readouterr().out) == ((array, how) != ("status", "lost"))
    again = run_grid(path)
    np.testing.assert_array_equal(again["loss"], whole["loss"])
    np.testing.assert_array_equal(again["status"], whole["status"])


@pytest.mark.parametrize("file", ["zarr.json", "loss/zarr.json", "status/zarr.json"])
@pytest.mark.parametrize("how", ["cut", "lost", "other block", "other type"])
def test_a_store_whose_description_is_damaged_is_refused(file, how, tmp_path):
    path = tmp_path / "grid.zarr"
    run_grid(path, identity={"seed": 1})
    changes = {"other block": ("8", "9"), "other type": ("float32" if "loss" in file else "int8", "uint8")}
    if how in changes:
        (path / file).write_text((path / file).read_text().replace(*changes[how]))
    else:
        DAMAGE[how](path / file)
    if (file, how) in {("loss/zarr.json", "lost"), ("zarr.json", "other type")}:
        return  # covered: an array that is lost is a lost chunk; the group has no type
    with pytest.raises(InputError, match=r"grid.zarr is damaged.*remove it to start again"):
        run_grid(path, identity={"seed": 1})


def test_remains_of_a_killed_writer_are_removed(tmp_path):
    path = tmp_path / "grid.zarr"
    whole = run_grid(path)
    (path / "loss" / "c" / "1" / "0.0a1b.partial").write_bytes(b"half a chunk")
    (tmp_path / ".new.zarr.new").mkdir()  # a store that was not whole yet
    np.testing.assert_array_equal(run_grid(path)["loss"], whole["loss"])
    run_grid(tmp_path / "new.zarr")
    assert not [p for p in tmp_path.rglob("*") if "partial" in p.name or p.name.endswith(".new")]


def test_block_sizes_and_meshes_agree():
    one = run_grid(block=1, mesh=evaluation.point_mesh(jax.devices()[:1]))["loss"]
    for block, devices in ((4, 1), (8, 8), (16, 8), (6, 2)):
        many = run_grid(block=block, mesh=evaluation.point_mesh(jax.devices()[:devices]))["loss"]
        np.testing.assert_allclose(many, one, rtol=1e-6)
    plane = planes.make_plane(PARAMS, [D1, D2])
    examples = evaluation.Examples((TARGETS[None],), np.arange(13))
    loss = lambda params, batch: {"loss": quadratic(params, batch)}  # noqa: E731
    together = evaluation.evaluate(loss, plane, POINTS, examples, points_per_step=3, block=24)["loss"]
    np.testing.assert_allclose(together[:, :12], one, rtol=1e-6)


def test_block_that_does_not_divide_is_refused():
    with pytest.raises(InputError, match="multiple of 8 devices"):
        run_grid(block=4)


def test_points_that_are_not_finite_are_kept_and_marked(tmp_path):
    corner = [PARAMS["w"][0, 0] + a * D1["w"][0, 0] + b * D2["w"][0, 0] for a, b in POINTS]
    threshold = float(np.median(corner)) + 1e-3

    def loss(params, batch):
        value = quadratic(params, batch)
        return {"loss": jnp.where(params["w"][0, 0] > threshold, jnp.log(-jnp.abs(value)), value)}

    values = run_grid(tmp_path / "grid.zarr", loss=loss)
    nan = np.isnan(values["loss"]).all(axis=1)
    assert nan.any() and not nan.all()
    np.testing.assert_array_equal(values["status"], np.where(nan, NOT_FINITE, DONE))
    assert not GridStore.open(tmp_path / "grid.zarr").missing_blocks()  # not computed for ever


def test_memory_does_not_grow_with_the_number_of_points():
    """One program serves every grid: its memory is that of a block, however many points there are."""
    plane = planes.make_plane(PARAMS, [D1, D2])
    examples = evaluation.Examples((jnp.asarray(TARGETS[:12].reshape(3, 4, 10)),), np.arange(12))
    loss = lambda params, batch: {"loss": quadratic(params, batch)}  # noqa: E731
    found = {
        count: evaluation.prepare(loss, plane, np.zeros((count, 2)), examples, points_per_step=1, block=8)
        for count in (8, 80, 800)
    }
    assert len({prepared.memory for prepared in found.values()}) == 1
    assert found[800].memory > sum(leaf.nbytes for leaf in jax.tree.leaves(plane))
    wider = evaluation.prepare(loss, plane, np.zeros((8, 2)), examples, points_per_step=1, block=64)
    assert wider.memory > found[8].memory  # the number means something


def test_measured_blocks_are_multiples_of_the_mesh():
    values = run_grid(block=None)
    np.testing.assert_allclose(values["loss"], run_grid()["loss"], rtol=1e-6)


def test_line_always_holds_zero_and_one():
    for low, high, count in ((-1, 2, 7), (-4, 4, 40), (-0.5, 1.5, 21), (0, 1, 2), (-1.0, 1.0, 4)):
        values = line(low, high, count)
        assert 0.0 in values and 1.0 in values and (np.diff(values) > 0).all()
        assert values[0] == low and values[-1] == high and count <= len(values) <= count + 2
    assert line(0.2, 0.4, 3).tolist() == pytest.approx([0.2, 0.3, 0.4])
    for low, high, count in ((1, 0, 3), (0, 1, 0), (1, 1, 2)):
        with pytest.raises(InputError, match=r"--beta .*expected the lower end first"):
            line(low, high, count, "beta")
    assert coordinates("x", 0.5).tolist() == [0.5]


def bert_like():
    shapes = {
        "encoder/embeddings/word": (7, 4),
        "encoder/layers/attention/query/kernel": (2, 4, 2, 3),
        "encoder/layers/attention/output/kernel": (2, 2, 3, 4),
        "encoder/layers/intermediate/kernel": (2, 4, 5),
        "encoder/layers/norm/scale": (2, 4),
        "encoder/layers/norm/bias": (2, 4),
        "encoder/pooler/kernel": (4, 4),
    }
    from bertjax.tree import unflatten

    return unflatten({p: jnp.asarray(RNG.normal(size=s), jnp.float32) for p, s in shapes.items()})


def test_filter_normalization_is_per_filter():
    from bertjax.tree import flatten

    params = bert_like()
    direction = flatten(random_direction(jax.random.key(3), params))
    flat_params = flatten(params)
    axes = {  # what one filter is, stated again: an embedding row, an attention head, an output unit
        "encoder/embeddings/word": (1,),
        "encoder/layers/attention/query/kernel": (1, 3),
        "encoder/layers/attention/output/kernel": (2, 3),
        "encoder/layers/intermediate/kernel": (1,),
        "encoder/pooler/kernel": (0,),
    }
    for path, over in axes.items():
        size = np.linalg.norm if len(over) == 1 else lambda x, axis: np.sqrt(np.square(x).sum(axis=axis))
        axis = over[0] if len(over) == 1 else over
        np.testing.assert_allclose(size(direction[path], axis=axis), size(flat_params[path], axis=axis), rtol=1e-5)
    assert direction["encoder/layers/norm/scale"] is None and direction["encoder/layers/norm/bias"] is None
    scaled = flatten(random_direction(jax.random.key(3), params, vectors="scale"))
    np.testing.assert_allclose(
        np.linalg.norm(scaled["encoder/layers/norm/bias"], axis=1),
        np.linalg.norm(flat_params["encoder/layers/norm/bias"], axis=1),
        rtol=1e-5,
    )
    layer = flatten(random_direction(jax.random.key(3), params, normalization="layer"))
    for path, value in layer.items():
        if value is not None:
            assert np.linalg.norm(value) == pytest.approx(np.linalg.norm(flat_params[path]), rel=1e-5)


def test_random_directions_come_from_their_seed():
    params = bert_like()
    same = jax.tree.map(
        lambda a, b: bool((a == b).all()),
        random_direction(jax.random.key(1), params),
        random_direction(jax.random.key(1), params),
    )
    assert all(jax.tree.leaves(same))
    other = planes.cosine(random_direction(jax.random.key(1), params), random_direction(jax.random.key(2), params))
    assert abs(other) < 0.5


def test_every_kernel_and_table_has_its_filter():
    from fnmatch import fnmatch

    from tiny import tiny_config

    from bertjax.model.heads import TaskModel
    from bertjax.training.steps import init_params
    from bertjax.tree import flatten

    shapes = jax.eval_shape(lambda key: init_params(TaskModel(tiny_config(), 3), key), jax.random.key(0))
    for path in flatten(shapes):
        fits = [pattern for pattern, _ in FILTER_AXES if fnmatch(path, pattern)]
        assert bool(fits) == (not path.endswith(("/bias", "/scale"))), path


def test_netcdf_round_trip_keeps_everything(tmp_path):
    result = surface(quadratic, PARAMS, [D1], x=[0.0, 1.0], data=TARGETS, attributes={"kind": "curve", "norm_x": 1.5})
    path = write_netcdf(result, tmp_path / "a" / "curve.nc")
    assert read_netcdf(path).identical(result)
    whole = path.read_bytes()
    for place in range(0, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 2]) + whole[place + 1 :])
        try:
            assert read_netcdf(path).identical(result), place  # an unused byte of the file
        except InputError as error:
            assert "not a readable netCDF" in str(error)
    path.write_bytes(whole[:200])
    with pytest.raises(InputError, match="not a readable netCDF"):
        read_netcdf(path)
    with pytest.raises(InputError, match="does not exist"):
        read_netcdf(tmp_path / "b.nc")
