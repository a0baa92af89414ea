"""The demonstration on files and models of one's own, small ones among them; wrong options are named at once."""

import math
from pathlib import Path

import pytest
from tiny import tiny_checkpoint, tiny_tokenizer

from bertjax import cli, demo
from bertjax.errors import InputError
from bertjax.landscape.store import read_netcdf


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    tokenizer = tiny_tokenizer(folder / "model")
    tiny_checkpoint(folder / "model", vocab_size=len(tokenizer), num_hidden_layers=1, max_position_embeddings=32)
    lines = [f"{('good', 'bad', 'the film')[i % 3]} {i}\t{i % 3}" for i in range(30)]
    (folder / "rows.tsv").write_text("review\tstars\n" + "\n".join(lines) + "\n")
    return {
        "model": str(folder / "model"),
        "data": str(folder / "rows.tsv"),
        "text": "review",
        "label": "stars",
        "max_length": 24,
        "batch_size": 8,
        "examples": 6,
        "curve_points": 2,
        "surface_points": 2,
    }


def test_a_small_file_and_a_model_of_one_layer(given, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    scores = demo.run(demo.Demo(**given, out="~/demo"))
    said = capsys.readouterr().out
    assert "30 usable rows: 24 to train on, 6 held out" in said and "all is done" in said
    assert set(scores) == {"majority class", "TF-IDF and logistic regression", demo.PRETRAINED, demo.SCRATCH}
    out = tmp_path / "demo"
    groups = read_netcdf(out / "pretrained/landscape/rollback.nc")["group"].values.tolist()
    assert groups == ["none", "embeddings", "layer 0", "pooler", "all"]
    for file in ("figures/curves.png", "figures/learning.png", "pretrained/report.html", "scratch/report.html"):
        assert (out / file).stat().st_size > 1000
    assert not (Path.cwd() / "~").exists()
    assert demo.run(demo.Demo(**given, out="~/demo")) == scores


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("train_rows", 0),
        ("dev_rows", 0),
        ("epochs", math.nan),
        ("epochs", math.inf),
        ("learning_rate", -1.0),
        ("batch_size", 0),
        ("examples", 0),
        ("curve_points", 0),
        ("surface_points", 0),
        ("seed", -1),
    ],
)
def test_wrong_numbers_are_named_before_anything_is_written(option, value, given, tmp_path):
    with pytest.raises(InputError, match=f"--{option}="):
        demo.run(demo.Demo(**given | {option: value}, out=str(tmp_path / "demo")))
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": "body"}, r"no column 'body' \(--text\)"),
        ({"label": "star"}, r"no column 'star' \(--label\)"),
        ({"max_length": 64}, "--max_length=64: the model has 32"),
        ({"batch_size": 9}, "--batch_size=9"),
        ({"model": "no/where"}, "no/where"),
    ],
)
def test_messages_name_the_demos_own_options(changes, message, given, tmp_path):
    with pytest.raises(InputError, match=message) as caught:
        demo.run(demo.Demo(**given | changes, out=str(tmp_path / "demo")))
    assert "--data." not in str(caught.value) and "--train." not in str(caught.value)
    assert not (tmp_path / "demo").exists()


def test_the_home_folder_is_found_everywhere(given, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    model, rows = given["model"], given["data"]
    config = ["configs/finetune.py", f"--model.path={model}", f"--data.train={rows}", "--data.text=review"]
    options = [*config, "--data.label=stars", "--data.max_length=24", "--runs=~/runs", "--train.steps=2"]
    options += ["--train.batch_size=8", "--train.eval_batch_size=8", "--data.cache=~/cache"]
    for name in ("a", "b"):
        cli.train([*options, f"--name={name}", f"--optim.learning_rate={1e-3 if name == 'a' else 2e-3}"])
        cli.landscape(["curve", f"~/runs/{name}", "--points=2", "--train_examples=4", "--dev_examples=0"])
    cli.train(["predict", "~/runs/a", rows, "--out=~/labels.csv"])
    cli.train(["evaluate", "~/runs/a", rows])
    cli.landscape(["compare", "~/runs/a", "~/runs/b", "--out=~/compared"])
    cli.landscape(["draw", "~/runs/a"])
    cli.landscape(["report", "~/runs/a"])
    assert {"labels.csv", "compared", "runs", "cache"} <= {path.name for path in tmp_path.iterdir()}
    assert (tmp_path / "runs/a/report.html").exists() and list((tmp_path / "runs/a/predictions").glob("*.json"))
    assert not (Path.cwd() / "~").exists()
