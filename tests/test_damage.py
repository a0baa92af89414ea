"""Damaged, unwritable and crowded run folders, losses that are not finite: one clear line, nothing whole is lost."""

import dataclasses
import json
import math
import shutil
import subprocess
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import tiny_checkpoint, tiny_tokenizer

from bertjax import cli, locks
from bertjax.config import (
    DataOptions,
    MeshOptions,
    ModelOptions,
    OptimOptions,
    RunConfig,
    TrainOptions,
    load_config,
    to_json,
)
from bertjax.errors import DivergedError, InputError
from bertjax.landscape import commands
from bertjax.report import draw
from bertjax.run import Run, tokenizer_hash
from bertjax.training import loop, sharding
from bertjax.training.checkpoint import Checkpoints, Snapshots
from bertjax.training.checksums import changed, checksums
from bertjax.training.job import RANGES, prepare
from bertjax.training.records import read_jsonl

CASES = 50

# Reads that orbax has under way when it meets a damaged file end after its event loop is closed, and say so.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def make_config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damage")
    tokenizer = tiny_tokenizer(folder / "model")
    tiny_checkpoint(folder / "model", vocab_size=len(tokenizer), num_hidden_layers=1, max_position_embeddings=24)
    lines = [f"{('good', 'bad', 'the film')[i % 3]} {i}\t{i % 3}" for i in range(64)]
    (folder / "rows.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")

    def make(runs: Path, **optim) -> RunConfig:
        return RunConfig(
            runs=str(runs),
            model=ModelOptions(path=str(folder / "model")),
            data=DataOptions(train=str(folder / "rows.tsv"), dev_rows=16, max_length=16, buckets=(16,), cache=""),
            optim=OptimOptions(learning_rate=1e-3, **optim),
            train=TrainOptions(steps=9, batch_size=8, eval_batch_size=8, eval_every=3, log_every=2, snapshots=3),
        )

    return make


@pytest.fixture(scope="module")
def finished(make_config, tmp_path_factory):
    return loop.train(make_config(tmp_path_factory.mktemp("whole")))


def read_back(folder: Path, config: RunConfig):
    """The checkpoint that training would continue with: (step, checksums, position in the data), or the error."""
    job = prepare(config)
    iterator = job.train_batches()
    checkpoints = Checkpoints(folder / "checkpoints", "accuracy", True)
    try:
        resumed = checkpoints.resume(job.steps.abstract, iterator)
        return resumed.step, checksums(resumed.state), str(iterator.get_state())
    finally:
        checkpoints.close()


def harm(path: Path, rng: np.random.Generator) -> str:
    data = bytearray(path.read_bytes())
    if rng.random() < 0.4 or not data:
        size = int(rng.integers(0, len(data) + 1)) if rng.random() < 0.7 else 0
        path.write_bytes(data[:size])
        return f"{path.name} cut to {size} of {len(data)} bytes"
    place, bit = int(rng.integers(0, len(data))), int(rng.integers(0, 8))
    data[place] ^= 1 << bit
    path.write_bytes(data)
    return f"{path.name} bit {bit} of byte {place} flipped"


def spoil(folder: Path) -> None:
    """Writes zeros over the second half of every data file: parts of some are never read."""
    for path in folder.rglob("d/*"):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


def test_a_damaged_checkpoint_is_never_continued(finished, make_config, tmp_path, capsys):
    """50 cases: whatever file of the last checkpoint is cut or has a bit flipped, a whole state comes back."""
    config = make_config(finished.folder.parent)
    assert sorted(int(p.name) for p in (finished.folder / "checkpoints").iterdir() if p.name.isdigit())[-2:] == [6, 9]
    copy = tmp_path / "copy"
    shutil.copytree(finished.folder / "checkpoints", copy / "checkpoints")
    good = {9: read_back(copy, config)}
    shutil.rmtree(copy / "checkpoints" / "9")
    good[6] = read_back(copy, config)
    assert good[9][0] == 9 and good[6][0] == 6 and good[9][1:] != good[6][1:]
    rng, noticed = np.random.default_rng(0), 0
    files = sorted(p.relative_to(finished.folder) for p in (finished.folder / "checkpoints" / "9").rglob("*"))
    files = [p for p in files if (finished.folder / p).is_file()]
    capsys.readouterr()
    for case in range(CASES):
        shutil.rmtree(copy)
        shutil.copytree(finished.folder / "checkpoints", copy / "checkpoints")
        what = harm(copy / files[case % len(files)], rng)
        found = read_back(copy, config)
        assert found == good[found[0]], what
        if found[0] == 6:
            noticed += 1
            said = capsys.readouterr().out
            assert "damaged" in said and "checkpoints/9" in said, what
            assert list((copy / "damaged").iterdir()), what
    assert noticed > CASES / 3


def test_training_goes_on_before_a_damaged_checkpoint(finished, make_config, tmp_path, capsys):
    config = make_config(tmp_path)
    shutil.copytree(finished.folder, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    info = run.info | {"status": "training"}
    Run(run.folder, config, info).write()
    (run.folder / "config.json").write_text(to_json(config))
    spoil(run.folder / "checkpoints/9/state")
    again = loop.train(config)
    said = capsys.readouterr().out
    assert "damaged" in said and "resume  at step 6 of 9" in said
    assert again.info["parameters"] == finished.info["parameters"]
    assert (again.folder / "metrics.jsonl").read_bytes() == (finished.folder / "metrics.jsonl").read_bytes()


def test_no_whole_checkpoint_is_an_error_and_keeps_everything(finished, make_config, tmp_path):
    shutil.copytree(finished.folder / "checkpoints", tmp_path / "checkpoints")
    for path in (tmp_path / "checkpoints").rglob("*"):
        if path.is_file() and path.name != "_CHECKPOINT_METADATA" and path.parent.name != "metrics":
            path.write_bytes(path.read_bytes()[:-1])
    before = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
    with pytest.raises(InputError, match=r"no checkpoint can be read.*checkpoints/9.*checkpoints/6"):
        read_back(tmp_path, make_config(finished.folder.parent))
    assert before == sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))


def test_a_damaged_snapshot_is_named(finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "run")
    spoil(tmp_path / "run/snapshots/9/params")
    run = Run.open(tmp_path / "run")
    with pytest.raises(InputError, match="snapshots/9"):
        run.params(9)
    run.params(6)


def test_a_reader_leaves_a_save_under_way_alone(finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "run")
    under_way = tmp_path / "run/snapshots/12.orbax-checkpoint-tmp"
    under_way.mkdir()
    assert Run.open(tmp_path / "run").snapshot_steps == [0, 3, 6, 9] and under_way.exists()
    writer = Snapshots(tmp_path / "run/snapshots", write=True)
    for _ in range(500):  # removed in the background
        if not under_way.exists():
            break
        time.sleep(0.01)
    writer.close()
    assert not under_way.exists()


def test_checksums_find_any_single_bit_and_do_not_depend_on_the_layout():
    rng = np.random.default_rng(0)
    tree = {
        "f": rng.normal(size=(8, 5, 3)).astype(np.float32),
        "b": rng.normal(size=(16, 2)).astype(jnp.bfloat16),
        "i": rng.integers(-9, 9, 8).astype(np.int32),
        "m": rng.random(8) > 0.5,
        "s": np.float32(2.5),
    }
    whole = checksums(jax.tree.map(jnp.asarray, tree))
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = {
        k: jax.device_put(v, jax.NamedSharding(mesh, jax.P("x" if np.ndim(v) else None) if np.ndim(v) else jax.P()))
        for k, v in tree.items()
    }
    assert checksums(spread) == whole
    for name in tree:
        for _ in range(20):
            data = np.array(tree[name], copy=True)
            view = data.reshape(-1).view(np.uint8)
            place = int(rng.integers(0, view.size))
            view[place] ^= np.uint8(1) if name == "m" else np.uint8(1 << rng.integers(0, 8))
            assert changed(whole, checksums(jax.tree.map(jnp.asarray, tree | {name: data}))) == [f"['{name}']"]
    swapped = tree | {"i": tree["i"][::-1].copy()}
    assert changed(whole, checksums(jax.tree.map(jnp.asarray, swapped))) == ["['i']"]


# -- losses that are not finite ----------------------------------------------------------------------------------------


@pytest.fixture
def bad_batches(monkeypatch):
    """Makes the loss of the training batches with these numbers (from 1) infinite or not a number."""

    def spoil(numbers: dict[int, float]) -> None:
        original, count = loop.sharding.put_batch, [0]

        def put(batch, mesh):
            if batch["weights"].shape == (8,) and "seen" not in batch:
                frame_is_training = put.training
                if frame_is_training:
                    count[0] += 1
                    value = numbers.get(count[0])
                    if value is not None:
                        batch = batch | {"weights": batch["weights"] * np.float32(value)}
            return original(batch, mesh)

        put.training = True
        evaluate = loop.evaluate

        def without(*arguments):
            put.training = False
            try:
                return evaluate(*arguments)
            finally:
                put.training = True

        monkeypatch.setattr(loop.sharding, "put_batch", put)
        monkeypatch.setattr(loop, "evaluate", without)

    return spoil


def test_a_loss_that_is_not_finite_stops_the_run(make_config, tmp_path, bad_batches):
    bad_batches({5: np.nan})
    config = make_config(tmp_path)
    with pytest.raises(DivergedError) as error:
        loop.train(config)
    message = str(error.value)
    assert message.startswith("step 5: loss nan, gradient norm nan") and "last good checkpoint: step 3" in message
    rows = message.partition("rows of the batch: ")[2].partition(";")[0].split(", ")
    job = prepare(config)
    batches = job.train_batches()
    fifth = [next(batches) for _ in range(5)][4]
    assert rows == [job.splits.where("train", i) for i in fifth["index"]] and "rows.tsv:" in rows[0]
    records = (tmp_path / "run/metrics.jsonl").read_text()
    assert "nan" not in records.lower() and Run.open(tmp_path / "run").info["status"] == "training"


def test_steps_that_are_not_finite_are_skipped_up_to_the_limit(make_config, tmp_path, bad_batches):
    bad_batches({2: np.nan, 7: np.inf})
    run = loop.train(make_config(tmp_path, max_skipped=2))
    records = read_jsonl(run.folder / "metrics.jsonl")
    skipped = {r["step"]: r["train/skipped"] for r in records if "train/skipped" in r}
    assert skipped[2] == 1 and skipped[6] == 1 and skipped[9] == 2
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(run.params(9)))


def test_one_step_too_many_stops_the_run(make_config, tmp_path, bad_batches):
    bad_batches({2: np.nan, 4: np.nan})
    with pytest.raises(DivergedError, match=r"step 4: .* steps skipped: 2 of 1 allowed"):
        loop.train(make_config(tmp_path, max_skipped=1))


def test_a_skipped_step_leaves_parameters_and_moments_alone(make_config, tmp_path):
    job = prepare(make_config(tmp_path, max_skipped=3))
    state = job.steps.init(jnp.asarray(0, jnp.uint32), {})
    batch = loop.batching.without_index(next(job.train_batches()))
    state, _ = job.steps.train(state, loop.sharding.put_batch(batch, job.mesh))
    before = jax.device_get((state.params, state.opt_state.inner_state))
    spoiled = batch | {"weights": batch["weights"] * np.float32(np.nan)}
    state, values = job.steps.train(state, loop.sharding.put_batch(spoiled, job.mesh))
    assert int(values["skipped"]) == 1 and int(state.step) == 2
    jax.tree.map(np.testing.assert_array_equal, before, jax.device_get((state.params, state.opt_state.inner_state)))


# -- the world around --------------------------------------------------------------------------------------------------


def command_line(config: RunConfig, folder: Path) -> list[str]:
    (folder / "config.json").write_text(to_json(config))
    (folder / "config.py").write_text(
        "from pathlib import Path\nfrom bertjax.config import RunConfig, from_json\n\n\ndef config():\n"
        f"    return from_json(RunConfig, Path({str(folder / 'config.json')!r}))\n"
    )
    return [str(folder / "config.py")]


def one_line(capsys) -> str:
    # A progress bar writes over itself; what stays is its last state.
    err = [line.split("\r")[-1].strip() for line in capsys.readouterr().err.split("\n")]
    err = [line for line in err if line and not line.startswith("train: ")]
    assert len(err) == 1 and err[0].startswith("error: "), err
    return err[0]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("free", [1024, 600, 300, 100, 30])
def test_a_full_disk_is_one_line_and_keeps_what_was_complete(free, small_disk, make_config, tmp_path, capsys, finished):
    (small_disk / "filler").write_bytes(bytes((1024 - free) * 1024))
    config = make_config(small_disk)
    with pytest.raises(SystemExit) as stop:
        cli.train(command_line(config, tmp_path))
    assert stop.value.code == 2 and "No space left" in one_line(capsys)
    steps = [int(p.name) for p in (small_disk / "run/checkpoints").iterdir() if p.name.isdigit()]
    subprocess.run(["mount", "-o", "remount,size=30m", small_disk], check=True)
    again = loop.train(config)
    if steps and max(steps) > 0:
        assert f"resume  at step {max(steps)}" in capsys.readouterr().out
    assert again.info["parameters"] == finished.info["parameters"]
    assert (again.folder / "metrics.jsonl").read_bytes() == (finished.folder / "metrics.jsonl").read_bytes()


def test_a_read_only_folder_is_one_line(small_disk, make_config, tmp_path, capsys):
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(SystemExit) as stop:
        cli.train(command_line(make_config(small_disk), tmp_path))
    message = one_line(capsys)
    assert stop.value.code == 2 and "Read-only file system" in message and str(small_disk) in message


def test_a_run_in_use_is_refused(make_config, tmp_path, capsys):
    config = make_config(tmp_path / "runs")
    with locks.exclusive(config.folder / ".lock", "it"), pytest.raises(SystemExit):
        cli.train(command_line(config, tmp_path))
    assert "another process is working on the run" in one_line(capsys)
    assert [p.name for p in config.folder.iterdir()] == [".lock"]


def test_a_run_that_another_process_finished_meanwhile_is_not_trained_again(make_config, tmp_path, monkeypatch):
    config, original = make_config(tmp_path), loop.prepare

    def slow(c):
        job = original(c)
        monkeypatch.setattr(loop, "prepare", original)
        slow.first = loop.train(c)
        return job

    monkeypatch.setattr(loop, "prepare", slow)
    second = loop.train(config)
    assert second.info == slow.first.info


def test_clock_jumps_change_nothing(make_config, tmp_path, monkeypatch, finished):
    rng, real = np.random.default_rng(0), time.time
    monkeypatch.setattr(time, "time", lambda: real() + float(rng.choice([-1e6, 0, 1e6])))
    run = loop.train(make_config(tmp_path))
    assert run.info["parameters"] == finished.info["parameters"]
    assert (run.folder / "metrics.jsonl").read_bytes() == (finished.folder / "metrics.jsonl").read_bytes()


def test_dry_run_says_what_it_costs_and_writes_nothing(make_config, tmp_path, capsys):
    config = make_config(tmp_path / "runs")
    cli.train([*command_line(config, tmp_path), "--dry-run"])
    said = capsys.readouterr().out
    for wanted in ("9 steps of 8 rows", "48 rows", "most frequent", "truncated", "memory", "disk", "time", "1-16"):
        assert wanted in said, wanted
    assert not (tmp_path / "runs").exists()
    histogram = [line for line in said.splitlines() if "█" in line]
    assert [int(line.split()[1]) for line in histogram] == [48, 16]


@pytest.mark.parametrize(
    ("section", "field", "values"),
    [
        (section, field, values)
        for section, ranges in RANGES.items()
        for field, (low, high) in ranges.items()
        for values in [(low - 1, math.nan, math.inf, *([] if high is None else [high * 1.5 + 1]))]
    ],
)
def test_every_number_out_of_range_is_named(section, field, values, make_config, tmp_path):
    config = make_config(tmp_path / "runs")
    for value in values:
        options = dataclasses.replace(getattr(config, section), **{field: value})
        with pytest.raises(InputError, match=rf"--{section}.{field}={value}: expected"):
            loop.train(dataclasses.replace(config, **{section: options}))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "../outside", "a/../../b", "/tmp/elsewhere"])
def test_a_name_that_leads_out_of_the_folder_of_runs_is_refused(name, make_config, tmp_path):
    with pytest.raises(InputError, match="--name="):
        loop.train(dataclasses.replace(make_config(tmp_path / "runs"), name=name))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig", "ascii"])
def test_a_file_of_another_encoding_is_one_line(encoding, make_config, tmp_path):
    (tmp_path / "rows.tsv").write_text("text\tlabel\n" + "".join(f"gööd {i}\t{i % 2}\n" for i in range(30)), "latin-1")
    config = make_config(tmp_path / "runs")
    data = dataclasses.replace(config.data, train=str(tmp_path / "rows.tsv"), encoding=encoding)
    with pytest.raises(InputError, match=r"rows.tsv:\d+.*encoding"):
        loop.train(dataclasses.replace(config, data=data))


# -- damaged folders of finished runs ----------------------------------------------------------------------------------


def swap_words(path: Path) -> None:
    tokenizer = json.loads(path.read_text())
    words = tokenizer["model"]["vocab"]
    words["good"], words["bad"] = words["bad"], words["good"]
    path.write_text(json.dumps(tokenizer))


DAMAGES = {
    "run.json is a list": ("run.json", lambda path: path.write_text("[]"), "run.json is damaged"),
    "run.json is empty": ("run.json", lambda path: path.write_text(""), "run.json is damaged"),
    "run.json says little": ("run.json", lambda path: path.write_text('{"status": "done"}'), "does not say head"),
    "config.json is cut": ("config.json", lambda path: path.write_text(path.read_text()[:90]), "config.json"),
    "the last snapshot is lost": ("snapshots/9", shutil.rmtree, "has lost step 9"),
    "the first snapshot is lost": ("snapshots/0", shutil.rmtree, "has lost step 0"),
    "a snapshot without description": (
        "snapshots/9/_CHECKPOINT_METADATA",
        lambda path: path.unlink(),
        "snapshots/9 cannot be read",
    ),
    "another tokenizer": ("tokenizer/tokenizer.json", swap_words, "is not the tokenizer"),
    "no tokenizer": ("tokenizer", shutil.rmtree, "has no tokenizer files"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_one_line_and_no_wrong_result(damage, finished, tmp_path, capsys):
    name, harm_it, message = DAMAGES[damage]
    run = tmp_path / "run"
    shutil.copytree(finished.folder, run)
    harm_it(run / name)
    with pytest.raises(SystemExit) as stop:
        cli.landscape(["curve", str(run), "--points", "2", "--train_examples", "4", "--dev_examples", "4"])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and message in error and error.count("error: ") == 1, error
    assert "Traceback" not in error and not list(run.glob("landscape/*.nc"))


@pytest.mark.parametrize(
    "text", [b"\xff\xfe\n", b"5\n", b"[1]\n", b'{"a": 1}\n', b'{"step": 3, "dev/loss": "x", "train/loss": {}}\n']
)
def test_lines_that_are_no_records_spoil_no_picture(text, finished, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(finished.folder, run)
    file = run / "metrics.jsonl"
    file.write_bytes(file.read_bytes() + text)
    cli.landscape(["draw", str(run)])
    cli.landscape(["report", str(run)])
    assert (run / "figures/learning.png").exists() and (run / "report.html").exists()


def copied(finished, make_config, tmp_path, status="training"):
    """A copy of the finished run and its config; with status "training" as if it had been killed at its end."""
    runs = tmp_path / "runs"
    shutil.copytree(finished.folder, runs / finished.folder.name)
    config = make_config(runs)
    folder = config.folder
    (folder / "config.json").write_text(to_json(config))
    info = json.loads((folder / "run.json").read_text()) | {"status": status}
    (folder / "run.json").write_text(json.dumps(info))
    return config


def all_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("what", ["data", "labels", "tokenizer", "steps", "architecture", "no run.json"])
def test_what_a_run_started_with_must_be_there_to_continue(what, finished, make_config, tmp_path, monkeypatch):
    config = copied(finished, make_config, tmp_path)
    rows, model = Path(config.data.train), Path(config.model.path)
    before = {path: path.read_bytes() for path in (rows, *(p for p in model.iterdir() if p.is_file()))}
    message = rf"{config.folder.name} was started with something else \({what}"
    try:
        if what == "data":
            rows.write_text(rows.read_text().replace("good 0", "fine 0"))
        elif what == "labels":
            info = json.loads((config.folder / "run.json").read_text())
            info["labels"] = ["a", "b", "c"]
            (config.folder / "run.json").write_text(json.dumps(info))
        elif what == "tokenizer":
            text = (model / "tokenizer.json").read_text()
            (model / "tokenizer.json").write_text(text.replace('"good"', '"g00d"'))
        elif what == "steps":
            info = json.loads((config.folder / "run.json").read_text())
            (config.folder / "run.json").write_text(json.dumps(info | {"steps": 8}))
        elif what == "architecture":
            text = (model / "config.json").read_text()
            (model / "config.json").write_text(text.replace('"gelu"', '"relu"'))
        else:
            (config.folder / "run.json").unlink()
            message = "has checkpoints .* but no run.json"
        kept = all_bytes(config.folder)
        with pytest.raises(InputError, match=message):
            loop.train(config)
        assert all_bytes(config.folder) == kept
    finally:
        for path, content in before.items():
            path.write_bytes(content)
    if what in ("data", "tokenizer", "architecture"):  # restored: it continues
        assert loop.train(config).info["status"] == "done"


def test_rows_that_changed_after_training_are_not_looked_at(finished, make_config, tmp_path):
    config = copied(finished, make_config, tmp_path, status="done")
    rows = Path(config.data.train)
    before = rows.read_text()
    run = Run.open(config.folder)
    try:
        rows.write_text(before.replace("good 0", "fine 0"))
        with pytest.raises(InputError, match=r"rows\.tsv has changed since"):
            _ = run.splits
        with pytest.raises(InputError, match=r"rows\.tsv has changed since"):
            commands.compute(commands.Curve(run=str(config.folder), points=3, train_examples=4, dev_examples=0))
    finally:
        rows.write_text(before)
    assert not (config.folder / "landscape").exists()


def test_snapshots_of_another_run_are_noticed(finished, make_config, tmp_path):
    config = copied(finished, make_config, tmp_path, status="done")
    info = json.loads((config.folder / "run.json").read_text())
    info["parameters"]["start"] = info["parameters"]["end"]
    (config.folder / "run.json").write_text(json.dumps(info))
    with pytest.raises(InputError, match="0 is not the start of this run"):
        Run.open(config.folder).params(0)


@pytest.mark.parametrize("place", ["middle", "end"])
def test_a_damaged_line_of_metrics_costs_that_line_alone(place, finished, make_config, tmp_path, capsys):
    config = copied(finished, make_config, tmp_path)
    file = config.folder / "metrics.jsonl"
    whole = file.read_text().splitlines()
    number = 2 if place == "middle" else len(whole) - 1
    lines = [*whole[:number], whole[number][:10], *whole[number + 1 :]]
    file.write_text("\n".join(lines))
    loop.train(config)
    said = capsys.readouterr().out
    left = [line for i, line in enumerate(whole) if i != number]
    after = [line for line in file.read_text().splitlines() if line in whole]
    assert set(left) <= set(after)
    assert (f"line {number + 1} cannot be read" in said) == (place == "middle")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "--seed=-1"),
        ({"block": 0}, "--block=0"),
        ({"block": -8}, "--block=-8"),
        ({"points_per_step": -1}, "--points_per_step=-1"),
        ({"alpha": (0.0, math.inf)}, "both finite"),
        ({"alpha": (math.nan, 1.0)}, "both finite"),
        ({"points": 0}, "--points=0"),
        ({"batch_size": 0}, "--batch_size=0"),
        ({"train_examples": -1}, "--train_examples=-1"),
        ({"name": "../../outside"}, "--name="),
        ({"name": "/tmp/outside"}, "--name="),
        ({"name": ".hidden"}, "--name="),
        ({"name": "a/b"}, "--name="),
        ({"name": ".."}, "--name="),
        ({"name": "a\\b"}, "--name="),
    ],
)
def test_options_of_landscapes_out_of_range_are_named(options, message, finished):
    kept = all_bytes(finished.folder)
    given = {"run": str(finished.folder), "train_examples": 4, "dev_examples": 0} | options
    with pytest.raises(InputError, match=message):
        commands.compute(commands.Curve(**given))
    assert all_bytes(finished.folder) == kept


def test_one_damaged_result_does_not_stop_the_drawing_of_others(finished, make_config, tmp_path, capsys):
    config = copied(finished, make_config, tmp_path, status="done")
    good = commands.compute(commands.Curve(run=str(config.folder), points=2, train_examples=4, dev_examples=0))
    (good.parent / "aaa.nc").write_bytes(good.read_bytes()[:-999])
    (good.parent / "bbb.nc").mkdir()
    files = {path.name for path in draw.draw_run(config.folder)}
    said = capsys.readouterr().out
    assert {"curve.png", "learning.png"} <= files and "aaa.nc is not a readable" in said and "bbb.nc is no file" in said


def test_a_tokenizer_that_cuts_otherwise_is_noticed_though_its_words_are_the_same(finished, make_config, tmp_path):
    config = copied(finished, make_config, tmp_path)
    for folder, read in (
        (config.folder / "tokenizer", lambda: Run.open(config.folder).tokenizer),
        (Path(config.model.path), lambda: loop.train(config)),
    ):
        file = folder / "tokenizer_config.json"
        before = file.read_text()
        values = json.loads(before)
        try:
            file.write_text(json.dumps(values | {"do_lower_case": not values["do_lower_case"]}))
            with pytest.raises(InputError, match=r"its files have changed since|something else \(tokenizer"):
                read()
        finally:
            file.write_text(before)
    assert Run.open(config.folder).tokenizer and loop.train(config).info["status"] == "done"


def test_a_saved_tokenizer_is_the_one_it_was(finished):
    assert tokenizer_hash(finished.tokenizer) == finished.info["tokenizer"]


@pytest.mark.parametrize("kind", ["snapshots", "checkpoints"])
def test_steps_that_were_exchanged_are_noticed(kind, finished, make_config, tmp_path):
    config = copied(finished, make_config, tmp_path, status="done")
    root, run = config.folder / kind, Run.open(config.folder)
    first, second = sorted(p.name for p in root.iterdir() if p.name.isdigit())[-2:]
    (root / first).rename(root / "aside")
    (root / second).rename(root / first)
    (root / "aside").rename(root / second)
    shutil.rmtree(config.folder / ("checkpoints" if kind == "snapshots" else "snapshots"))
    (config.folder / "snapshots").mkdir(exist_ok=True)
    mesh = sharding.make_mesh(MeshOptions())
    with pytest.raises(InputError, match=rf"{first} is damaged: it holds step {second}"):
        run.params_at(first, mesh)


def test_a_config_file_may_have_colons_in_its_path(tmp_path):
    (tmp_path / "a:b").mkdir()
    (tmp_path / "a:b/c.py").write_text(
        "from bertjax.config import RunConfig\ndef config(arg='none'):\n    return RunConfig(name=arg)\n"
    )
    file = str(tmp_path / "a:b/c.py")
    assert [load_config(spec).name for spec in (file, f"{file}:x", f"{file}:x:y")] == ["none", "x", "x:y"]
    with pytest.raises(InputError, match=r"config file .*none\.py does not exist"):
        load_config(str(tmp_path / "none.py:x"))
