"""Rows with any number of classes, and weights of classes in the training loss."""

import csv
import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny import tiny_checkpoint, tiny_tokenizer

from bertjax import predict
from bertjax.config import DataOptions, ModelOptions, OptimOptions, RunConfig, TrainOptions
from bertjax.data.features import load_splits
from bertjax.data.rows import read_rows
from bertjax.data.tasks import TASKS
from bertjax.errors import InputError
from bertjax.landscape import commands
from bertjax.landscape.store import read_netcdf
from bertjax.metrics import METRICS
from bertjax.model.heads import HEADS
from bertjax.report import draw
from bertjax.report.page import write_page
from bertjax.training import loop
from bertjax.training.job import prepare

CLASSES = ("bad", "good", "red")


def row(i):
    names = [name for bit, name in enumerate(CLASSES) if i >> bit & 1]
    return f"the film {' '.join(names)} {i}", names


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    tokenizer = tiny_tokenizer(folder / "model")
    tiny_checkpoint(folder / "model", vocab_size=len(tokenizer), num_hidden_layers=1, max_position_embeddings=24)
    rows = [row(i % 8) for i in range(64)]
    lines = [json.dumps({"text": f"{text} {i}", "labels": names}) for i, (text, names) in enumerate(rows)]
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "dev.jsonl").write_text("\n".join(lines[:24]) + "\n")
    return folder


def config(folder, name, **data):
    given = {"train": str(folder / "train.jsonl"), "dev": str(folder / "dev.jsonl"), "task": "multilabel"}
    return RunConfig(
        name=name,
        runs=str(folder / "runs"),
        model=ModelOptions(path=str(folder / "model")),
        data=DataOptions(**given | {"max_length": 24, "buckets": (), "cache": ""} | data),
        optim=OptimOptions(learning_rate=1e-2),
        train=TrainOptions(steps=40, batch_size=16, eval_batch_size=8, snapshots=1),
    )


@pytest.fixture(scope="module")
def run(folder):
    return loop.train(config(folder, "several"))


def test_every_form_of_a_list_gives_the_same_classes(tmp_path):
    rows = [row(i) for i in range(8)]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": t, "labels": n}) for t, n in rows))
    (tmp_path / "a.json").write_text(json.dumps([{"text": t, "labels": n} for t, n in rows]))
    (tmp_path / "a.tsv").write_text("text\tlabels\n" + "".join(f"{t}\t{', '.join(n)}\n" for t, n in rows))
    (tmp_path / "b.tsv").write_text("text\tlabels\n" + "".join(f"{t}\t{'|'.join(reversed(n))}\n" for t, n in rows))
    pq.write_table(pa.table({"text": [t for t, _ in rows], "labels": [n for _, n in rows]}), tmp_path / "a.parquet")
    for name, separator in (("a.jsonl", ","), ("a.json", ","), ("a.tsv", ","), ("b.tsv", "|"), ("a.parquet", ",")):
        options = DataOptions(task="multilabel", label_separator=separator)
        found = read_rows(str(tmp_path / name), options, TASKS["multilabel"])
        assert found.labels == [tuple(names) for _, names in rows], name


def test_a_run_learns_several_classes_and_answers_with_them(run, folder, tmp_path):
    assert run.labels == CLASSES and run.head == "multilabel" and "majority" not in run.info
    assert run.info["label_counts"]["train"] == dict.fromkeys(CLASSES, 32)
    scores = run.info["results"]["dev"]
    assert scores["f1_micro"] > 0.9 and scores["exact"] > 0.7
    assert predict.evaluate(predict.Evaluate(run=str(run.folder), file=str(folder / "dev.jsonl"))) == pytest.approx(
        scores, abs=1e-5
    )
    out = predict.predict(
        predict.Predict(run=str(run.folder), file=str(folder / "dev.jsonl"), out=str(tmp_path / "a.csv"))
    )
    rows = list(csv.DictReader(out.read_text().splitlines()))
    wanted = [row(i % 8)[1] for i in range(24)]
    kept = list(csv.DictReader((run.folder / "predictions/dev.csv").read_text().splitlines()))
    assert [r["row"] for r in kept] == [r["row"] for r in rows]
    assert [r["prediction"].replace("|", ",") for r in kept] == [r["labels"] for r in rows]
    assert np.mean([r["labels"] == ",".join(names) for r, names in zip(rows, wanted, strict=True)]) == scores["exact"]
    for r in rows:
        chosen = [name for name in CLASSES if float(r[f"p({name})"]) > 0.5]
        assert r["labels"] == ",".join(chosen)


def test_landscapes_and_the_page_know_several_classes(run):
    size = {"points": 2, "train_examples": 8, "dev_examples": 8}
    curve = commands.compute(commands.Curve(run=str(run.folder), **size))
    commands.compute(commands.Rollback(run=str(run.folder), groups=1, dev_examples=24, train_examples=0))
    stored = read_netcdf(curve)
    end = stored.sel(alpha=1.0, split="dev")
    assert end["loss"] < stored.sel(alpha=0.0, split="dev")["loss"]
    assert "binary cross entropy" in stored.attrs["loss_name"]
    assert draw.draw_run(run.folder) and "f1_micro" in write_page(run.folder).read_text()


def test_loss_and_decisions_are_their_formulas():
    draw_ = np.random.default_rng(0)
    z, y = draw_.normal(size=(7, 5)).astype(np.float32), (draw_.random((7, 5)) < 0.4).astype(np.float32)
    p = 1 / (1 + np.exp(-z.astype(np.float64)))
    expected = -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean(axis=1)
    head = HEADS["multilabel"]
    np.testing.assert_allclose(head.loss(jnp.asarray(z), jnp.asarray(y)), expected, rtol=1e-5)
    assert np.array_equal(head.predict(jnp.asarray(z)), p > 0.5)
    assert np.array_equal(head.error(jnp.asarray(z), jnp.asarray(y)), ((p > 0.5) != y).any(axis=1))
    assert np.isfinite(head.loss(jnp.full((1, 2), 1e4), jnp.zeros((1, 2)))).all()
    hits, chosen = ((p > 0.5) & (y > 0)).sum(), (p > 0.5).sum() + y.sum()
    assert METRICS["f1_micro"](y, (p > 0.5).astype(int)) == pytest.approx(2 * hits / chosen)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"text": "a film"}, "is missing, expected a list"),
        ({"text": "a film", "labels": ["good", None]}, "expected"),
        ({"text": "a film", "labels": [["good"]]}, "expected"),
    ],
)
def test_lists_that_are_none_are_named(line, message, tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "x", "labels": ["good"]}) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(InputError, match=rf"a\.jsonl:2: .*{message}"):
        read_rows(str(tmp_path / "a.jsonl"), DataOptions(task="multilabel"), TASKS["multilabel"])


def test_unknown_classes_are_named(run, tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "x", "labels": ["good", "odd"]}) + "\n")
    with pytest.raises(InputError, match=r"a\.jsonl:1: label 'odd', expected one of the run's: bad, good, red"):
        predict.evaluate(predict.Evaluate(run=str(run.folder), file=str(tmp_path / "a.jsonl")))


def labelled(folder, counts):
    lines = [f"film {name} {i}\t{name}" for name, count in counts.items() for i in range(count)]
    (folder / "uneven.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    return {"train": str(folder / "uneven.tsv"), "dev": str(folder / "uneven.tsv"), "task": "classification"}


def test_class_weights_weigh_the_training_loss_alone(folder):
    data = labelled(folder, {"bad": 24, "good": 8})
    plain = prepare(config(folder, "plain", **data))
    given = prepare(config(folder, "given", class_weights=(1.0, 3.0), **data))
    balanced = prepare(config(folder, "balanced", balanced=True, **data))
    assert plain.splits.train.weights is None and plain.splits.dev.weights is given.splits.dev.weights is None
    for label, weight in ((0, 32 / 2 / 24), (1, 32 / 2 / 8)):
        assert set(balanced.splits.train.weights[balanced.splits.train.labels == label]) == {np.float32(weight)}
    batch = next(given.train_batches())
    assert np.array_equal(batch["weights"], np.where(batch["labels"] == 1, 3.0, 1.0).astype(np.float32))
    # The loss of a step is the weighted mean of what each row loses.
    still = dataclasses.replace(given.config.model, hidden_dropout=0.0, attention_dropout=0.0)
    job = prepare(dataclasses.replace(given.config, model=still))
    batch = {name: value for name, value in next(job.train_batches()).items() if name != "index"}
    loaded = {path: jnp.asarray(value) for path, value in job.loaded.items()}
    state = job.steps.init(jnp.uint32(0), loaded)
    each = np.asarray(job.steps.evaluate(state.params, batch)["loss"])
    loss = float(job.steps.train(state, batch)[1]["loss"])
    assert loss == pytest.approx(float((each * batch["weights"]).sum() / batch["weights"].sum()), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_weights": (1.0,)}, "--data.class_weights=1.0: expected a positive number for each of bad, good"),
        ({"class_weights": (1.0, 0.0)}, "expected a positive number"),
        ({"class_weights": (1.0, float("nan"))}, "expected a positive number"),
        ({"class_weights": (1.0, 2.0), "balanced": True}, "expected one of them"),
        ({"balanced": True, "task": "multilabel"}, "one class a row"),
    ],
)
def test_weights_that_do_not_fit_are_named(options, message, folder):
    data = labelled(folder, {"bad": 6, "good": 2})
    if options.get("task"):
        data = {"train": str(folder / "train.jsonl"), "dev": ""}
    given = DataOptions(**data | {"max_length": 24, "cache": ""} | options)
    with pytest.raises(InputError, match=message):
        load_splits(given, tiny_tokenizer(folder / "model"), positions=24)
