"""Studies: which runs they are made of, how they are shared out and continued, and what the tables say."""

import csv
import dataclasses
import json
import math
import os
import signal

import numpy as np
import pytest
from tiny import tiny_checkpoint, tiny_tokenizer

from bertjax import cli, locks, stopping
from bertjax.config import DataOptions, ModelOptions, RunConfig, TrainOptions, differences, to_json
from bertjax.errors import InputError
from bertjax.report.study import Group, study_figure
from bertjax.run import Run
from bertjax.study import results, runner
from bertjax.study.options import StudyConfig, StudyOptions, axes, members
from bertjax.study.outcomes import Outcome, outcome
from bertjax.training import loop

AXIS = "optim.learning_rate=0.003,0.0"


@pytest.fixture(scope="module")
def base(tmp_path_factory, one_device):
    """A run of 6 steps, some moments long."""
    folder = tmp_path_factory.mktemp("study")
    tokenizer = tiny_tokenizer(folder / "model")
    tiny_checkpoint(folder / "model", vocab_size=len(tokenizer), num_hidden_layers=2, max_position_embeddings=16)
    rng = np.random.default_rng(0)
    words = ("good great", "bad dull", "red blue")
    lines = [f"{' '.join(rng.choice(words[i % 3].split(), 3))} {i}\t{'abc'[i % 3]}" for i in range(60)]
    (folder / "rows.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    return RunConfig(
        name="study",
        runs=str(folder / "runs"),
        model=ModelOptions(path=str(folder / "model")),
        data=DataOptions(train=str(folder / "rows.tsv"), dev_rows=20, max_length=12, buckets=(), cache=""),
        train=TrainOptions(steps=6, batch_size=8, eval_batch_size=8, eval_every=3, log_every=2, snapshots=1),
    )


def study(base, name="study", **options) -> StudyConfig:
    return dataclasses.replace(StudyConfig.of(base), name=name, study=StudyOptions(**options))


@pytest.fixture(scope="module")
def whole(base):
    """A study of two combinations and two seeds that went through."""
    config = study(base, "whole", seeds=2, axis=(AXIS,))
    runner.run_study(config)
    return config


def table(config, name):
    with (config.folder / name).open() as file:
        return list(csv.DictReader(file))


def test_members_are_the_product_of_values_and_seeds(base):
    axis = ("optim.learning_rate=0.1,1e-3", "model.hidden_dropout=None,0.2")
    found = members(study(dataclasses.replace(base, train=TrainOptions(seed=7)), seeds=3, axis=axis))
    assert [(m.config.optim.learning_rate, m.config.model.hidden_dropout, m.seed) for m in found] == [
        (rate, dropout, seed) for rate in (0.1, 1e-3) for dropout in (None, 0.2) for seed in (7, 8, 9)
    ]
    assert [m.config.train.seed for m in found] == [m.seed for m in found]
    assert all(type(m.config) is RunConfig for m in found)
    assert found[3].config.name == "study/learning_rate=0.1,hidden_dropout=0.2/seed-7"
    assert len({m.config.folder for m in found}) == len(found)


def test_seeds_of_a_combination_differ_in_the_seed_alone(base):
    first, second = members(study(base, seeds=2))
    assert differences(first.config, second.config) == [
        "name: 'study/seed-0' -> 'study/seed-1'",
        "train.seed: 0 -> 1",
    ]


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        ("train.steps=1,2", (1, 2)),
        ("train.steps=None,3", (None, 3)),
        ("optim.clip_norm=0,1e-2", (0.0, 0.01)),
        ("model.remat=false,True", (False, True)),
        ("model.init=pretrained,random", ("pretrained", "random")),
        ("model.cls_norm=none,batch", ("none", "batch")),
        ("data.buckets=(16,32),(64),()", ((16, 32), (64,), ())),
        ("data.train=a.csv,(b.csv,c.csv)", ("a.csv", ("b.csv", "c.csv"))),
    ],
)
def test_values_have_the_type_of_their_option(axis, values):
    (found,) = axes(StudyOptions(axis=(axis,)))
    assert found.values == values and list(map(type, found.values)) == list(map(type, values))


@pytest.mark.parametrize(
    ("axis", "message"),
    [
        (["optim.learningrate=1"], "did you mean 'optim.learning_rate'"),
        (["optim.learning_rate=fast"], "'fast' is no number"),
        (["train.steps=1.5"], "'1.5' is no whole number or None"),
        (["model.init=cold"], "known: pretrained, random"),
        (["model.remat=2"], "'2' is no true or false"),
        (["train.steps"], "expected OPTION=VALUE"),
        (["train.steps=1,1"], "the value 1 is given twice"),
        (["train.steps=1,01"], "1 and 01 are the same value"),
        (["train.steps=1,2", "train.steps=3"], "train.steps is given twice"),
        (["train.seed=1,2"], "seeds are counted"),
        (["name=a,b"], "no such option"),
        (["x=1", "train.steps=a"], "no such option.*'a' is no"),
    ],
)
def test_wrong_axes_are_named(axis, message):
    with pytest.raises(InputError, match=message):
        axes(StudyOptions(axis=tuple(axis)))


@pytest.mark.parametrize(("first", "seeds"), [(0, 0), (2**32 - 1, 2)])
def test_impossible_numbers_of_seeds(base, first, seeds):
    with pytest.raises(InputError, match=r"--study\.seeds"):
        members(study(dataclasses.replace(base, train=TrainOptions(seed=first)), seeds=seeds))


def test_folders_stay_apart_whatever_the_values(base):
    found = members(study(base, axis=("model.path=a/b,a//b,a-b,A b," + "x" * 300,)))
    names = [m.config.folder.parent.name for m in found]
    assert len(set(names)) == 5 and all(len(name) < 150 and "/" not in name for name in names)


def test_a_study_is_plain_runs_and_tables(whole, base):
    runs = members(whole)
    for run in runs:
        opened = Run.open(run.config.folder)
        assert opened.config == run.config and opened.info["status"] == "done"
        assert "study" not in json.loads((run.config.folder / "config.json").read_text())
    rows = table(whole, "study.csv")
    assert [(row["optim.learning_rate"], row["seed"]) for row in rows] == [
        ("0.003", "0"),
        ("0.003", "1"),
        ("0.0", "0"),
        ("0.0", "1"),
    ]
    for row, run in zip(rows, runs, strict=True):
        scores = Run.open(run.config.folder).info["results"]["dev"]
        assert {name: float(row[f"dev/{name}"]) for name in scores} == scores
    assert [float(row["seconds"]) > 0 for row in table(whole, "seconds.csv")] == [True] * 4
    assert [row["warning"][:5] for row in table(whole, "summary.csv")] == ["n < 5"] * 2


def test_a_member_equals_the_run_alone(whole, base):
    run = members(whole)[1].config
    alone = loop.train(dataclasses.replace(run, name="alone"))
    assert alone.info["results"] == Run.open(run.folder).info["results"]
    assert (alone.folder / "metrics.jsonl").read_bytes() == (run.folder / "metrics.jsonl").read_bytes()


def test_the_same_command_again_trains_nothing(whole, monkeypatch):
    before = {path: path.read_bytes() for path in whole.folder.glob("*.csv")}
    monkeypatch.setattr(loop, "train", lambda config: pytest.fail("trained again"))
    runner.run_study(whole)
    assert {path: path.read_bytes() for path in whole.folder.glob("*.csv")} == before


def test_jobs_share_the_runs_out_and_the_last_one_writes_the_table(whole, base, capsys):
    config = study(base, "jobs", seeds=2, axis=(AXIS,), jobs=2)
    runner.run_study(dataclasses.replace(config, study=dataclasses.replace(config.study, job=1)))
    assert [outcome(run) is not None for run in members(config)] == [False, True, False, True]
    assert not (config.folder / "study.csv").exists() and "2 of 4 runs have ended" in capsys.readouterr().out
    runner.run_study(config)
    for name in ("study.csv", "summary.csv"):
        assert (config.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def test_job_numbers(base, monkeypatch):
    with pytest.raises(InputError, match="no task of a Slurm job array"):
        runner.job_numbers(study(base, jobs="slurm"))
    for name, value in zip(runner.SLURM, ("4", "12", "10"), strict=True):
        monkeypatch.setenv(name, value)
    assert runner.job_numbers(study(base, jobs="slurm")) == (4, 2)
    assert runner.job_numbers(study(base)) == (1, 0)
    with pytest.raises(InputError, match=r"--study\.job=3"):
        runner.job_numbers(study(base, jobs=3, job=3))


def test_a_run_in_use_is_passed_over(base, capsys):
    config = study(base, "busy", seeds=2)
    busy = members(config)[0].config.folder
    with locks.exclusive(busy / ".lock", "it"):
        runner.run_study(config)
    out = capsys.readouterr().out
    assert "passed over" in out and "1 of 2 runs have ended" in out and not (config.folder / "study.csv").exists()
    runner.run_study(config)
    assert len(table(config, "study.csv")) == 2


def test_a_run_that_diverges_is_recorded_and_the_study_goes_on(base, capsys, monkeypatch):
    config = study(base, "diverges", axis=("optim.learning_rate=1e38,0.003",))
    runner.run_study(config)
    first, second = table(config, "study.csv")
    assert (first["status"], first["failed"], first["dev/accuracy"]) == ("diverged", "1", "")
    assert first["reason"].startswith("step ") and "rows" not in first["reason"] and second["status"] == "done"
    assert [row["n"] for row in table(config, "summary.csv")] == ["0", "1"]
    monkeypatch.setattr(loop, "train", lambda config: pytest.fail("trained again"))
    runner.run_study(config)


def test_a_run_that_could_not_be_trained_is_tried_again(base, monkeypatch, capsys):
    config = study(base, "error", seeds=2)
    train = loop.train

    def broken(run):
        if run.train.seed == 0:
            raise InputError("the disk is full")
        return train(run)

    monkeypatch.setattr(loop, "train", broken)
    runner.run_study(config)
    assert [row["status"] for row in table(config, "study.csv")] == ["error", "done"]
    assert table(config, "study.csv")[0]["reason"] == "the disk is full"
    monkeypatch.setattr(loop, "train", train)
    runner.run_study(config)
    assert [row["status"] for row in table(config, "study.csv")] == ["done", "done"]


def test_all_configs_are_checked_before_the_first_run(base, tmp_path):
    config = dataclasses.replace(study(base, "wrong", axis=("optim.warmup=0.1,3,4",)), runs=str(tmp_path / "runs"))
    with pytest.raises(InputError, match=r"nothing was trained.*warmup=3.*warmup=4"):
        runner.run_study(config)
    assert not (tmp_path / "runs").exists()


def test_a_study_of_another_config_is_refused(whole, base):
    changed = dataclasses.replace(whole, train=dataclasses.replace(whole.train, steps=7))
    with pytest.raises(InputError, match=r"another config.*train\.steps: 6 -> 7"):
        runner.run_study(changed)
    alone = members(whole)[0].config
    with pytest.raises(InputError, match="is a run, not a study"):
        runner.run_study(StudyConfig.of(alone))


def test_a_signal_stops_the_whole_study_and_the_same_command_continues(base, whole):
    config = study(base, "signal", seeds=2, axis=(AXIS,))
    calls = []

    def signal_in_the_second_run():
        calls.append(1)
        if len(calls) == 14:
            os.kill(os.getpid(), signal.SIGTERM)
        check()

    check, stopping.check = stopping.check, signal_in_the_second_run
    try:
        with pytest.raises(stopping.Interrupted):
            runner.run_study(config)
    finally:
        stopping.check = check
    assert sum(outcome(run) is not None for run in members(config)) < 2
    assert not (config.folder / "study.csv").exists()
    runner.run_study(config)
    for name in ("study.csv", "summary.csv"):
        assert (config.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def test_the_command_line(base, whole, tmp_path, capsys):
    (tmp_path / "base.json").write_text(to_json(dataclasses.replace(base, name="command")))
    file = tmp_path / "config.py"
    file.write_text(
        "from pathlib import Path\nfrom bertjax.config import RunConfig, from_json\n"
        "from bertjax.study.options import StudyConfig, StudyOptions\n\n\ndef config(kind='run'):\n"
        f"    base = from_json(RunConfig, Path({str(tmp_path / 'base.json')!r}))\n"
        "    if kind == 'run':\n        return base\n"
        f"    return StudyConfig(**(vars(base) | {{'study': StudyOptions(seeds=2, axis=({AXIS!r},))}}))\n"
    )
    folder = StudyConfig.of(base).folder.parent / "command"
    cli.train([str(file), "--dry-run", "--study.seeds=2", "--study.axis", AXIS])
    out = capsys.readouterr().out
    assert out.count("to do") == 5 and "for 4 runs like this one" in out and not folder.exists()
    cli.train([f"{file}:study", "--study.seeds=2"])
    assert (folder / "summary.csv").read_bytes() == (whole.folder / "summary.csv").read_bytes()
    with pytest.raises(SystemExit):
        cli.train([str(file), "--study.axis", "train.stps=1"])
    assert "did you mean 'train.steps'" in capsys.readouterr().err


def outcomes(scores, headline="accuracy", majority=0.4):
    """Combination -> scores of its seeds, None for a run that diverged, as a study has them."""
    runs = members(StudyConfig(study=StudyOptions(seeds=6, axis=("optim.learning_rate=1,2",))))
    flat = [score for group in scores for score in group]
    info = {"headline": headline, "majority": majority}
    return {
        run: Outcome("diverged")
        if score is None
        else Outcome("done", info=info | {"results": {"dev": {headline: score}}})
        for run, score in zip(runs, flat, strict=True)
    }


def test_summary_in_closed_form():
    found = outcomes([[0.5, 0.6, 0.7, 0.4, 0.8, None], [0.6, 0.7, 0.8, 0.5, 0.9, 0.9]])
    first, second = results.summary_rows(["optim.learning_rate"], found)
    assert (first["runs"], first["n"], first["failed"], first["pairs"]) == (6, 5, 2, 5)  # 0.4 is the majority baseline
    assert first["mean"] == pytest.approx(0.6) and first["std"] == pytest.approx(math.sqrt(0.1 / 4))
    assert (first["min"], first["max"], first["median"]) == (0.4, 0.8, 0.6)
    assert (first["difference"], first["low"], first["high"], first["warning"]) == (0, 0, 0, "")
    assert second["difference"] == pytest.approx(0.1) and second["low"] == pytest.approx(second["high"])


def test_regression_runs_fail_below_a_correlation_of_a_tenth():
    found = outcomes([[0.05, 0.1, math.nan, 0.5, 0.6, -0.4], [0.5] * 6], "spearman")
    first, second = results.summary_rows(["optim.learning_rate"], found)
    assert (first["n"], first["failed"], second["failed"]) == (5, 3, 0)


def test_the_interval_is_the_same_each_time_and_covers_the_mean():
    differences = np.random.default_rng(1).normal(0.3, 1.0, 12)
    low, high = results.interval(differences)
    assert results.interval(differences) == (low, high) and low < differences.mean() < high
    standard_error = differences.std(ddof=1) / math.sqrt(12)
    assert high - low == pytest.approx(2 * 1.96 * standard_error, rel=0.2)
    assert all(math.isnan(bound) for bound in results.interval(differences[:1]))


def test_intervals_cover_the_true_mean_about_as_often_as_they_say():
    draw = np.random.default_rng(2)
    hits = 0
    for _ in range(60):
        low, high = results.interval(draw.normal(0.0, 1.0, 15))
        hits += low <= 0 <= high
    assert 50 <= hits <= 60


def test_few_seeds_are_warned_of():
    found = outcomes([[0.5, 0.6, 0.7, None, None, None], [0.6] * 6])
    rows = results.summary_rows(["optim.learning_rate"], found)
    assert all(row["warning"].startswith("n < 5") for row in rows)
    text = "\n".join(results.printed("accuracy", found, rows))
    assert "warning n < 5" in text and "3 of 6" in text


def test_the_figure_shows_every_seed_and_score(whole):
    drawn = (whole.folder / "figures" / "study.svg").read_text()
    assert (whole.folder / "figures" / "study.png").stat().st_size > 10_000
    for text in ("learning_rate=0.003", "learning_rate=0.0", "dev accuracy", "majority class", "cross entropy"):
        assert text in drawn
    group = Group(
        {0: [{"step": 0, "dev/loss": 1.0, "dev/accuracy": 0.5}, {"step": 5, "dev/loss": math.nan}]}, {0: math.nan}
    )
    other = Group({1: []}, {1: 0.5}, frozenset({1}))
    figure = study_figure({"a": group, "b": other}, title="x", headline="accuracy")
    texts = {text.get_text() for axes in figure.axes for text in axes.texts}
    assert {"0 of 1 runs", "0.500\n1 of 1 runs, 1 failed", "nothing recorded"} <= texts
