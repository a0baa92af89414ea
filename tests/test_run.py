"""The whole job on a tiny model: train, continue, landscape, rollback, figures; and how wrong input ends."""

import dataclasses
import json
import os
import re
import signal
from pathlib import Path

import jax
import numpy as np
import pytest
from tiny import tiny_checkpoint, tiny_tokenizer

from bertjax import cli, stopping
from bertjax.config import (
    DataOptions,
    ModelOptions,
    OptimOptions,
    RunConfig,
    TrainOptions,
    from_dict,
    from_json,
    to_json,
)
from bertjax.errors import InputError
from bertjax.landscape import commands
from bertjax.landscape.directions import direction, load_ends
from bertjax.landscape.examples import evaluation_set
from bertjax.landscape.rollback import layer_groups
from bertjax.landscape.store import read_netcdf
from bertjax.landscape.subject import RunSubject
from bertjax.run import Run
from bertjax.training import loop
from bertjax.training.estimate import dry_run
from bertjax.training.records import read_jsonl
from bertjax.tree import flatten

WORDS = {"pos": ("good", "great", "very good"), "neg": ("bad", "dull", "not good"), "mid": ("red", "blue", "a plot")}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer = tiny_tokenizer(folder)
    tiny_checkpoint(folder, vocab_size=len(tokenizer), num_hidden_layers=3, max_position_embeddings=24)
    return folder


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """66 labelled sentences: no multiple of any batch size used here."""
    rng = np.random.default_rng(0)
    lines = ["text\tlabel"]
    for i in range(66):
        label = ("pos", "neg", "mid")[i % 3]
        filler = " ".join(rng.choice(["the", "film", "is", "a", "un"], rng.integers(1, 9)))
        lines.append(f"{filler} {WORDS[label][i % 2]} {i}\t{label}")
    path = tmp_path_factory.mktemp("data") / "rows.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def make_config(checkpoint, rows, tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")

    def make(name="run", **changes) -> RunConfig:
        config = RunConfig(
            name=name,
            runs=str(runs),
            model=ModelOptions(path=str(checkpoint)),
            data=DataOptions(train=str(rows), dev_rows=21, max_length=24, buckets=(16,), cache=""),
            optim=OptimOptions(learning_rate=3e-3),
            train=TrainOptions(steps=12, batch_size=8, eval_batch_size=8, eval_every=5, log_every=3, snapshots=3),
        )
        for path, value in changes.items():
            section, _, field = path.partition("__")
            config = dataclasses.replace(
                config, **{section: dataclasses.replace(getattr(config, section), **{field: value}) if field else value}
            )
        return config

    return make


@pytest.fixture(scope="module")
def finished(make_config):
    return loop.train(make_config("finished"))


def test_a_run_holds_everything(finished, make_config):
    folder = finished.folder
    assert from_json(RunConfig, folder / "config.json") == make_config("finished")
    info = finished.info
    assert (
        info["status"] == "done"
        and info["labels"] == ["mid", "neg", "pos"]
        and info["fresh"] == ["head/bias", "head/kernel"]
    )
    assert info["rows"] == {"train": 45, "dev": 21} and len(info["parameters"]["start"]) == 64
    assert finished.snapshot_steps == [0, 4, 8, 12]
    records = read_jsonl(folder / "metrics.jsonl")
    assert [r["step"] for r in records if "dev/loss" in r] == [0, 5, 10, 12]
    assert [r["step"] for r in records if "train/loss" in r] == [3, 5, 6, 9, 10, 12]
    last = [r for r in records if "dev/loss" in r][-1]
    assert {f"dev/{k}": v for k, v in info["results"]["dev"].items()} == {k: v for k, v in last.items() if k != "step"}
    assert 0 <= last["dev/accuracy"] <= 1
    kept = {int(p.name) for p in (folder / "checkpoints").iterdir() if p.name.isdigit()}
    assert kept == {10, 12, info["best_step"]}
    assert list((folder / "tensorboard").iterdir()) and (folder / "tokenizer" / "tokenizer.json").exists()


def test_a_second_call_finds_the_run_done(finished, make_config, capsys):
    before = {p: p.stat().st_mtime_ns for p in finished.folder.rglob("*") if p.is_file()}
    assert loop.train(make_config("finished")).info == finished.info
    assert "done" in capsys.readouterr().out
    assert before == {p: p.stat().st_mtime_ns for p in finished.folder.rglob("*") if p.is_file()}


def test_a_folder_of_another_config_is_refused(finished, make_config, tmp_path):
    with pytest.raises(InputError, match=r"optim.learning_rate: 0.003 -> 0.1"):
        loop.train(make_config("finished", optim__learning_rate=0.1))
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "file").write_text("mine")
    with pytest.raises(InputError, match="not empty and is not a run"):
        loop.train(make_config("x", runs=str(tmp_path)))


def same_run(a: Run, b: Run) -> None:
    """All that a run determines is equal, bit for bit."""
    assert a.info["parameters"] == b.info["parameters"] and a.info["results"] == b.info["results"]
    assert (a.folder / "metrics.jsonl").read_bytes() == (b.folder / "metrics.jsonl").read_bytes()
    assert a.snapshot_steps == b.snapshot_steps and a.info["best_step"] == b.info["best_step"]


@pytest.mark.parametrize(
    ("where", "call"),
    [("collect", 8), ("collect", 1), ("evaluate", 7), ("evaluate", 2), ("checkpoints.save", 2), ("snapshots.save", 3)],
)
@pytest.mark.parametrize("kind", ["signal", "failure"])
def test_an_interrupted_run_continues_bit_for_bit(
    where, call, kind, finished, make_config, monkeypatch, tmp_path, capfd
):
    """A signal or a failure (here: of any function of the loop) at any place; the same command goes on."""
    owner, name = {
        "collect": (loop.Records, "collect"),
        "evaluate": (loop.sharding, "put_batch"),  # of an evaluation too
        "checkpoints.save": (loop.Checkpoints, "save"),
        "snapshots.save": (loop.Snapshots, "save"),
    }[where]
    original, calls = getattr(owner, name), []

    def disturbed(*arguments, **named):
        calls.append(1)
        if len(calls) == call:
            if kind == "failure":
                raise RuntimeError("disturbed")
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*arguments, **named)

    config = make_config("disturbed", runs=str(tmp_path))
    monkeypatch.setattr(owner, name, disturbed)
    with pytest.raises(stopping.Interrupted if kind == "signal" else RuntimeError) as stop:
        loop.train(config)
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(tmp_path))
    if kind == "signal":
        assert stop.value.number == signal.SIGTERM and "SIGTERM" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert Run.open(config.folder).info["status"] == "training"
    with pytest.raises(InputError, match="has not finished"):
        Run.open(config.folder).ends()
    same_run(loop.train(config), finished)


def test_evaluation_counts_every_row_once_on_any_number_of_devices(finished, make_config):
    """21 rows in batches of 8 on 1 and 8 devices, and one by one: the same mean."""
    from bertjax.data.batches import eval_batches
    from bertjax.training import sharding
    from bertjax.training.steps import make_steps

    splits, scores = finished.splits, []
    for devices, size in ((1, 1), (1, 8), (1, 21), (8, 8), (8, 16)):
        mesh = sharding.make_mesh(make_config().mesh, jax.devices()[:devices])
        steps = make_steps(finished.model, "classification", make_config().optim, 12, mesh)
        params = finished.params(12, mesh)
        dev = eval_batches(splits.dev, batch_size=size, buckets=(16, 24))
        scores.append(loop.evaluate(steps, params, dev, mesh, splits.dev, splits.task)[0])
    for score in scores[1:]:
        assert score["loss"] == pytest.approx(scores[0]["loss"], abs=1e-6)
        assert score["accuracy"] == scores[0]["accuracy"]
    assert scores[0]["accuracy"] == pytest.approx(finished.info["results"]["dev"]["accuracy"])


def test_from_scratch_starts_elsewhere(finished, make_config):
    scratch = loop.train(make_config("scratch", model__init="random", train__steps=2))
    assert len(scratch.info["fresh"]) == len(flatten(scratch.params(0)))
    a, b = flatten(finished.params(0)), flatten(scratch.params(0))
    assert not np.array_equal(a["encoder/embeddings/word"], b["encoder/embeddings/word"])
    np.testing.assert_array_equal(a["head/kernel"].shape, b["head/kernel"].shape)


def test_loaded_weights_are_the_checkpoints(finished, checkpoint):
    from bertjax import weights

    _, loaded, _ = weights.load(checkpoint)
    start = flatten(finished.params(0))
    for path, value in flatten(loaded).items():
        np.testing.assert_array_equal(start[path], value, err_msg=path)


def test_regression_run(make_config, tmp_path):
    rng = np.random.default_rng(1)
    lines = ["text\tlabel"] + [
        f"{' '.join(['good'] * n)} film {i}\t{n / 5:.1f}" for i, n in enumerate(rng.integers(1, 6, 40))
    ]
    path = tmp_path / "scores.tsv"
    path.write_text("\n".join(lines) + "\n")
    run = loop.train(
        make_config("regression", data__train=str(path), data__task="regression", data__dev_rows=10, train__steps=4)
    )
    assert (
        set(run.info["results"]["dev"]) == {"loss", "pearson", "spearman", "mse"} and run.info["headline"] == "spearman"
    )
    # Every result of a task without an error rate is drawn, too.
    cli.landscape(["rollback", str(run.folder), "--dev_examples=10", "--train_examples=0", "--groups=2"])
    assert (run.folder / "figures" / "rollback.png").exists()
    file = commands.compute(commands.Curve(run=str(run.folder), points=3, train_examples=0, dev_examples=10))
    dataset = read_netcdf(file)
    assert "error" not in dataset and dataset.attrs["loss_name"] == "squared error"
    np.testing.assert_allclose(
        dataset["loss"].sel(alpha=1.0, split="dev"), run.info["results"]["dev"]["mse"], rtol=1e-5
    )


# -- landscapes of the run ---------------------------------------------------------------------------------------------


def dev_loss(run, params):
    from bertjax.data.batches import eval_batches
    from bertjax.training import sharding
    from bertjax.training.steps import make_steps

    mesh = sharding.make_mesh(run.config.mesh, jax.devices()[:1])
    steps = make_steps(run.model, run.head, run.config.optim, 12, mesh)
    dev = eval_batches(run.splits.dev, batch_size=8, buckets=(16, 24))
    return loop.evaluate(steps, params, dev, mesh, run.splits.dev, run.splits.task)[0]


def test_moving_head_reproduces_both_models(finished):
    file = commands.compute(commands.Curve(run=str(finished.folder), name="move", head="move", points=4))
    dataset = read_netcdf(file)
    for alpha, step in ((0.0, 0), (1.0, 12)):
        expected = dev_loss(finished, finished.params(step))
        point = dataset.sel(alpha=alpha, split="dev")
        assert float(point["loss"]) == pytest.approx(expected["loss"], abs=1e-5)
        assert float(1 - point["error"]) == pytest.approx(expected["accuracy"])
    assert dataset.attrs["examples"] == "train 45, dev 21"


def test_fixed_head_is_the_start_under_the_trained_head(finished):
    file = commands.compute(commands.Curve(run=str(finished.folder), points=4))
    dataset = read_netcdf(file)
    start, end = finished.params(0), finished.params(12)
    for alpha, params in ((0.0, start | {"head": end["head"]}), (1.0, end)):
        assert float(dataset["loss"].sel(alpha=alpha, split="dev")) == pytest.approx(
            dev_loss(finished, params)["loss"], abs=1e-5
        )
    moved = flatten(jax.tree.map(lambda a, b: b - a, start["encoder"], end["encoder"]))
    assert dataset.attrs["norm_x"] == pytest.approx(
        np.sqrt(sum(np.square(np.asarray(x, np.float64)).sum() for x in moved.values()))
    )
    assert (finished.folder / "figures").exists() is False or list((finished.folder / "figures").iterdir())


def test_surface_contains_the_curve(finished):
    curve = read_netcdf(commands.compute(commands.Curve(run=str(finished.folder), points=4)))
    surface = read_netcdf(
        commands.compute(
            commands.Surface(run=str(finished.folder), points=4, beta_points=3, block=8, points_per_step=1)
        )
    )
    assert surface["loss"].shape == (2, len(surface["beta"]), len(surface["alpha"]))
    np.testing.assert_allclose(surface["example_loss"].sel(beta=0.0), curve["example_loss"], atol=1e-5)
    assert surface.attrs["y_scale"] == "own" and abs(surface.attrs["cosine"]) < 0.3
    assert surface.attrs["norm_y"] == surface.attrs["norm_y_before_rescaling"] > 2 * surface.attrs["norm_x"]
    assert not (finished.folder / "landscape" / "surface.zarr").exists()


def test_a_second_direction_is_scaled_by_its_kind_or_as_told(finished, make_config):
    other = loop.train(make_config("second", data__split_seed=5, train__steps=3))
    task, size = f"task:{other.folder}", {"points": 2, "beta_points": 2, "train_examples": 0, "dev_examples": 3}
    cases = {
        "own": [("random", "auto"), (task, "own")],
        "first": [("random:none", "auto"), (task, "auto"), ("random", "first")],
    }
    size |= {"block": 8, "points_per_step": 1}
    for number, (y, choice, scale) in enumerate((*case, scale) for scale, found in cases.items() for case in found):
        command = commands.Surface(run=str(finished.folder), name=f"scale{number}", y=y, y_scale=choice, **size)
        attrs = read_netcdf(commands.compute(command)).attrs
        assert attrs["y_scale"] == scale
        assert attrs["norm_y"] == attrs["norm_x" if scale == "first" else "norm_y_before_rescaling"]
    # auto is the same computation as what it stands for
    commands.compute(commands.Surface(run=str(finished.folder), name="scale0", y_scale="own", **size))
    with pytest.raises(InputError, match=r"y_scale: .own. -> .first."):
        commands.compute(commands.Surface(run=str(finished.folder), name="scale0", y_scale="first", **size))


def test_a_second_process_on_one_result_is_refused_at_once(finished, capsys):
    from bertjax.locks import exclusive

    with exclusive(finished.folder / "landscape" / ".locked.lock", "it"), pytest.raises(SystemExit) as stop:
        cli.landscape(["curve", str(finished.folder), "--name", "locked", "--points", "2"])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.count("\n") == 1 and "another process is working on" in error
    assert not (finished.folder / "landscape" / "locked.zarr").exists()


@pytest.mark.parametrize("kind", ["surface", "rollback"])
def test_a_signal_ends_after_the_block_and_the_same_command_continues(kind, finished, monkeypatch, capfd):
    from bertjax.landscape.blocks import TODO, GridStore

    more = {"surface": ["--points", "3", "--beta_points", "3", "--block", "8", "--points_per_step", "1"]}.get(kind, [])
    options = [kind, str(finished.folder), "--dev_examples", "4", "--train_examples", "0", *more]
    cli.landscape([*options, "--name", f"{kind}-whole"])
    write = GridStore.write

    def signalled(self, number, values):
        write(self, number, values)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(GridStore, "write", signalled)
    with pytest.raises(SystemExit) as stop:
        cli.landscape([*options, "--name", f"{kind}-stopped"])
    monkeypatch.undo()
    assert stop.value.code == 128 + signal.SIGTERM and "the same command continues" in capfd.readouterr().err
    path = finished.folder / "landscape" / f"{kind}-stopped.zarr"
    assert (GridStore.open(path).status() != TODO).sum() == (8 if kind == "surface" else 1)
    cli.landscape([*options, "--name", f"{kind}-stopped"])
    whole, again = (read_netcdf(finished.folder / "landscape" / f"{kind}-{name}.nc") for name in ("whole", "stopped"))
    for name in whole.data_vars:
        np.testing.assert_array_equal(whole[name], again[name], err_msg=name)
    assert not path.exists()


def test_a_full_disk_is_one_line_and_keeps_what_is_done(finished, monkeypatch, capsys):
    from bertjax.landscape.blocks import GridStore

    options = ["curve", str(finished.folder), "--name", "full", "--points", "20", "--block", "8"]
    options += ["--points_per_step", "1", "--train_examples", "0"]
    write, done = GridStore.write, []

    def full(self, number, values):
        if done:
            raise OSError(28, "No space left on device")
        write(self, number, values)
        done.append(number)

    with monkeypatch.context() as patch:
        patch.setattr(GridStore, "write", full)
        with pytest.raises(SystemExit) as stop:
            cli.landscape(options)
    assert stop.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: No space left on device")
    assert (GridStore.open(finished.folder / "landscape" / "full.zarr").status() > 0).sum() == 8
    cli.landscape(options)


@pytest.mark.parametrize("kind", ["curve", "surface", "rollback", "trajectory"])
def test_a_dry_run_says_what_it_costs_and_writes_nothing(kind, finished, capsys):
    def files():
        return {p: p.stat().st_mtime_ns for p in finished.folder.rglob("*")}

    before = files()
    cli.landscape([kind, str(finished.folder), "--name", "dry", "--dry_run", "--dev_examples", "4"])
    assert files() == before
    shown = capsys.readouterr().out
    count = {"curve": "31 points", "surface": "25 x 21 = 525 points", "rollback": "groups", "trajectory": "4 snapshots"}
    size = sum(x.size for x in jax.tree.leaves(finished.params(0)))
    for text in (count[kind], "train 45, dev 4", f"{size:,} parameters", "MiB", "time    about", "nothing was written"):
        assert text in shown, (text, shown)


def test_an_interrupted_surface_continues_bit_for_bit(finished, monkeypatch):
    from bertjax.landscape.blocks import GridStore

    options = dict(run=str(finished.folder), points=3, beta_points=2, block=8, points_per_step=1)
    whole = read_netcdf(commands.compute(commands.Surface(name="whole", **options)))
    write, left = GridStore.write, [1]

    def dying(self, number, values):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        write(self, number, values)

    monkeypatch.setattr(GridStore, "write", dying)
    with pytest.raises(KeyboardInterrupt):
        commands.compute(commands.Surface(name="cut", **options))
    monkeypatch.undo()
    assert (finished.folder / "landscape" / "cut.zarr").exists()
    resumed = read_netcdf(commands.compute(commands.Surface(name="cut", **options)))
    for name in whole.data_vars:
        np.testing.assert_array_equal(whole[name], resumed[name], err_msg=name)


def test_a_result_of_other_options_is_not_overwritten(finished):
    commands.compute(commands.Curve(run=str(finished.folder), name="kept", points=3))
    with pytest.raises(InputError, match=r"head: .fixed. -> .move."):
        commands.compute(commands.Curve(run=str(finished.folder), name="kept", points=3, head="move"))


def test_rollback_of_nothing_and_of_all(finished):
    dataset = read_netcdf(commands.compute(commands.Rollback(run=str(finished.folder), groups=2)))
    start, end = finished.params(0), finished.params(12)
    dev = dataset.sel(split="dev")
    for group, params in (("none", end), ("all", {"encoder": start["encoder"], "head": end["head"]})):
        expected = dev_loss(finished, params)
        assert float(dev["loss"].sel(group=group)) == pytest.approx(expected["loss"], abs=1e-5)
        assert float(dev["score"].sel(group=group)) == pytest.approx(expected["accuracy"])
    assert dataset["group"].values.tolist() == [
        "none",
        "embeddings",
        "layers 0-1",
        "layer 2",
        "layer 0",
        "layer 1",
        "pooler",
        "all",
    ]
    mixed = jax.tree.map(lambda a, b: b.at[:2].set(a[:2]), start["encoder"]["layers"], end["encoder"]["layers"])
    expected = dev_loss(finished, {"encoder": end["encoder"] | {"layers": mixed}, "head": end["head"]})
    assert float(dev["loss"].sel(group="layers 0-1")) == pytest.approx(expected["loss"], abs=1e-5)
    parts = dataset["moved"].sel(group=["embeddings", "layers 0-1", "layer 2", "pooler"])
    assert float(np.sqrt(np.square(parts).sum())) == pytest.approx(float(dataset["moved"].sel(group="all")), rel=1e-6)
    assert float(dataset["moved"].sel(group="none")) == 0.0


def test_task_direction_needs_the_same_start(finished, make_config):
    other = loop.train(make_config("other", data__split_seed=5, train__steps=3))
    ends = load_ends(RunSubject(finished), "fixed")
    tree, words = direction(f"task:{other.folder}", ends, "y")
    expected = (
        other.params(3)["encoder"]["layers"]["norm"]["scale"] - finished.params(0)["encoder"]["layers"]["norm"]["scale"]
    )
    np.testing.assert_array_equal(tree["encoder"]["layers"]["norm"]["scale"], expected)
    assert tree["head"]["kernel"] is None and "other" in words
    scratch = loop.train(make_config("elsewhere", model__init="random", train__steps=2))
    with pytest.raises(InputError, match="another start"):
        direction(f"task:{scratch.folder}", ends, "y")
    for spec, message in (("task", "task:RUN2"), ("taks:x", "did you mean 'task'"), ("random:odd", "random:filter")):
        with pytest.raises(InputError, match=message):
            direction(spec, ends, "y")


def test_a_trajectory_goes_from_start_to_end(finished):
    path = commands.compute(commands.Trajectory(run=str(finished.folder)))
    dataset = read_netcdf(path)
    assert dataset.attrs["kind"] == "trajectory" and dataset["step"].values.tolist() == [0, 4, 8, 12]
    for snapshot, place in (("step 0", 0.0), ("step 12", 1.0)):
        point = dataset.sel(snapshot=snapshot)
        np.testing.assert_allclose([point["a"], point["alpha"]], place, atol=1e-9)
        np.testing.assert_allclose([point["b"], point["beta"], point["off_plane"]], 0.0, atol=1e-9)
    middle = dataset.sel(snapshot="step 4")
    assert 0 < float(middle["a"]) < 1 and float(middle["b"]) > 0.05
    start, end, step = finished.params(0), finished.params(12), finished.params(4)
    for name, params in (("loss", step), ("loss_final_head", step | {"head": end["head"]})):
        expected = dev_loss(finished, params)["loss"]
        assert float(middle[name].sel(split="dev")) == pytest.approx(expected, abs=1e-5)
    curve = read_netcdf(commands.compute(commands.Curve(run=str(finished.folder), points=4)))
    for snapshot, alpha in (("step 0", 0.0), ("step 12", 1.0)):
        np.testing.assert_allclose(
            dataset["example_loss_final_head"].sel(snapshot=snapshot), curve["example_loss"].sel(alpha=alpha), atol=1e-5
        )
    length = np.sqrt(
        sum(
            np.square(np.asarray(a, np.float64) - b).sum()
            for a, b in zip(jax.tree.leaves(step["encoder"]), jax.tree.leaves(start["encoder"]), strict=True)
        )
    )
    assert float(middle["length"]) == pytest.approx(length, rel=1e-6)


def test_zero_examples_are_an_error(finished):
    with pytest.raises(InputError, match="at least one example"):
        evaluation_set(RunSubject(finished), 0, 0)


def test_draw_and_compare_need_no_model(finished, monkeypatch, capsys, tmp_path):
    commands.compute(commands.Curve(run=str(finished.folder), points=4))
    monkeypatch.setattr(Run, "open", None)
    cli.landscape(["draw", str(finished.folder)])
    figures = {p.name for p in (finished.folder / "figures").iterdir()}
    assert {"curve.png", "curve.svg", "learning.png", "learning.svg"} <= figures
    assert "figure" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.landscape(["compare", str(finished.folder), "--out", str(tmp_path)])


# -- wrong input -------------------------------------------------------------------------------------------------------


def damage(kind: str, folder: Path, checkpoint: Path, rows: Path) -> list[str]:
    """Makes one thing wrong; returns the command line's overrides."""
    import shutil

    model, data = folder / "model", folder / "rows.tsv"
    shutil.copytree(checkpoint, model)
    shutil.copy(rows, data)
    text = data.read_text()
    more = []
    if kind == "missing file":
        data.unlink()
    elif kind == "missing column":
        data.write_text(text.replace("text\tlabel", "sentence\tlabel", 1))
    elif kind == "unknown label":
        more = ["--data.labels", "pos", "neg"]
    elif kind == "empty file":
        data.write_text("")
    elif kind == "wrong encoding":
        data.write_bytes(text.encode() + b"caf\xe9\tpos\n")
    elif kind == "one label only":
        data.write_text("text\tlabel\n" + "".join(f"good {i}\tpos\n" for i in range(30)))
    elif kind == "other architecture":
        values = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(values | {"model_type": "distilbert"}))
    elif kind == "truncated weights":
        file = model / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
    elif kind == "no weights":
        (model / "model.safetensors").unlink()
    elif kind == "no tokenizer":
        for file in ("tokenizer.json", "vocab.txt"):
            (model / file).unlink(missing_ok=True)
    elif kind == "too long":
        more = ["--data.max_length=25"]
    elif kind == "batch size":
        more = ["--train.batch_size=12"]
    elif kind == "mesh":
        more = ["--mesh.fsdp=3"]
    elif kind == "no steps":
        more = ["--train.steps=0"]
    elif kind == "fusion":
        more = ["--model.fusion=nome"]
    return [f"--model.path={model}", f"--data.train={data}", *more]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing file", "rows.tsv"),
        ("missing column", "'text'.*sentence"),
        ("unknown label", r"rows.tsv:\d+.*'mid'"),
        ("empty file", "empty"),
        ("wrong encoding", r"rows.tsv:68.*data.encoding"),
        ("one label only", "label"),
        ("other architecture", "distilbert"),
        ("truncated weights", "model.safetensors"),
        ("no weights", "model.safetensors does not exist"),
        ("no tokenizer", "tokenizer"),
        ("too long", "25.*24"),
        ("batch size", "multiple of 8"),
        ("mesh", "devices"),
        ("no steps", "at least 1"),
        ("fusion", "did you mean 'none'"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_no_run(
    kind, message, tmp_path, checkpoint, rows, make_config, capsys, monkeypatch
):
    file = tmp_path / "config.py"
    file.write_text(
        "from bertjax.config import *\nfrom pathlib import Path\n\n\ndef config():\n"
        f"    return from_json(RunConfig, Path({str(tmp_path / 'config.json')!r}))\n"
    )
    (tmp_path / "config.json").write_text(to_json(make_config("wrong", runs=str(tmp_path / "runs"))))
    with pytest.raises(SystemExit) as stop:
        cli.train([str(file), *damage(kind, tmp_path, checkpoint, rows)])
    captured = capsys.readouterr()
    assert stop.value.code == 2
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1, captured.err
    import re

    assert re.search(message, captured.err), captured.err
    assert not (tmp_path / "runs").exists()


def test_labels_that_do_not_fit_the_model_are_refused(finished, rows):
    from bertjax.data.features import load_splits
    from bertjax.weights import load_tokenizer

    with pytest.raises(InputError, match="label"):
        load_splits(
            finished.config.data, load_tokenizer(finished.folder / "tokenizer"), positions=24, labels=("a", "b")
        )


def test_command_line_names_the_nearest_option_and_file(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent.parent)
    with pytest.raises(SystemExit) as stop:
        cli.train(["configs/quickstart.py", "--optim.learnin_rate=1"])
    assert stop.value.code == 2 and "--optim.learning_rate" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        cli.train(["configs/quickstar.py"])
    assert stop.value.code == 2 and "did you mean 'configs/quickstart.py'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        cli.train(["configs/quickstart.py:elsewhere"])
    assert stop.value.code == 2 and ":scratch" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        cli.train(["--help"])
    shown = capsys.readouterr().out
    assert stop.value.code == 0
    for section in ("model", "data", "optim", "train", "mesh"):
        for field in dataclasses.fields(getattr(RunConfig(), section)):
            assert f"--{section}.{field.name}" in shown, field.name


def test_every_field_of_the_configuration_is_documented():
    import inspect

    from bertjax import config as module

    for cls in (ModelOptions, DataOptions, OptimOptions, TrainOptions, module.MeshOptions):
        lines = inspect.getsource(cls).splitlines()
        for field in dataclasses.fields(cls):
            where = next(i for i, line in enumerate(lines) if line.strip().startswith(f"{field.name}:"))
            assert lines[where + 1].strip().startswith('"""'), f"{cls.__name__}.{field.name}"


def test_every_field_of_the_configuration_is_read():
    """An option that nothing reads would be accepted and ignored."""
    import re

    from bertjax import config as module

    folder = Path(module.__file__).parent
    code = "\n".join(path.read_text() for path in folder.rglob("*.py") if path.name not in ("config.py", "demo.py"))
    for cls in (ModelOptions, DataOptions, OptimOptions, TrainOptions):
        for field in dataclasses.fields(cls):
            assert re.search(rf"\b\w+\.{field.name}\b(?!=)", code), f"{cls.__name__}.{field.name}"


def test_config_round_trip_and_its_errors(tmp_path):
    config = RunConfig(name="x", data=DataOptions(labels=("a", "b"), train_rows=5))
    path = tmp_path / "config.json"
    path.write_text(to_json(config))
    assert from_json(RunConfig, path) == config
    for text, message in (
        ("{", "not valid JSON"),
        ('{"nam": "x"}', "did you mean 'name'"),
        ('{"train": {"epochs": "three"}}', "train.epochs"),
        ('{"model": {"init": "trained"}}', "model.init"),
        ('{"train": 3}', "expected an object"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            from_json(RunConfig, path)
    with pytest.raises(InputError, match="does not exist"):
        from_json(RunConfig, tmp_path / "none.json")
    assert from_dict(RunConfig, {"train": {"epochs": 3}}).train.epochs == 3


@pytest.mark.parametrize("name", ["", ".", "..", "../out", "a/../../b", "/tmp/x"])
@pytest.mark.parametrize("dry", [False, True])
def test_a_name_is_a_folder_below_runs(make_config, name, dry, capsys):
    config = make_config(name=name)
    with pytest.raises(InputError, match=f"--name='{re.escape(name)}': expected the name of a folder below --runs"):
        (dry_run if dry else loop.train)(config)


@pytest.mark.parametrize("depth", [1, 2, 3, 12])
def test_layers_are_in_three_groups_or_fewer(depth):
    groups = [group for group in layer_groups(depth, singles=False) if group.layers and group.name != "all"]
    assert len(groups) == min(3, depth)
    assert [layer for group in groups for layer in group.layers] == list(range(depth))
    with pytest.raises(InputError, match=rf"--groups={depth + 1}: the model has {depth} layers, expected 1 to {depth}"):
        layer_groups(depth, depth + 1)
