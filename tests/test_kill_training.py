"""Training is killed (SIGKILL) at random moments and inside saves; the same command goes on and nothing differs."""

import json
import os
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
CACHE = Path(tempfile.mkdtemp(prefix="bertjax-kill-"))


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
    """The run that nobody disturbed, and how long its loop took."""
    begin = time.perf_counter()
    subprocess.run(commands("whole"), env=environment(), check=True, capture_output=True)
    seconds = time.perf_counter() - begin
    return Run.open(commands.runs / "whole"), seconds


def kill_when(command: list[str], ready) -> bool:
    """Starts the command and kills it as soon as `ready()` is true; False if it ended before."""
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None:
        if ready():
            process.send_signal(signal.SIGKILL)
            process.communicate()
            return process.returncode == -signal.SIGKILL
        time.sleep(0.002)
    assert process.returncode == 0, process.stderr.read().decode()
    return False


def same(a: Run, b: Run) -> None:
    assert a.info["parameters"] == b.info["parameters"]
    assert a.info["results"] == b.info["results"] and a.info["best_step"] == b.info["best_step"]
    assert (a.folder / "metrics.jsonl").read_bytes() == (b.folder / "metrics.jsonl").read_bytes()
    assert a.snapshot_steps == b.snapshot_steps == sorted(round(6 * i) for i in range(11))


def test_killed_at_random_moments(commands, whole):
    reference, seconds = whole
    rng = np.random.default_rng(int(os.environ.get("BERTJAX_KILL_SEED", "0")))
    kills, attempt = 0, 0
    while kills < KILLS:
        attempt += 1
        assert attempt < 40, f"only {kills} of {KILLS} kills hit a running training"
        name = f"random-{kills // 4}"  # some runs are killed several times
        moment = time.perf_counter() + rng.uniform(0.35, 1.0) * seconds
        if kill_when(commands(name), lambda moment=moment: time.perf_counter() > moment):
            kills += 1
        elif (commands.runs / name).exists():
            same(Run.open(commands.runs / name), reference)
            subprocess.run(["rm", "-r", str(commands.runs / name)], check=True)
    for name in sorted(path.name for path in commands.runs.glob("random-*")):
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
    process = subprocess.Popen(
        commands(folder.name), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
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
    first = subprocess.Popen(commands("shared"), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while not (folder / "config.json").exists():
        assert first.poll() is None
        time.sleep(0.01)
    second = subprocess.run(commands("shared"), env=environment(), capture_output=True, text=True)
    running = first.poll() is None
    assert first.wait(timeout=120) == 0
    if running:
        assert second.returncode == 2 and "another process" in second.stderr and second.stderr.count("\n") == 1
    else:
        assert second.returncode == 0 and "is done" in second.stdout
    same(Run.open(folder), whole[0])


def test_continued_on_another_number_of_devices(commands, whole):
    folder = commands.runs / "devices"
    assert kill_when(commands("devices"), lambda: (folder / "checkpoints" / "28").exists())
    for devices, stop in ((8, "44"), (4, None)):
        command = commands("devices")
        if stop:
            process = subprocess.Popen(
                command, env=environment(devices), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            while not (folder / "checkpoints" / stop).exists():
                assert process.poll() is None
                time.sleep(0.01)
            process.kill()
            process.wait()
        else:
            subprocess.run(command, env=environment(devices), check=True, capture_output=True)
    run = Run.open(folder)
    ours, theirs = (read_jsonl(r.folder / "metrics.jsonl") for r in (run, whole[0]))
    assert [r["step"] for r in ours] == [r["step"] for r in theirs]
    for a, b in zip(ours, theirs, strict=True):
        for key in ("train/loss", "dev/loss"):
            if key in b:
                assert a[key] == pytest.approx(b[key], abs=1e-5), (b["step"], key)
    assert json.loads((folder / "run.json").read_text())["status"] == "done"
