"""A TFDS data set gives what a file with its rows gives, bit for bit, and TensorFlow is never imported."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from tiny import tiny_tokenizer

from bertjax.config import DataOptions
from bertjax.data.batches import bucket_lengths, eval_batches, train_batches
from bertjax.data.features import load_splits
from bertjax.data.rows import RowReader, read_rows
from bertjax.data.sources import open_source
from bertjax.data.tasks import TASKS
from bertjax.errors import InputError

ARRAYS = ("ids", "offsets", "types", "labels", "rows", "cut")
CLASSIFICATION = TASKS["classification"]
SPLITS = {"train": 40, "validation": 12, "test": 5}


def film(split: str, i: int) -> dict:
    """Row `i` of a split."""
    label = -1 if split == "test" else ("neg", "pos")[(i * 7 + len(split)) % 3 == 0]
    return {
        "text": f"{split} film {i} é, very " + "good " * (i % 5),
        "pair": f"plot {i}",
        "label": label,
        "score": i / 4,
    }


class Films(tfds.core.GeneratorBasedBuilder):
    """A few rows about films."""

    VERSION = tfds.core.Version("1.0.0")
    name = "bertjax_films"

    def _info(self):
        features = tfds.features.FeaturesDict(
            {
                "text": tfds.features.Text(),
                "pair": tfds.features.Text(),
                "label": tfds.features.ClassLabel(names=["neg", "pos"]),
                "score": np.float32,
            }
        )
        # Rows keep their order: TFDS would shuffle them once as it writes them.
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split, rows) for split, rows in SPLITS.items()}

    def _generate_examples(self, split, rows):
        for i in range(rows):
            yield i, film(split, i)


class Away(Films):
    """Its rows are at an address that nothing answers."""

    name = "bertjax_away"

    def _split_generators(self, dl_manager):
        dl_manager.download("http://127.0.0.1:9/rows.csv")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> str:
    """A folder in which the data set is prepared."""
    folder = str(tmp_path_factory.mktemp("tfds"))
    load = tfds.download.DownloadConfig(try_download_gcs=False)
    tfds.builder("bertjax_films", data_dir=folder).download_and_prepare(
        file_format="array_record", download_config=load
    )
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def csv_file(path: Path, split: str) -> str:
    rows = [film(split, i) for i in range(SPLITS[split])]
    lines = [f'"{row["text"]}",{row["pair"]},{row["label"]},{row["score"]}' for row in rows]
    path.write_text("text,pair,label,score\n" + "".join(f"{line}\n" for line in lines))
    return str(path)


@pytest.mark.parametrize(
    "fields",
    [
        {"labels": ()},
        {"labels": ("pos", "neg")},
        {"text_pair": "pair", "max_length": 16},
        {"task": "regression", "label": "score"},
        {"train_rows": 20, "group_by_length": 2},
    ],
    ids=["plain", "labels", "pairs", "regression", "sample"],
)
@pytest.mark.parametrize("dev", [True, False], ids=["dev split", "held out"])
def test_the_same_rows_give_the_same_features_and_batches(tmp_path, data_dir, tokenizer, fields, dev):
    shared = {"cache": "", "max_length": 48, "dev_rows": None if dev else 7} | fields
    file = DataOptions(
        train=csv_file(tmp_path / "train.csv", "train"),
        dev=csv_file(tmp_path / "dev.csv", "validation") if dev else "",
        **shared,
    )
    prepared = DataOptions(
        train="tfds://bertjax_films", dev_split="validation" if dev else "", data_dir=data_dir, **shared
    )
    a, b = (load_splits(options, tokenizer, positions=512) for options in (file, prepared))
    assert a.labels == b.labels
    assert a.summary()[2:] == b.summary()[2:]
    for split in ("train", "dev"):
        assert a.texts(split) == b.texts(split)
        for name in ARRAYS:
            one, two = (getattr(getattr(splits, split), name) for splits in (a, b))
            assert (one.dtype, one.tobytes()) == (two.dtype, two.tobytes())
        batches = []
        for options, features in ((file, getattr(a, split)), (prepared, getattr(b, split))):
            lengths = bucket_lengths(options)
            stream = train_batches(features, batch_size=4, buckets=lengths, seed=3, window=options.group_by_length)
            batches.append([next(stream) for _ in range(20)] + eval_batches(features, batch_size=4, buckets=lengths))
        for one, two in zip(*batches, strict=True):
            assert one.keys() == two.keys()
            assert all((one[key].dtype, one[key].tobytes()) == (two[key].dtype, two[key].tobytes()) for key in one)


def test_the_same_rows_give_the_same_training(tmp_path, data_dir):
    """Parameters, metrics and class names of two runs are equal, bit for bit."""
    from tiny import tiny_checkpoint

    from bertjax.config import ModelOptions, RunConfig, TrainOptions
    from bertjax.training.loop import train

    vocabulary = len(tiny_tokenizer(tmp_path / "model"))
    tiny_checkpoint(tmp_path / "model", vocab_size=vocabulary, num_hidden_layers=1, max_position_embeddings=32)
    common = {"max_length": 32, "buckets": (16,), "dev_split": "", "cache": ""}
    runs = [
        train(
            RunConfig(
                name=name,
                runs=str(tmp_path / "runs"),
                model=ModelOptions(path=str(tmp_path / "model")),
                data=DataOptions(**common | data),
                train=TrainOptions(steps=6, batch_size=8, eval_batch_size=8, eval_every=3, snapshots=1),
            )
        )
        for name, data in (
            ("file", {"train": csv_file(tmp_path / "train.csv", "train"), "labels": ("neg", "pos")}),
            ("tfds", {"train": "tfds://bertjax_films", "data_dir": data_dir, "train_split": "train"}),
        )
    ]
    a, b = (run.info for run in runs)
    assert a["parameters"] == b["parameters"] and a["results"] == b["results"] and a["labels"] == b["labels"]
    metrics = [(run.folder / "metrics.jsonl").read_bytes() for run in runs]
    assert metrics[0] == metrics[1] and metrics[0].count(b"\n") >= 4


def test_splits_and_expressions(data_dir):
    def rows(role="data", split="", address="tfds://bertjax_films"):
        options = DataOptions(data_dir=data_dir)
        return read_rows(address, options, CLASSIFICATION, role=role, split=split, labelled=split != "test")

    assert [len(rows(role)) for role in ("train", "dev")] == [40, 12]
    assert list(rows(split="test").texts) == [(film("test", i)["text"].strip(), None) for i in range(5)]
    assert len(rows(split="train[:25%]")) == 10
    assert list(rows(split="train[10:15]").texts) == rows(split="train").texts[10:15]
    assert len(rows(split="train+validation")) == 52
    assert rows("dev", address="tfds://bertjax_films:1.0.0").where(3) == "tfds://bertjax_films:1.0.0 validation: row 3"
    with pytest.raises(InputError, match="several splits, expected --split to name one of: train, validation, test"):
        rows()
    for split in ("trian", "trian[:10%]", "train[:x%]"):
        with pytest.raises(
            InputError, match=r"tfds://bertjax_films: has no split|tfds://bertjax_films has no such split"
        ):
            rows(split=split)


def test_unlabelled_rows_are_named_and_can_be_read_without_labels(data_dir):
    options = DataOptions(data_dir=data_dir)
    message = r"test: row 0: column 'label' is -1: .*GLUE's test splits, expected one of neg, pos \(4 more such rows\)"
    with pytest.raises(InputError, match=message):
        read_rows("tfds://bertjax_films", options, CLASSIFICATION, split="test")
    skip = DataOptions(data_dir=data_dir, on_bad_row="skip")
    with pytest.raises(InputError, match=r"none of its 5 rows can be used, for example .*is -1"):
        read_rows("tfds://bertjax_films", skip, CLASSIFICATION, split="test")
    reader = RowReader("tfds://bertjax_films", options, CLASSIFICATION, split="test", labelled=False)
    assert [row.text[0][:6] for row in reader] == ["test f"] * 5


def test_the_fingerprint_follows_the_contents_and_the_split_not_the_folder(data_dir, tmp_path):
    def fingerprint(folder, split="train"):
        return open_source("tfds://bertjax_films", split=split, data_dir=str(folder)).fingerprint

    copy = tmp_path / "copy"
    shutil.copytree(data_dir, copy)
    assert fingerprint(copy) == fingerprint(data_dir)
    assert len({fingerprint(data_dir, split) for split in ("train", "validation", "train[:10%]")}) == 3
    records = next(copy.rglob("*-train.array_record*"))
    records.write_bytes(records.read_bytes() + b"\0")
    assert fingerprint(copy) != fingerprint(data_dir)
    assert fingerprint(copy, "test") == fingerprint(data_dir, "test")


def test_word_pieces_are_cached(data_dir, tokenizer, tmp_path):
    options = DataOptions(train="tfds://bertjax_films", data_dir=data_dir, cache=str(tmp_path / "cache"))
    notes = [load_splits(options, tokenizer, positions=512).notes[0] for _ in range(2)]
    assert "tokenized in" in notes[0]
    assert "read from" in notes[1]


def test_a_builder_that_is_not_prepared_is_prepared_once(tmp_path, capfd):
    options = DataOptions(data_dir=str(tmp_path / "new"))
    rows = [read_rows("tfds://bertjax_films", options, CLASSIFICATION, role="train") for _ in range(2)]
    assert len(rows[0]) == len(rows[1]) == 40
    assert rows[0].source.fingerprint == rows[1].source.fingerprint


def test_the_data_folder_may_come_from_the_environment(data_dir, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", data_dir)
    assert len(read_rows("tfds://bertjax_films", DataOptions(), CLASSIFICATION, role="dev")) == 12


def three_ways(name: str) -> str:
    return rf"{name}: is not prepared in .*Three ways to provide it: \(1\) .*\(2\) .*\(3\) "


def test_what_is_missing_offline_is_named_with_three_ways_to_provide_it(data_dir, tmp_path, capfd):
    with pytest.raises(InputError, match=three_ways("tfds://bertjax_film") + ".*") as error:
        open_source("tfds://bertjax_film", data_dir=data_dir)
    assert "did you mean 'bertjax_films'?" in str(error.value)
    assert len(str(error.value)) < 700
    with pytest.raises(InputError, match=three_ways("tfds://bertjax_films:3.0.0")):
        open_source("tfds://bertjax_films:3.0.0", data_dir=data_dir)
    with pytest.raises(InputError, match=three_ways("tfds://bertjax_away")) as error:
        open_source("tfds://bertjax_away", data_dir=str(tmp_path))
    assert "preparing it failed: ConnectionError" in str(error.value)
    with pytest.raises(InputError, match=r"expected tfds://NAME\[/CONFIG\]\[:VERSION\]"):
        open_source("tfds://glue/sst2/2.0.0", data_dir=data_dir)


def test_data_sets_that_are_registered_by_their_module_alone_are_found(tmp_path, monkeypatch, capfd):
    def refuse(self, **_):
        raise OSError(f"no network for {self.info.full_name}")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", refuse)
    with pytest.raises(InputError, match=three_ways("tfds://glue/sst2")) as error:
        open_source("tfds://glue/sst2", data_dir=str(tmp_path))
    assert "no network for glue/sst2" in str(error.value)


def test_configurations_and_versions(data_dir, tmp_path):
    films = Path(data_dir) / "bertjax_films" / "1.0.0"
    for place in (
        "many/one/1.0.0",
        "many/two/1.0.0",
        "several/1.0.0",
        "several/1.9.0",
        "several/1.10.0",
        "single/one/1.0.0",
    ):
        shutil.copytree(films, tmp_path / place)
        info = tmp_path / place / "dataset_info.json"
        described = json.loads(info.read_text()) | {"version": place.rsplit("/", 1)[1]}
        info.write_text(json.dumps(described))

    def folder(address):
        return open_source(address, split="train", data_dir=str(tmp_path)).parts[0]._folder.relative_to(tmp_path)

    assert str(folder("tfds://many/two")) == "many/two/1.0.0"
    assert str(folder("tfds://single")) == "single/one/1.0.0"
    assert str(folder("tfds://several")) == "several/1.10.0"
    assert str(folder("tfds://several:1.9.0")) == "several/1.9.0"
    with pytest.raises(InputError, match=r"several configurations, expected tfds://many/ and one of: one, two"):
        folder("tfds://many")


def test_another_file_format_and_damage_are_named(data_dir, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(data_dir, copy)
    info = copy / "bertjax_films" / "1.0.0" / "dataset_info.json"
    described = json.loads(info.read_text())
    assert described["fileFormat"] == "array_record"
    info.write_text(json.dumps(described | {"fileFormat": "tfrecord"}))
    with pytest.raises(InputError, match=r"as tfrecord, which has no random access; expected array_record"):
        open_source("tfds://bertjax_films", split="train", data_dir=str(copy))
    info.write_text("{")
    with pytest.raises(InputError, match=r"the data set in .*1\.0\.0 cannot be read"):
        open_source("tfds://bertjax_films", split="train", data_dir=str(copy))
    info.write_text(json.dumps(described))
    records = next(copy.rglob("*-train.array_record*"))
    for damaged in (records.read_bytes()[:200], b""):
        records.write_bytes(damaged)
        with pytest.raises(InputError, match=r"tfds://bertjax_films train: is damaged"):
            read_rows("tfds://bertjax_films", DataOptions(data_dir=str(copy)), CLASSIFICATION, role="train")
    records.unlink()
    with pytest.raises(InputError, match=r"tfds://bertjax_films train: is damaged|cannot be read"):
        read_rows("tfds://bertjax_films", DataOptions(data_dir=str(copy)), CLASSIFICATION, role="train")


PROBE = """
import sys
from bertjax.config import DataOptions
from bertjax.data.rows import read_rows
from bertjax.data.tasks import TASKS
{more}
rows = read_rows({path!r}, DataOptions(data_dir={data_dir!r}), TASKS["classification"], split={split!r})
assert len(rows) == 40
print(sorted({{name.partition(".")[0] for name in sys.modules}}
    & {{"tensorflow", "tensorflow_datasets", "array_record", "pyarrow", "jax", "torch"}}))
"""


def imported(tmp_path, **fields) -> list[str]:
    """Which of the large packages a fresh process has imported after it read the rows.

    A package of the name tensorflow is there to be imported: its absence would hide an attempt.
    """
    fake = tmp_path / "fake" / "tensorflow"
    fake.mkdir(parents=True, exist_ok=True)
    (fake / "__init__.py").write_text("")
    path = os.pathsep.join([str(fake.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    program = PROBE.format(**({"more": "", "data_dir": "", "split": ""} | fields))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1].replace("'", '"'))


def test_a_prepared_data_set_is_read_without_its_code_and_without_tensorflow(data_dir, tmp_path):
    found = imported(tmp_path, path="tfds://bertjax_films", data_dir=data_dir, split="train")
    assert {"tensorflow_datasets", "array_record"} <= set(found)
    assert "tensorflow" not in found


def test_preparing_imports_no_tensorflow(tmp_path):
    source = Path(__file__).read_text()
    builder = re.search(r"SPLITS = .*?(?=\n\nclass Away)", source, re.DOTALL)[0]
    more = f"import numpy as np, tensorflow_datasets as tfds\n{builder}"
    (tmp_path / "films.py").write_text(more)
    more = f"sys.path.insert(0, {str(tmp_path)!r})\nimport films"
    found = imported(tmp_path, path="tfds://bertjax_films", data_dir=str(tmp_path / "new"), split="train", more=more)
    assert "tensorflow_datasets" in found
    assert "tensorflow" not in found


def test_reading_a_plain_file_imports_none_of_them(tmp_path):
    path = csv_file(tmp_path / "train.csv", "train")
    assert imported(tmp_path, path=path) == []
    batches = imported(tmp_path, path=path, more="import bertjax.data.features, bertjax.data.batches")
    assert "tensorflow_datasets" not in batches
    assert "tensorflow" not in batches
