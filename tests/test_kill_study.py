"""A study is killed (SIGKILL) twice; the same command goes on, and its tables have the same bytes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tiny import tiny_checkpoint, tiny_tokenizer

from bertjax.config import DataOptions, ModelOptions, OptimOptions, RunConfig, TrainOptions, to_json

pytestmark = pytest.mark.slow

TRAIN = Path(__file__).parent.parent / "train.py"
QUIET = subprocess.DEVNULL
TABLES = ("study.csv", "summary.csv")
MODES = {
    "alone": ["--study.axis", "optim.learning_rate=0.001,1e38,0.0", "--study.seeds=2"],
    "together": ["--study.axis", "model.init=pretrained,random", "--study.seeds=3", "--study.vectorize=seeds"],
}
# How many runs have come to step 20 of 40 when the study is killed: in the first ones, and when some have ended.
KILLED_AT = {"alone": (1, 3), "together": (1, 4)}


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """(name, options) -> command line of a study whose runs take some moments each."""
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
            train=str(folder / "rows.tsv"), dev_rows=30, max_length=24, buckets=(), cache=str(folder / "cache")
        ),
        optim=OptimOptions(learning_rate=1e-3, clip_norm=0),
        train=TrainOptions(steps=40, batch_size=8, eval_batch_size=8, eval_every=4, log_every=3, snapshots=4),
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


def environment(cache: Path) -> dict[str, str]:
    """One device; programs are compiled once for all processes."""
    settings = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    flags = "--xla_force_host_platform_device_count=1 --xla_backend_optimization_level=0"
    return os.environ | settings | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


@pytest.mark.parametrize("mode", MODES)
def test_killed_twice_the_tables_have_the_same_bytes(mode, commands, tmp_path):
    env = environment(tmp_path / "xla")
    whole, killed = commands.runs / f"{mode}-whole", commands.runs / f"{mode}-killed"
    for folder in (whole, killed):  # the choice is measured: here it has to be the same for both
        for name in ("init=pretrained", "init=random") if mode == "together" else ():
            (folder / name).mkdir(parents=True)
            (folder / name / "vectorize.json").write_text(json.dumps({"together": True}))
    subprocess.run(commands(whole.name, *MODES[mode]), env=env, check=True, capture_output=True)
    command = commands(killed.name, *MODES[mode])
    for count in KILLED_AT[mode]:
        with subprocess.Popen(command, env=env, stdout=QUIET, stderr=QUIET) as process:
            while len(list(killed.glob("*/seed-*/snapshots/20"))) < count and process.poll() is None:
                time.sleep(0.005)
            process.kill()
        assert process.returncode == -signal.SIGKILL and not (killed / "study.csv").exists()
    subprocess.run(command, env=env, check=True, capture_output=True)
    for name in TABLES:
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name
    if mode == "alone":
        assert (whole / "study.csv").read_text().count(",diverged,") == 2
    assert not list(killed.rglob("*tmp*"))


def test_jobs_at_the_same_time_write_one_table(commands, tmp_path):
    env, options = environment(tmp_path / "xla"), MODES["alone"]
    subprocess.run(commands("one", *options), env=env, check=True, capture_output=True)
    jobs = [
        subprocess.Popen(
            commands("two", *options, "--study.jobs=2", f"--study.job={job}"), env=env, stdout=QUIET, stderr=QUIET
        )
        for job in range(2)
    ]
    assert [process.wait() for process in jobs] == [0, 0]
    for name in TABLES:
        assert (commands.runs / "two" / name).read_bytes() == (commands.runs / "one" / name).read_bytes()
