"""Predictions and scores of a run for files: every row once, in order, from any checkpoint, in any chunk size."""

import csv
import json
import math

import numpy as np
import pyarrow.parquet as pq
import pytest
from tiny import tiny_checkpoint, tiny_tokenizer

from bertjax import answers, cli, predict
from bertjax.config import DataOptions, ModelOptions, OptimOptions, RunConfig, TrainOptions
from bertjax.errors import InputError
from bertjax.predict import Evaluate, Predict
from bertjax.report import draw
from bertjax.report.page import write_page
from bertjax.training import loop

LABELS = ("bad", "good", "dull, very")


def write_rows(path, count, seed, label=True):
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"] if label else ["text"])
        for i in range(count):
            name = LABELS[i % 3]
            text = f"{' '.join(rng.choice(['the', 'film', 'is', 'a'], rng.integers(1, 12)))} {name} {i}"
            writer.writerow([text, name] if label else [text])
    return path


@pytest.fixture(scope="module")
def make_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predict")
    tokenizer = tiny_tokenizer(folder / "model")
    tiny_checkpoint(folder / "model", vocab_size=len(tokenizer), num_hidden_layers=1, max_position_embeddings=24)

    def make(name, **data):
        given = {
            "train": str(write_rows(folder / "train.csv", 60, 0)),
            "dev": str(write_rows(folder / "dev.csv", 37, 1)),
        }
        options = given | {"max_length": 24, "buckets": (12,), "cache": ""} | data
        return loop.train(
            RunConfig(
                name=name,
                runs=str(folder / "runs"),
                model=ModelOptions(path=str(folder / "model")),
                data=DataOptions(**options),
                optim=OptimOptions(learning_rate=3e-3),
                train=TrainOptions(steps=8, batch_size=8, eval_batch_size=8, eval_every=2, snapshots=1),
            )
        )

    return make


@pytest.fixture(scope="module")
def run(make_run):
    return make_run("classes")


def read_csv(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_evaluation_of_the_dev_file_is_the_runs_own(run):
    scores = predict.evaluate(Evaluate(run=str(run.folder), file=run.config.data.dev, batch_size=16))
    assert scores == pytest.approx(run.info["results"]["dev"], abs=1e-6)
    (file,) = (run.folder / "predictions").glob("dev-??????-last.json")
    stored = json.loads(file.read_text())
    assert stored["rows"] == 37 and stored["step"] == 8 and stored["scores"] == scores
    records = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    for which, step in (("best", run.info["best_step"]), ("6", 6), ("0", 0)):
        scores = predict.evaluate(Evaluate(run=str(run.folder), file=run.config.data.dev, checkpoint=which))
        expected = next(r for r in records if r["step"] == step and "dev/loss" in r)
        assert scores == pytest.approx({name: expected[f"dev/{name}"] for name in scores}, abs=1e-6), which


def test_predictions_are_in_order_for_every_chunk_size_and_form(run, tmp_path, monkeypatch):
    file = write_rows(tmp_path / "new.csv", 53, 2, label=False)
    options = {"run": str(run.folder), "file": str(file), "batch_size": 8}
    rows = read_csv(predict.predict(Predict(out=str(tmp_path / "a.csv"), with_text=True, **options)))
    assert [int(r["row"]) for r in rows] == list(range(2, 55))
    assert [r["text"] for r in rows] == [r["text"] for r in read_csv(file)]
    for r in rows:
        shares = {name: float(r[f"p({name})"]) for name in run.labels}
        assert sum(shares.values()) == pytest.approx(1, abs=1e-6)
        assert r["label"] == max(shares, key=shares.get) and float(r["score"]) == max(shares.values())
    monkeypatch.setattr(answers, "CHUNK", 7)
    table = pq.read_table(predict.predict(Predict(out=str(tmp_path / "b.parquet"), **options))).to_pydict()
    assert table["row"] == [int(r["row"]) for r in rows] and table["label"] == [r["label"] for r in rows]
    np.testing.assert_allclose(table["score"], [float(r["score"]) for r in rows], atol=1e-6)
    one = predict.evaluate(Evaluate(run=str(run.folder), file=run.config.data.dev))
    assert one == pytest.approx(run.info["results"]["dev"], abs=1e-6)


def test_unusable_rows_and_labels_are_named_or_left_out(run, tmp_path, capsys):
    file = tmp_path / "rows.csv"
    file.write_text("text,label\nthe film,good\n,bad\na film,odd\n")
    with pytest.raises(InputError, match=r"rows.csv:3.*empty"):
        predict.predict(Predict(run=str(run.folder), file=str(file)))
    assert not list((run.folder / "predictions").glob("rows-*"))
    assert not list((run.folder / "predictions").glob(".*"))
    rows = read_csv(predict.predict(Predict(run=str(run.folder), file=str(file), on_bad_row="skip")))
    assert [r["row"] for r in rows] == ["2", "4"] and "1 left out" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"rows.csv:3.*--on_bad_row=skip"):
        predict.evaluate(Evaluate(run=str(run.folder), file=str(file)))
    scores = predict.evaluate(Evaluate(run=str(run.folder), file=str(file), on_bad_row="skip"))
    assert "1 rows; 2 left out, the first" in capsys.readouterr().out and math.isfinite(scores["loss"])
    file.write_text("text,label\nthe film,good\na film,odd\n")
    with pytest.raises(InputError, match=r"rows.csv:3: label 'odd', expected one of"):
        predict.evaluate(Evaluate(run=str(run.folder), file=str(file)))
    file.write_text("text,label\n")
    with pytest.raises(InputError, match=r"rows.csv"):
        predict.predict(Predict(run=str(run.folder), file=str(file)))


def test_what_is_not_there_is_named(run, tmp_path, capsys):
    good = {"run": str(run.folder), "file": run.config.data.dev}
    for changes, message in (
        ({"run": str(tmp_path)}, "is not a run"),
        ({"file": str(tmp_path / "none.csv")}, "none.csv"),
        ({"checkpoint": "5"}, r"--checkpoint 5: .* expected last, best or a step of 0, .*8"),
        ({"checkpoint": "bset"}, "expected last, best"),
        ({"text": "txt"}, "'txt'"),
        ({"out": str(tmp_path / "x.txt")}, r"\.csv or \.tsv or \.parquet"),
        ({"batch_size": 9}, "multiple of 8"),
        ({"out": run.config.data.dev}, "is the file that is read"),
    ):
        with pytest.raises(InputError, match=message):
            predict.predict(Predict(**good | changes))
    with pytest.raises(SystemExit) as stop:
        cli.train(["predict", str(tmp_path), "x.csv"])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.count("\n") == 1 and "is not a run" in error


def test_predictions_of_a_run_under_way(make_run, monkeypatch, tmp_path):
    save = loop.Checkpoints.save

    def stop(self, step, *rest):
        save(self, step, *rest)
        if step == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(loop.Checkpoints, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        make_run("stopped")
    monkeypatch.undo()
    folder = make_run("classes").folder.parent / "stopped"
    file = write_rows(tmp_path / "new.csv", 5, 2, label=False)
    assert len(read_csv(predict.predict(Predict(run=str(folder), file=str(file))))) == 5
    with pytest.raises(InputError, match="best is known when training is done"):
        predict.predict(Predict(run=str(folder), file=str(file), checkpoint="best"))


def test_scores_of_a_regression_on_pairs(make_run, tmp_path):
    file = tmp_path / "pairs.tsv"
    lines = [f"good {i}\tfilm {i % 7}\t{i / 10:.1f}" for i in range(30)]
    file.write_text("a\tb\ty\n" + "\n".join(lines) + "\n")
    options = {"task": "regression", "train": str(file), "dev": str(file), "text": "a", "text_pair": "b", "label": "y"}
    run = make_run("scores", **options)
    rows = read_csv(predict.predict(Predict(run=str(run.folder), file=str(file), with_text=True)))
    assert list(rows[0]) == ["row", "score", "text", "text_pair"]
    scores = predict.evaluate(Evaluate(run=str(run.folder), file=str(file)))
    expected = run.info["results"]["dev"]
    assert scores["loss"] == pytest.approx(expected["loss"], abs=1e-6)
    # The predictions are nearly constant: the last digits of other batches show in a correlation.
    assert scores == pytest.approx(expected, abs=1e-4)
    mse = np.mean([(float(r["score"]) - i / 10) ** 2 for i, r in enumerate(rows)])
    assert mse == pytest.approx(scores["mse"], rel=1e-5)


def test_files_of_one_name_have_results_of_their_own(run, tmp_path):
    names = ("new.v1.csv", "new.v2.csv", "a/new.csv", "b/new.csv", "new.tsv", "b/../new.csv")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for name in names:
        (tmp_path / name).write_text("text\nthe film\n")
    outs = [predict.predict(Predict(run=str(run.folder), file=str(tmp_path / name))) for name in names]
    assert len(set(outs)) == len(names) and all(out.exists() for out in outs)
    again = predict.predict(Predict(run=str(run.folder), file=str(tmp_path / names[0]), checkpoint="0"))
    assert again not in outs  # another checkpoint


def test_messages_name_the_options_that_the_command_has(run, tmp_path):
    (tmp_path / "latin.csv").write_bytes("text\nna\xefve\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin.csv:2.*--encoding=latin-1.*--encoding_errors=replace") as caught:
        predict.predict(Predict(run=str(run.folder), file=str(tmp_path / "latin.csv")))
    assert "--data." not in str(caught.value)
    out = predict.predict(Predict(run=str(run.folder), file=str(tmp_path / "latin.csv"), encoding="latin-1"))
    assert len(read_csv(out)) == 1
    (tmp_path / "bare.csv").write_text("the film\n")
    with pytest.raises(InputError, match=r"no column 'text' \(--text\).*--columns"):
        predict.predict(Predict(run=str(run.folder), file=str(tmp_path / "bare.csv")))
    assert (
        len(read_csv(predict.predict(Predict(run=str(run.folder), file=str(tmp_path / "bare.csv"), columns=("text",)))))
        == 1
    )


def test_scores_that_are_no_numbers_are_null_in_json(make_run, tmp_path):
    for name in ("train", "dev"):
        (tmp_path / f"{name}.csv").write_text("text,label\n" + "the film,1.5\na film,1.5\n" * 20)
    run = make_run("constant", task="regression", train=str(tmp_path / "train.csv"), dev=str(tmp_path / "dev.csv"))

    def refuse(constant):
        raise AssertionError(constant)

    predict.evaluate(Evaluate(run=str(run.folder), file=str(tmp_path / "dev.csv"), out=str(tmp_path / "scores.json")))
    for file in (run.folder / "run.json", tmp_path / "scores.json"):
        text = file.read_text()
        assert '"pearson": null' in text and json.loads(text, parse_constant=refuse)
    for line in (run.folder / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    assert draw.draw_run(run.folder) and "not finite" in write_page(run.folder).read_text()
