"""The main job on real data: MiniLM fine-tuned on SST-2. Reads the folder named by BERTJAX_REAL_DATA."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bertjax.baselines import tfidf_baseline
from bertjax.run import Run

REAL = os.environ.get("BERTJAX_REAL_DATA")
ROOT = Path(__file__).parent.parent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not REAL, reason="BERTJAX_REAL_DATA names no folder with real data"),
]


def test_minilm_on_sst2_beats_tfidf(tmp_path):
    """4,000 rows of the training file; TF-IDF with logistic regression on all 67,349 rows reaches 81.0 %."""
    folder = Path(REAL) / "SST-2"
    options = {
        "name": "sst2",
        "runs": tmp_path,
        "data.train": folder / "train.tsv",
        "data.dev": folder / "dev.tsv",
        "data.text": "sentence",
        "data.label": "label",
        "data.train_rows": 4000,
        "data.max_length": 64,
        "data.group_by_length": 16,
        "data.encoding_errors": "strict",
        "optim.learning_rate": 1e-4,
        "train.epochs": 2,
        "train.snapshots": 1,
    }
    # As a user would, on one device: this process has eight and compiles without optimization.
    command = [sys.executable, "train.py", "configs/quickstart.py", *(f"--{k}={v}" for k, v in options.items())]
    command += ["--data.buckets", "16", "32", "48", "--data.dev_rows", "None"]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"XLA_FLAGS": ""})
    run = Run.open(tmp_path / "sst2")
    accuracy, splits = run.info["results"]["dev"]["accuracy"], run.splits
    texts = {name: [text for text, _ in splits.texts(name)] for name in ("train", "dev")}
    tfidf = tfidf_baseline(texts["train"], splits.train.labels, texts["dev"], splits.dev.labels)
    print(f"SST-2 dev accuracy: {accuracy:.4f}; TF-IDF on the same 4,000 rows: {tfidf:.4f}")
    assert run.info["rows"] == {"train": 4000, "dev": 872} and run.info["steps"] == 250
    assert accuracy > 0.81
    assert accuracy > tfidf
