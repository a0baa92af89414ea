"""kill -9 at any moment of a grid, also inside a write; the same command continues to the bits of the whole."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny import tiny_checkpoint, tiny_tokenizer

from bertjax.landscape.store import read_netcdf

KILLS = 10


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two tiny models from one encoder, and rows."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = tiny_tokenizer(folder / "start")
    for name, seed, outputs in (("start", 0, None), ("end", 1, 2)):
        tiny_checkpoint(folder / name, seed, outputs, vocab_size=len(tokenizer), max_position_embeddings=24)
    rows = [f"the film is {'good' if i % 2 else 'dull'} {i}\t{i % 2}" for i in range(60)]
    (folder / "rows.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    return folder


COMPUTE = """
from sys import argv
from bertjax.landscape.commands import Surface, compute
from bertjax.landscape.folders import Elsewhere
models, out = argv[1:]
given = {name: f"{models}/{name}" for name in ("start", "end")}
rows = Elsewhere(**given, data=f"{models}/rows.tsv", tokenizer=f"{models}/start", out=out)
compute(Surface(checkpoints=rows, points=133, beta_points=3, block=8, points_per_step=1))
"""


def start(models: Path, out: Path) -> subprocess.Popen:
    """A surface of 3 x 133 points in blocks of 8, on one device."""
    return subprocess.Popen(
        [sys.executable, "-c", COMPUTE, models, out],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "HOME": str(models)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen) -> str:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return output


def chunks(out: Path) -> list[str]:
    """Files of the store, finished or half written; it may vanish meanwhile."""
    return [name for _, _, files in os.walk(out / "landscape" / "surface.zarr") for name in files]


def kill_while_it_writes(process: subprocess.Popen, out: Path, more: int, inside: bool) -> bool:
    """Kills after so many more files, inside a write if asked for and one is seen; whether it was killed in time."""
    wanted = len(chunks(out)) + more
    while process.poll() is None:
        found = chunks(out)
        if len(found) >= wanted and (not inside or any(name.endswith(".partial") for name in found)):
            break
    process.kill()
    process.communicate()
    return process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_a_surface_killed_at_ten_moments_is_bit_for_bit_the_whole_one(models, tmp_path):
    finish(start(models, tmp_path / "whole"))
    whole = read_netcdf(tmp_path / "whole" / "landscape" / "surface.nc")
    draw, kills, runs, half_written = random.Random(0), 0, 0, 0
    while kills < KILLS:
        out = tmp_path / f"cut{runs}"
        runs += 1
        assert runs <= KILLS, "the process was never killed in time"
        for number in range(5):
            more = draw.choice([1, 2, 5, 9, 14])
            kills += kill_while_it_writes(start(models, out), out, more, inside=number % 2 == 1)
            half_written += any(out.rglob("*.partial"))
        finish(start(models, out))
        again = read_netcdf(out / "landscape" / "surface.nc")
        for name in whole.variables:
            np.testing.assert_array_equal(whole[name], again[name], err_msg=f"{name}, run {runs}")
        # Nothing is left of the processes that were killed.
        left = {path.name for path in (out / "landscape").iterdir()}
        assert left == {"surface.nc", ".surface.lock"}, left
    print(f"{kills} kills in {runs} runs, {half_written} inside a write")
