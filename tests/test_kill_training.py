"""Training is killed (SIGKILL) at random moments and inside saves; the same command goes on and nothing differs."""

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from tiny import tiny_checkpoint, tiny_tokenizer

from bertjax.config import DataOptions, ModelOptions, OptimOptions, RunConfig, TrainOptions, to_json
from bertjax.run import Run
from bertjax.training.records import read_jsonl

pytestmark = pytest.mark.slow

KILLS = 10
TRAIN = Path(__file__).parent.parent / "train.py"
QUIET = subprocess.DEVNULL
CACHE = Path(tempfile.mkdtemp(prefix="bertjax-kill-"))
atexit.register(shutil.rmtree, CACHE, ignore_errors=True)


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """name -> command line of a training of 60 steps, about 4 s after start-up, one device."""
    folder = tmp_path_factory.mktemp("kill")
    tokenizer = tiny_tokenizer(folder / "model")
    tiny_checkpoint(folder / "model", vocab_size=len(tokenizer), max_position_embeddings=24)
    rng = np.random.default_rng(0)
    lines = [
        f"{' '.join(rng.choice(['the', 'film', 'is', 'a', 'good', 'bad'], rng.integers(2, 9)))} {i}\t{i % 3}"
        for i in range(90)
    ]
    (folder / "rows.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    config = RunConfig(
        runs=str(folder / "runs"),
        model=ModelOptions(path=str(folder / "model")),
        data=DataOptions(
            train=str(folder / "rows.tsv"), dev_rows=30, max_length=24, buckets=(16,), cache=str(folder / "cache")
        ),
        optim=OptimOptions(learning_rate=1e-3),
        train=TrainOptions(steps=60, batch_size=8, eval_batch_size=8, eval_every=4, log_every=3, snapshots=10),
    )
    (folder / "config.json").write_text(to_json(config))
    (folder / "config.py").write_text(
        "from pathlib import Path\nfrom bertjax.config import RunConfig, from_json\n\n\ndef config():\n"
        f"    return from_json(RunConfig, Path({str(folder / 'config.json')!r}))\n"
    )

    def command(name: str, *options: str) -> list[str]:
        return [sys.executable, str(TRAIN), str(folder / "config.py"), f"--name={name}", *options]

    command.runs = folder / "runs"
    return command


def environment(devices: int = 1) -> dict[str, str]:
    """One program for all processes of a device count: compiled once, then read from a cache."""
    cache = {"JAX_COMPILATION_CACHE_DIR": str(CACHE), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    return os.environ | cache | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


@pytest.fixture(scope="module")
def whole(commands):
    """The run that nobody disturbed, and for how many seconds it trained."""
    folder = commands.runs / "whole"
    with subprocess.Popen(commands("whole"), env=environment(), stdout=QUIET, stderr=QUIET) as process:
        while not (folder / "run.json").exists():
            assert process.poll() is None
            time.sleep(0.01)
        begin = time.perf_counter()
    assert process.returncode == 0
    return Run.open(folder), time.perf_counter() - begin


def kill_when(command: list[str], ready) -> bool:
    """Starts the command and kills it as soon as `ready()` is true; False if it ended before."""
    with subprocess.Popen(command, env=environment(), stdout=QUIET, stderr=QUIET) as process:
        while process.poll() is None:
            if ready():
                process.kill()
                break
            time.sleep(0.002)
    assert process.returncode in (0, -signal.SIGKILL)
    return process.returncode != 0


def same(a: Run, b: Run) -> None:
    assert a.info["parameters"] == b.info["parameters"]
    assert a.info["results"] == b.info["results"] and a.info["best_step"] == b.info["best_step"]
    assert (a.folder / "metrics.jsonl").read_bytes() == (b.folder / "metrics.jsonl").read_bytes()
    assert a.snapshot_steps == b.snapshot_steps == sorted(round(6 * i) for i in range(11))


def test_killed_at_random_moments(commands, whole):
    """Ten kills over three runs, each between a run's first file and its last; every run ends like the whole one."""
    reference, seconds = whole
    rng = np.random.default_rng(int(os.environ.get("BERTJAX_KILL_SEED", "0")))
    kills = attempts = 0
    while kills < KILLS:
        attempts += 1
        assert attempts < 30, f"only {kills} of {KILLS} kills hit a running training"
        folder = commands.runs / f"random-{kills // 4}"
        started, delay = [0.0], rng.uniform(0.0, 1.0 if kills % 4 == 0 else 0.7) * seconds

        def ready(folder=folder, started=started, delay=delay) -> bool:
            # A continued run has a checkpoint from the start: wait for its loop, which writes this file anew.
            if not started[0] and (folder / "timing.jsonl").exists():
                started[0] = time.perf_counter()
            return bool(started[0]) and time.perf_counter() > started[0] + delay

        (folder / "timing.jsonl").unlink(missing_ok=True)
        if kill_when(commands(folder.name), ready):
            kills += 1
        else:
            same(Run.open(folder), reference)
            shutil.rmtree(folder)
    for name in ("random-0", "random-1", "random-2"):
        subprocess.run(commands(name), env=environment(), check=True, capture_output=True)
        same(Run.open(commands.runs / name), reference)


@pytest.mark.parametrize("what", ["checkpoints", "snapshots", "config.json", "run.json", "tokenizer"])
def test_killed_inside_a_save(what, commands, whole):
    """Killed the moment a file of this kind begins to appear, three times on the way for saves that come often."""
    folder = commands.runs / f"inside-{what}"
    seen: set[str] = set()

    def appears() -> bool:
        if what in ("checkpoints", "snapshots"):
            fresh = {p.name for p in (folder / what).glob("*tmp*")} - seen if (folder / what).exists() else set()
            seen.update(fresh)
            return bool(fresh) and len(seen) % 3 == 2
        return any(folder.glob(f".{what}.tmp-*")) or (folder / what).exists()

    for _ in range(3 if what in ("checkpoints", "snapshots") else 1):
        assert kill_when(commands(folder.name), appears)
    result = subprocess.run(commands(folder.name), env=environment(), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    same(Run.open(folder), whole[0])
    assert not list(folder.rglob("*tmp*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_says_so(number, commands, whole):
    folder = commands.runs / f"signal-{number}"
    with subprocess.Popen(
        commands(folder.name), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while not (folder / "checkpoints" / "4").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number and "Traceback" not in err
    assert "stopped at step" in out and signal.Signals(number).name in err
    steps = [int(p.name) for p in (folder / "checkpoints").iterdir() if p.name.isdigit()]
    assert f"stopped at step {max(steps)} of 60" in out
    subprocess.run(commands(folder.name), env=environment(), check=True, capture_output=True)
    same(Run.open(folder), whole[0])


def test_a_second_process_on_the_same_run_is_refused(commands, whole):
    folder = commands.runs / "shared"
    with subprocess.Popen(commands("shared"), env=environment(), stdout=QUIET, stderr=QUIET) as first:
        while not (folder / "config.json").exists():
            assert first.poll() is None
            time.sleep(0.01)
        second = subprocess.run(commands("shared"), env=environment(), capture_output=True, text=True)
        running = first.poll() is None
    assert first.returncode == 0
    if running:
        assert second.returncode == 2 and "another process" in second.stderr and second.stderr.count("\n") == 1
    else:
        assert second.returncode == 0 and "is done" in second.stdout
    same(Run.open(folder), whole[0])


def test_continued_on_another_number_of_devices(commands, whole):
    folder = commands.runs / "devices"
    assert kill_when(commands("devices"), lambda: (folder / "checkpoints" / "28").exists())
    with subprocess.Popen(commands("devices"), env=environment(8), stdout=QUIET, stderr=QUIET) as process:
        while not (folder / "checkpoints" / "44").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    subprocess.run(commands("devices"), env=environment(4), check=True, capture_output=True)
    run = Run.open(folder)
    ours, theirs = (read_jsonl(r.folder / "metrics.jsonl") for r in (run, whole[0]))
    assert [r["step"] for r in ours] == [r["step"] for r in theirs]
    for a, b in zip(ours, theirs, strict=True):
        for key in ("train/loss", "dev/loss"):
            if key in b:
                assert a[key] == pytest.approx(b[key], abs=1e-5), (b["step"], key)
    assert json.loads((folder / "run.json").read_text())["status"] == "done"
