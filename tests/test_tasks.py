"""Named data sets: every published form gives the same rows, classes are numbered as published, submissions fit."""

import csv
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny import tiny_checkpoint, tiny_tokenizer

from bertjax import metrics, predict
from bertjax.config import DataOptions, ModelOptions, OptimOptions, RunConfig, TrainOptions, load_config
from bertjax.data.features import load_splits
from bertjax.data.rows import RowReader, read_rows
from bertjax.data.tasks import TASKS, Fields, find_layout
from bertjax.errors import InputError
from bertjax.metrics import METRICS
from bertjax.model.heads import HEADS
from bertjax.predict import Predict
from bertjax.training import loop

NAMED = {name: task for name, task in TASKS.items() if task.labels or task.source}
REAL = Path(os.environ.get("BERTJAX_REAL_DATA", "no data"))
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="BERTJAX_REAL_DATA names no folder with the real data sets")


def read(path, task, **options):
    labelled = options.pop("labelled", True)
    return read_rows(str(path), DataOptions(task=task, **options), TASKS[task], labelled=labelled)


def test_the_table_is_consistent():
    for name, task in TASKS.items():
        assert name == task.name and task.head in HEADS and task.headline in task.metrics
        assert set(task.metrics) <= set(METRICS) and (task.head == "regression") == task.numeric_label
        assert len(set(task.labels)) == len(task.labels) != 1
        assert "f1" not in task.metrics or len(task.labels) == 2
        assert len({layout.header for layout in task.layouts if layout.header}) <= 1
    for name, task in NAMED.items():
        config = load_config(f"configs/glue.py:{name}")
        assert config.data.task == name and config.data.max_length == task.settings.max_length


@pytest.mark.parametrize("task", NAMED.values(), ids=NAMED)
def test_every_form_of_a_task_gives_the_same_rows(task, tmp_path):
    pairs = bool(task.layouts[0].text_pair)
    answers = [0.5, 4.25] if task.numeric_label else list(task.labels[:2])
    rows = [(f"first {i}", f"second {i}" if pairs else None, answer) for i, answer in enumerate(answers)]
    for number, layout in enumerate(task.layouts):
        wanted = dict(zip((layout.text, layout.text_pair, layout.label), zip(*rows, strict=True), strict=True))
        wanted.pop("", None)
        columns = layout.header or ("index", *wanted)
        table = {name: list(wanted.get(name, ("x", "y"))) for name in columns}
        cells = list(zip(*table.values(), strict=True))
        # Names of classes, and their numbers.
        for form, name in (("names", f"{number}a.tsv"), ("numbers", f"{number}b.tsv")):
            at = columns.index(layout.label)
            if form == "numbers" and task.labels:
                cells = [(*row[:at], task.labels.index(row[at]), *row[at + 1 :]) for row in cells]
            lines = ([] if layout.header else [columns]) + cells
            (tmp_path / name).write_text("\n".join("\t".join(map(str, line)) for line in lines) + "\n")
            found = read(tmp_path / name, task.name)
            assert list(found.texts) == [(first, second) for first, second, _ in rows] and found.labels == answers, (
                layout
            )
            assert found.class_names == task.labels
        if layout.header:
            continue
        records = [dict(zip(columns, row, strict=True)) for row in cells]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(map(json.dumps, records)))
        (tmp_path / f"{number}.json").write_text(json.dumps({str(i): r for i, r in enumerate(records)}))
        pq.write_table(pa.table({k: [r[k] for r in records] for k in columns}), tmp_path / f"{number}.parquet")
        for ending in ("jsonl", "json", "parquet"):
            found = read(tmp_path / f"{number}.{ending}", task.name)
            assert list(found.texts) == [(first, second) for first, second, _ in rows] and found.labels == answers, (
                ending
            )
        unlabelled = [{k: v for k, v in r.items() if k != layout.label} for r in records]
        (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, unlabelled)))
        assert len(read(tmp_path / "test.jsonl", task.name, labelled=False)) == 2


def test_declared_classes_are_taken_by_name(tmp_path):
    """TFDS numbers the classes of TREC otherwise than the Hugging Face hub."""
    card = "---\ndataset_info:\n  features:\n  - name: label-coarse\n    dtype:\n      class_label:\n        names:\n"
    (tmp_path / "README.md").write_text(
        card + "".join(f"          '{i}': {n}\n" for i, n in enumerate(("HUM", "NUM"))) + "---\n"
    )
    table = pa.table({"text": ["who", "how many"], "label-coarse": [0, 1]})
    pq.write_table(table, tmp_path / "train.parquet")
    assert read(tmp_path, "trec").labels == ["HUM", "NUM"]
    assert read(tmp_path / "train.parquet", "trec").labels == ["ABBR", "ENTY"]  # numbers alone: the hub's order
    (tmp_path / "README.md").write_text(card + "          '0': HUM\n          '1': WHO\n---\n")
    with pytest.raises(InputError, match="has the class 'WHO', expected those of the task trec"):
        read(tmp_path, "trec")


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("3", "is '3', expected one of entailment, neutral, contradiction, or its number"),
        ("-1", "is -1"),
        ("neutrl", "did you mean 'neutral'"),
        ("1.5", "is '1.5'"),
        ("", "is empty"),
    ],
)
def test_labels_that_are_no_class_are_named(label, message, tmp_path):
    (tmp_path / "a.tsv").write_text(f"premise\thypothesis\tlabel\na\tb\t0\na\tb\t{label}\n")
    with pytest.raises(InputError, match=rf"a\.tsv:3: .*{message}"):
        read(tmp_path / "a.tsv", "mnli")


def test_rows_that_say_they_have_no_label_are_left_out_and_counted(tmp_path):
    tokenizer = tiny_tokenizer(tmp_path / "model")
    rows = [f"a film {i}\tthe plot {i}\t{('entailment', '-', 'neutral')[i % 3]}" for i in range(30)]
    (tmp_path / "a.tsv").write_text("sentence1\tsentence2\tgold_label\n" + "\n".join(rows) + "\n")
    options = DataOptions(train=str(tmp_path / "a.tsv"), task="snli", max_length=24, cache="")
    splits = load_splits(options, tokenizer, positions=24)
    assert len(splits.train) + len(splits.dev) == 20 and splits.labels == TASKS["snli"].labels
    assert any("10 rows that say they have no label" in line for line in splits.summary())


def test_columns_of_no_form_are_named(tmp_path):
    (tmp_path / "a.csv").write_text("title,body,stars\nx,y,1\n")
    with pytest.raises(
        InputError, match=r"columns title, body, stars, expected those of the task mrpc: sentence1, .* or "
    ):
        read(tmp_path / "a.csv", "mrpc")
    rows = read(tmp_path / "a.csv", "mrpc", text="title", text_pair="body", label="stars")
    assert (
        list(rows.texts) == [("x", "y")]
        and rows.labels == ["equivalent"]
        and rows.fields == Fields("title", "body", "stars")
    )
    assert find_layout(TASKS["qqp"], ("question1", "question2", "is_duplicate"), True, "x").label == "is_duplicate"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A GLUE folder of two tasks, as GLUE packs them: files beside the rows, a test set with empty texts."""
    root = tmp_path_factory.mktemp("glue")
    sst2, stsb = root / "SST-2", root / "STS-B"
    for path in (sst2, stsb):
        path.mkdir()
        (path / "LICENSE.txt").write_text("words\n")
        (path / "original").mkdir()
        (path / "original/raw.txt").write_text("more words\n")
    for split, count in (("train", 40), ("dev", 12)):
        lines = [f"{('good', 'bad')[i % 2]} film {i} \t{(i + 1) % 2}" for i in range(count)]
        (sst2 / f"{split}.tsv").write_text("sentence\tlabel\n" + "\n".join(lines) + "\n")
        lines = [f"{i}\tg\tfilm {i}\tthe {'film' * (i % 2)} {i}\t{i % 6:.3f}" for i in range(count)]
        (stsb / f"{split}.tsv").write_text("index\tgenre\tsentence1\tsentence2\tscore\n" + "\n".join(lines) + "\n")
    (sst2 / "test.tsv").write_text("index\tsentence\n0\tgood film\n1\t\n2\tbad plot\n")
    (stsb / "test.tsv").write_text("index\tgenre\tsentence1\tsentence2\n0\tg\ta film\t\n1\tg\ta\tb\n")
    tokenizer = tiny_tokenizer(root / "model")
    tiny_checkpoint(root / "model", vocab_size=len(tokenizer), num_hidden_layers=1, max_position_embeddings=24)
    return root


@pytest.mark.parametrize(("task", "name"), [("sst2", "SST-2"), pytest.param("stsb", "STS-B", marks=pytest.mark.slow)])
def test_a_glue_folder_trains_and_is_handed_in(task, name, folder):
    run = loop.train(
        RunConfig(
            name=task,
            runs=str(folder / "runs"),
            model=ModelOptions(path=str(folder / "model")),
            data=DataOptions(train=str(folder / name), task=task, max_length=24, buckets=(), cache=""),
            optim=OptimOptions(learning_rate=3e-3),
            train=TrainOptions(steps=20, batch_size=8, eval_batch_size=8, snapshots=1),
        )
    )
    assert run.info["rows"] == {"train": 40, "dev": 12} and run.labels == TASKS[task].labels
    kept = list(csv.DictReader((run.folder / "predictions/dev.csv").read_text().splitlines()))
    assert [r["row"] for r in kept] == [str(line) for line in range(2, 14)]
    assert np.mean([float(r["loss"]) for r in kept]) == pytest.approx(run.info["results"]["dev"]["loss"], rel=1e-5)
    if task == "sst2":
        right = np.mean([r["true"] == r["prediction"] for r in kept])
        assert right == run.info["results"]["dev"]["accuracy"]
    test = str(folder / name / "test.tsv")
    file = predict.predict(Predict(run=str(run.folder), file=test, form="glue"))
    rows = list(csv.DictReader(file.read_text().splitlines(), delimiter="\t"))
    assert file.name == TASKS[task].submission.file
    assert [r["index"] for r in rows] == [str(i) for i in range(3 if task == "sst2" else 2)]
    if task == "sst2":
        assert {r["prediction"] for r in rows} <= {"0", "1"} and (rows[0]["prediction"], rows[2]["prediction"]) == (
            "1",
            "0",
        )
    else:
        assert all(0 <= float(r["prediction"]) <= 5 and len(r["prediction"].partition(".")[2]) == 3 for r in rows)
    with pytest.raises(InputError, match=r"test\.tsv:\d: column 'sentence2?' is empty"):
        predict.predict(Predict(run=str(run.folder), file=test))
    with pytest.raises(InputError, match="would shift"):
        predict.predict(Predict(run=str(run.folder), file=test, form="glue", on_bad_row="skip"))
    scores = predict.evaluate(predict.Evaluate(run=str(run.folder), file=str(folder / name), split="dev"))
    assert scores == pytest.approx(run.info["results"]["dev"], abs=1e-5)


@needs_real
@pytest.mark.parametrize(
    ("task", "path", "split", "labelled", "count"),
    [
        ("sst2", "SST-2", "train", True, 67_349),
        ("sst2", "SST-2", "dev", True, 872),
        ("sst2", "SST-2", "test", False, 1_821),
        ("cola", "CoLA", "train", True, 8_551),
        ("cola", "CoLA", "dev", True, 1_043),
        ("cola", "CoLA", "test", False, 1_063),
        ("stsb", "STS-B", "train", True, 5_749),
        ("stsb", "STS-B", "dev", True, 1_500),
        ("stsb", "STS-B", "test", False, 1_379),
        ("qnli", "QNLI", "dev", True, 5_463),
        ("qnli", "QNLI", "test", False, 5_463),
        ("qnli", "QNLI/train_subset_a8999.json", "", True, 8_999),
        ("qnli", "QNLI/train_subset_b1000.json", "", True, 1_000),
        ("snli", "SNLI/train_subset_a8999.json", "", True, 8_999),
        ("snli", "SNLI/train_subset_b1000.json", "", True, 1_000),
        ("snli", "SNLI/dev.txt", "", True, 9_842),
        ("snli", "SNLI/test.txt", "", True, 9_824),
    ],
)
def test_real_files_have_all_their_rows(task, path, split, labelled, count):
    reader = RowReader(str(REAL / path), DataOptions(task=task), TASKS[task], split=split, labelled=labelled)
    assert sum(1 for _ in reader) == count and not reader.bad and reader.unlabelled == 0


@needs_real
def test_rows_with_too_many_fields_are_left_out_of_the_real_480():
    path = str(REAL / "SNLI/kshot_480_original_columns.tsv")
    reader = RowReader(path, DataOptions(task="snli", on_bad_row="skip"), TASKS["snli"])
    assert sum(1 for _ in reader) == 453 and len(reader.bad) == 27


NAMES = {"matthews_correlation": "matthews", "spearmanr": "spearman", "macro_f1": "f1_macro"}


@needs_real
def test_metrics_equal_the_published_vectors():
    stored = json.loads((REAL / "metrics/glue_metric_vectors.json").read_text())["vectors"]
    assert len(stored) >= 7
    for vector in stored:
        for name, value in vector["expected"].items():
            found = METRICS[NAMES.get(name, name)](np.array(vector["gold"]), np.array(vector["pred"]))
            assert found == pytest.approx(value, abs=1e-9), (vector["task"], name)
        task = TASKS.get(vector["task"])
        if task is not None:
            scores = metrics.score(task, np.array(vector["gold"]), np.array(vector["pred"]))
            for name in set(task.metrics) & {NAMES.get(name, name) for name in vector["expected"]}:
                expected = {NAMES.get(key, key): value for key, value in vector["expected"].items()}[name]
                assert scores[name] == pytest.approx(expected, abs=1e-9)
