"""Landscapes of checkpoints trained elsewhere: losses as PyTorch has them, labels by name, a Trainer's folder."""

import json
import math
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import cli, weights
from bertjax.errors import InputError
from bertjax.landscape import commands
from bertjax.landscape.folders import Elsewhere, FolderSubject
from bertjax.landscape.options import Curve, Rollback, Surface, Trajectory
from bertjax.landscape.store import read_netcdf
from bertjax.model.heads import TaskModel

GOLDEN = Path(__file__).parent / "golden" / "trainer"
LOSSES = json.loads((GOLDEN / "losses.json").read_text())
FIRST, LAST = GOLDEN / "output" / "checkpoint-10", GOLDEN / "output" / "checkpoint-30"


@pytest.fixture
def elsewhere(tmp_path):
    def make(**changes):
        given = {
            "start": GOLDEN / "start",
            "end": GOLDEN / "output",
            "data": GOLDEN / "rows.tsv",
            "out": tmp_path / "out",
        }
        return Elsewhere(
            **{name: str(value) if isinstance(value, Path) else value for name, value in (given | changes).items()}
        )

    return make


def computed(kind, checkpoints, **options):
    return read_netcdf(commands.compute(kind(checkpoints=checkpoints, **options)))


def test_both_ends_have_pytorchs_loss_when_the_head_moves(elsewhere):
    dataset = computed(Curve, elsewhere(start=FIRST, tokenizer=GOLDEN / "start"), head="move", points=4)
    for alpha, name in ((0.0, "checkpoint-10"), (1.0, "checkpoint-30")):
        assert float(dataset["loss"].sel(alpha=alpha, split="data")) == pytest.approx(LOSSES[name], abs=1e-5)
    assert dataset.attrs["examples"] == "data 48" and dataset.attrs["majority"] == pytest.approx(1 / 3)


def test_a_bare_encoder_starts_under_the_trained_head(elsewhere):
    dataset = computed(Curve, elsewhere(), points=4)
    for alpha, name in ((0.0, "start under the final head"), (1.0, "checkpoint-30")):
        assert float(dataset["loss"].sel(alpha=alpha, split="data")) == pytest.approx(LOSSES[name], abs=1e-5)
    with pytest.raises(InputError, match=r"--head move: .*no head/bias, head/kernel.*--head fixed"):
        computed(Curve, elsewhere(), name="moving", head="move")


def test_rollback_is_what_pytorch_says(elsewhere):
    loss = computed(Rollback, elsewhere())["loss"].sel(split="data")
    assert float(loss.sel(group="none")) == pytest.approx(LOSSES["checkpoint-30"], abs=1e-5)
    assert float(loss.sel(group="layer 0")) == pytest.approx(LOSSES["layer 0 rolled back"], abs=1e-5)
    assert float(loss.sel(group="all")) == pytest.approx(LOSSES["start under the final head"], abs=1e-5)


def test_a_trainers_checkpoints_are_the_trajectory(elsewhere):
    dataset = computed(Trajectory, elsewhere())
    assert dataset["snapshot"].values.tolist() == ["start", "checkpoint-10", "checkpoint-20", "checkpoint-30"]
    assert dataset["step"].values.tolist() == [0, 10, 20, 30]
    assert dataset["own_head"].values.tolist() == [0, 1, 1, 1]
    loss, final = (dataset[name].sel(split="data") for name in ("loss", "loss_final_head"))
    for name in ("checkpoint-10", "checkpoint-20", "checkpoint-30"):
        assert float(loss.sel(snapshot=name)) == pytest.approx(LOSSES[name], abs=1e-5)
        assert float(final.sel(snapshot=name)) == pytest.approx(LOSSES[f"{name} under the final head"], abs=1e-5)
    assert np.isnan(loss.sel(snapshot="start"))  # it has no head of its own
    assert float(final.sel(snapshot="start")) == pytest.approx(LOSSES["start under the final head"], abs=1e-5)
    np.testing.assert_allclose(dataset["a"].values[[0, -1]], [0, 1], atol=1e-9)
    np.testing.assert_allclose(dataset["off_plane"].values[[0, -1]], 0, atol=1e-9)


def test_surface_towards_another_task_and_its_figures(elsewhere, capsys):
    o = elsewhere(other=GOLDEN / "other")
    arguments = ["--start", o.start, "--end", o.end, "--data", o.data, "--out", o.out]
    small = ["--points", "4", "--beta_points", "3"]
    cli.landscape(["surface", *arguments, "--other", o.other, "--y", "task", *small])
    cli.landscape(["trajectory", *arguments, "--other", o.other, "--y", "task"])
    dataset = read_netcdf(Path(o.out) / "landscape" / "surface.nc")
    assert dataset.attrs["y_scale"] == "first" and dataset.attrs["norm_y"] == dataset.attrs["norm_x"]
    assert float(dataset["loss"].sel(alpha=1, beta=0, split="data")) == pytest.approx(LOSSES["checkpoint-30"], abs=1e-5)
    names = {path.name for path in (Path(o.out) / "figures").iterdir()}
    assert {"surface.png", "surface-3d.png", "trajectory.png", "trajectory.svg"} <= names
    assert "over the loss surface" in (Path(o.out) / "figures" / "trajectory.svg").read_text()
    assert "figure" in capsys.readouterr().out
    with pytest.raises(InputError, match="task:RUN2"):
        computed(Surface, elsewhere(), y="task", name="none")


def test_a_finished_result_needs_neither_model_nor_tokenizer(elsewhere, monkeypatch):
    path = commands.compute(Curve(checkpoints=elsewhere(), points=2))
    monkeypatch.setattr("bertjax.weights.load", None)
    monkeypatch.setattr("bertjax.landscape.folders.load_splits", None)
    assert commands.compute(Curve(checkpoints=elsewhere(), points=2)) == path


def copied(tmp_path, name="copy"):
    return Path(shutil.copytree(GOLDEN / "output", tmp_path / name))


def test_other_weights_or_rows_are_another_computation(elsewhere, tmp_path):
    commands.compute(Curve(checkpoints=elsewhere(), points=2))
    with pytest.raises(InputError, match=r"holds another computation.*parameters"):
        commands.compute(Curve(checkpoints=elsewhere(end=FIRST), points=2))
    fewer = tmp_path / "fewer.tsv"
    fewer.write_text("\n".join((GOLDEN / "rows.tsv").read_text().splitlines()[:20]) + "\n")
    with pytest.raises(InputError, match=r"holds another computation.*data"):
        commands.compute(Curve(checkpoints=elsewhere(data=fewer), points=2))


def test_which_folder_is_the_end(elsewhere, tmp_path, capsys):
    folder = copied(tmp_path)
    shutil.move(folder / "checkpoint-10", folder / "checkpoint-9")
    (folder / "checkpoint-100").mkdir()  # of a Trainer that was killed: no weights
    names = [s.name for s in FolderSubject(elsewhere(end=folder)).snapshots]
    assert names == ["start", "checkpoint-9", "checkpoint-20", "checkpoint-30"]  # by number
    assert "checkpoint-100" in capsys.readouterr().out
    # The best model, which load_best_model_at_end leaves in the folder itself, is the end.
    for file in ("config.json", "model.safetensors"):
        shutil.copy(folder / "checkpoint-20" / file, folder / file)
    subject = FolderSubject(elsewhere(end=folder))
    assert [s.name for s in subject.snapshots] == names and subject.identity["parameters"]["end"]
    dataset = computed(Curve, elsewhere(end=folder), points=2)
    assert float(dataset["loss"].sel(alpha=1, split="data")) == pytest.approx(LOSSES["checkpoint-20"], abs=1e-5)
    shutil.rmtree(folder / "checkpoint-20")
    assert [s.name for s in FolderSubject(elsewhere(end=folder)).snapshots][-1] == "end"


def relabelled(tmp_path, names):
    text = (GOLDEN / "rows.tsv").read_text()
    for old, new in names.items():
        text = text.replace(f"\t{old}\n", f"\t{new}\n")
    path = tmp_path / "relabelled.tsv"
    path.write_text(text)
    return path


def test_labels_by_number_by_option_and_not_at_all(elsewhere, tmp_path, capsys):
    folder = copied(tmp_path)
    config = folder / "checkpoint-30" / "config.json"
    values = json.loads(config.read_text())
    numbered = relabelled(tmp_path, {"neg": "0", "neutral": "1", "pos": "2"})
    with pytest.raises(InputError, match=r"'0' is none of the model's: neg, neutral, pos.*--labels 0 1 2"):
        computed(Curve, elsewhere(data=numbered), points=2)
    expected = computed(Curve, elsewhere(), points=2, name="named")
    given = computed(Curve, elsewhere(data=numbered, labels=("0", "1", "2")), points=2, name="given")
    np.testing.assert_array_equal(given["loss"], expected["loss"])
    names = {"id2label": {str(i): f"LABEL_{i}" for i in range(3)}, "label2id": {f"LABEL_{i}": i for i in range(3)}}
    config.write_text(json.dumps(values | names))
    capsys.readouterr()
    numbers = computed(Curve, elsewhere(data=numbered, end=folder), points=2, name="numbers")
    assert "by their number" in capsys.readouterr().out
    np.testing.assert_array_equal(numbers["loss"], expected["loss"])
    with pytest.raises(InputError, match="'neg' is none of the model's: LABEL_0"):
        computed(Curve, elsewhere(end=folder), points=2, name="odd")
    with pytest.raises(InputError, match="--labels: 2 names for a model of 3 classes"):
        computed(Curve, elsewhere(labels=("a", "b")), points=2, name="two")


def test_rows_apart_are_a_split_of_their_own(elsewhere):
    dataset = computed(Curve, elsewhere(dev=GOLDEN / "rows.tsv"), points=2, train_examples=10, dev_examples=48)
    assert dataset.attrs["examples"] == "data 10, dev 48"
    assert float(dataset["loss"].sel(alpha=1, split="dev")) == pytest.approx(LOSSES["checkpoint-30"], abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": ""}, "--start .model folder. is not given"),
        ({"out": ""}, "--out"),
        ({"end": GOLDEN / "start"}, "no head/kernel and no head/bias"),
        ({"end": "/none"}, "/none does not exist"),
        ({"other": GOLDEN}, "neither a run .*nor a model folder"),
        ({"start": FIRST}, "none of .*checkpoint-30.* has tokenizer files.*--tokenizer"),
        ({"text": "sentence"}, r"no column 'sentence' \(--text\)"),
        ({"max_length": 21}, r"--max_length=21.*20 position"),
    ],
)
def test_wrong_input_is_one_line(changes, message, elsewhere, tmp_path):
    with pytest.raises(InputError, match=message):
        commands.compute(Surface(checkpoints=elsewhere(**changes), y="task" if "other" in changes else "random"))
    assert not (tmp_path / "out").exists()


def test_models_of_other_shapes_are_refused(elsewhere, tmp_path):
    from tiny import tiny_checkpoint

    tiny_checkpoint(tmp_path / "model", outputs=None)
    with pytest.raises(InputError, match="of different architectures: encoder"):
        commands.compute(Curve(checkpoints=elsewhere(start=tmp_path / "model", tokenizer=GOLDEN / "start")))
    with pytest.raises(InputError, match="of different architectures: encoder"):
        commands.compute(Surface(checkpoints=elsewhere(other=tmp_path / "model"), y="task"))


def test_a_run_and_checkpoints_at_once_are_refused(elsewhere, tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError, match="--start is for checkpoints trained elsewhere"):
        commands.compute(Curve(run=str(tmp_path), checkpoints=elsewhere()))


def test_several_labels_are_pytorchs_binary_cross_entropy(elsewhere, tmp_path):
    """The classifier of the golden model read as multi-label: loss and error from its own probabilities."""
    folder = tmp_path / "several"
    shutil.copytree(GOLDEN / "output" / "checkpoint-30", folder)
    config = json.loads((folder / "config.json").read_text())
    names = config["id2label"] = {"0": "c", "1": "a", "2": "b"}
    (folder / "config.json").write_text(json.dumps(config | {"problem_type": "multi_label_classification"}))
    rows = (GOLDEN / "rows.tsv").read_text().splitlines()
    sets = [["a"], ["a", "b"], ["b"], []]
    chosen = [sets[i % 4] for i in range(len(rows) - 1)]
    lines = [{"text": row.split("\t")[0], "label": label} for row, label in zip(rows[1:], chosen, strict=True)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    subject = elsewhere(end=folder, data=data, tokenizer=GOLDEN / "start")
    found = computed(Curve, subject, points=2)
    z = logits(folder, [line["text"] for line in lines])
    y = np.array([[names[str(i)] in label for i in range(3)] for label in chosen], float)
    loss = (np.logaddexp(0, z) - y * z).mean()
    assert float(found["loss"].sel(alpha=1.0, split="data")) == pytest.approx(loss, abs=1e-5)
    wrong = ((z > 0) != (y > 0)).any(axis=1).mean()
    assert float(found["error"].sel(alpha=1.0, split="data")) == pytest.approx(wrong, abs=1e-6)
    assert math.isnan(found.attrs["majority"])


def logits(folder, texts):
    """[rows, classes] of the model in `folder`."""
    config, params, _ = weights.load(folder)
    model, tokenizer = TaskModel(config, 3), weights.load_tokenizer(GOLDEN / "start")
    rows = tokenizer(texts, truncation=True, max_length=20, padding="max_length", return_tensors="np")
    given = [jnp.asarray(rows[name], jnp.int32) for name in ("input_ids", "attention_mask", "token_type_ids")]
    return np.asarray(jax.jit(model.apply)({"params": jax.tree.map(jnp.asarray, params)}, *given))
