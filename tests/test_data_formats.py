"""The same rows give the same features from every format, compressed or not, from one file or from several."""

import bz2
import dataclasses
import gzip
import json
import lzma
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny import tiny_tokenizer

from bertjax.config import DataOptions, RunConfig, from_dict, to_json
from bertjax.data.features import load_splits
from bertjax.data.rows import read_rows
from bertjax.data.sources import open_source
from bertjax.data.tasks import TASKS
from bertjax.data.text_files import COMPRESSIONS
from bertjax.errors import InputError

ROWS = [(f"film {i} é, very", ("neg", "pos")[i % 3 == 0]) for i in range(20)]
NUMBERED = [(text, ("neg", "pos").index(label)) for text, label in ROWS]
ARRAYS = ("ids", "offsets", "types", "labels", "rows", "cut")
CLASSIFICATION = TASKS["classification"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def zstandard(raw: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(raw)
    return sink.getvalue().to_pybytes()


COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstandard}


def text_file(ending: str, rows=ROWS) -> bytes:
    lines = {
        ".csv": ["text,label", *(f'"{text}",{label}' for text, label in rows)],
        ".tsv": ["text\tlabel", *(f"{text}\t{label}" for text, label in rows)],
        ".jsonl": [json.dumps({"text": text, "label": label}) for text, label in rows],
    }
    return "".join(f"{line}\n" for line in lines[ending]).encode()


def parquet(path: Path, rows=ROWS, names=None, **columns) -> str:
    """Writes a Parquet file; with names, labels are class numbers as `datasets` writes them."""
    texts, labels = [text for text, _ in rows], [label for _, label in rows]
    if names:
        labels = [names.index(label) if label in names else label for label in labels]
    table = pa.table({"text": texts, "label": labels} | columns)
    if names:
        info = {"info": {"features": {"text": {"_type": "Value"}, "label": {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=7)
    return str(path)


def load(train, tokenizer, **fields):
    options = DataOptions(**({"train": train, "cache": "", "dev_rows": 4} | fields))
    return load_splits(options, tokenizer, positions=512)


def same(a, b) -> bool:
    return a.labels == b.labels and all(
        np.array_equal(getattr(getattr(a, split), name), getattr(getattr(b, split), name))
        for split in ("train", "dev")
        for name in ARRAYS
    )


@pytest.fixture
def reference(tmp_path, tokenizer):
    path = tmp_path / "reference.csv"
    path.write_bytes(text_file(".csv"))
    return load(str(path), tokenizer)


@pytest.mark.parametrize("packed", ["", *COMPRESSIONS])
@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl"])
def test_text_files_plain_and_compressed(tmp_path, tokenizer, reference, ending, packed):
    path = tmp_path / f"rows{ending}{packed}"
    path.write_bytes(COMPRESS.get(packed, bytes)(text_file(ending)))
    assert same(load(str(path), tokenizer), reference)
    lines = read_rows(str(path), DataOptions(), CLASSIFICATION)
    assert lines.where(3) == f"{path}:{4 + (ending != '.jsonl')}"


@pytest.mark.parametrize("packed", COMPRESSIONS)
@pytest.mark.parametrize("damage", ["cut short", "other bytes"])
def test_a_damaged_compressed_file_is_an_error_that_names_it(tmp_path, packed, damage):
    draw = np.random.default_rng(0)
    rows = [(f"film {draw.integers(10**9)}", "pos") for _ in range(2000)]
    raw = COMPRESS[packed](text_file(".csv", rows))
    path = tmp_path / f"rows.csv{packed}"
    path.write_bytes(raw[: len(raw) // 2] if damage == "cut short" else b"text,label\na,b\n" * 20)
    with pytest.raises(InputError, match=rf"rows\.csv\{packed}:\d+: not a whole \{packed} file"):
        read_rows(str(path), DataOptions(on_bad_row="skip"), CLASSIFICATION)


@pytest.mark.parametrize("names", [None, ["neg", "pos"]])
def test_parquet(tmp_path, tokenizer, reference, names):
    path = parquet(tmp_path / "rows.parquet", names=names)
    assert same(load(path, tokenizer), reference)


def test_parquet_columns_of_other_types(tmp_path):
    dictionary = pa.array([label for _, label in ROWS]).dictionary_encode()
    path = tmp_path / "rows.parquet"
    nested = [{"label": "no"}] * 20
    texts = pa.array([text.encode() for text, _ in ROWS], pa.binary())
    pq.write_table(pa.table({"nested": nested, "text": texts, "label": dictionary, "n": range(20)}), path)
    rows = read_rows(str(path), DataOptions(), CLASSIFICATION)
    assert [(text, label) for (text, _), label in zip(rows.texts, rows.labels, strict=True)] == ROWS
    scores = read_rows(str(path), DataOptions(label="n"), TASKS["regression"])
    assert scores.labels == list(range(20))


def test_declared_class_names_decide_the_order_unless_told(tmp_path, tokenizer):
    path = parquet(tmp_path / "rows.parquet", names=["pos", "neg", "never"])
    loaded = load(path, tokenizer)
    assert loaded.labels == ("pos", "neg", "never")
    assert [label for _, label in ROWS] == read_rows(path, DataOptions(), CLASSIFICATION).labels
    assert load(path, tokenizer, labels=("neg", "pos")).labels == ("neg", "pos")


PARQUET_FAULTS = {
    "empty": ({"rows": [*ROWS, (" ", "pos")]}, "column 'text' is empty"),
    "null": ({"rows": [*ROWS, (None, "pos")]}, "column 'text' is missing"),
    "unlabelled": ({"rows": [*ROWS, ("a", -1)], "names": ["neg", "pos"]}, r"column 'label' is -1: .* not labelled"),
    "no class": ({"rows": [*ROWS, ("a", 2)], "names": ["neg", "pos"]}, "column 'label' is 2, expected 0 to 1"),
    "unknown label": ({"rows": [*ROWS, ("a", "poss")]}, "label 'poss', expected one of neg, pos; did you mean 'pos'"),
}


@pytest.mark.parametrize("case", PARQUET_FAULTS)
def test_rows_of_parquet_that_cannot_be_used(tmp_path, tokenizer, case, reference):
    contents, message = PARQUET_FAULTS[case]
    path = parquet(tmp_path / "rows.parquet", **contents)
    with pytest.raises(InputError, match=rf"rows\.parquet: row 20: {message}"):
        load(path, tokenizer, labels=("neg", "pos"))
    loaded = load(path, tokenizer, labels=("neg", "pos"), on_bad_row="skip")
    assert same(loaded, reference)
    assert [row["where"] for row in loaded.bad_rows()] == [f"{path}: row 20"]


def test_binary_text_must_be_utf8(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": [b"na\xefve", b"good"], "label": ["1", "0"]}), path)
    with pytest.raises(InputError, match=r"row 0: a cell has the byte 0xef, which is not valid utf-8"):
        read_rows(str(path), DataOptions(), CLASSIFICATION)
    assert len(read_rows(str(path), DataOptions(on_bad_row="skip"), CLASSIFICATION)) == 1


def test_parquet_files_that_cannot_be_used(tmp_path):
    path = tmp_path / "rows.parquet"
    for contents in (b"", b"text,label\na,b\n"):
        path.write_bytes(contents)
        with pytest.raises(InputError, match=r"rows\.parquet: is no readable Parquet file"):
            open_source(str(path))
    draw = np.random.default_rng(0)
    raw = Path(parquet(path, [(f"film {draw.integers(10**9)}", "pos") for _ in range(2000)])).read_bytes()
    path.write_bytes(raw[:4] + b"\xff" * 2000 + raw[2004:])
    with pytest.raises(InputError, match=r"rows\.parquet: is damaged after row 0"):
        read_rows(str(path), DataOptions(), CLASSIFICATION)
    pq.write_table(pa.table({"text": pa.array([], pa.string()), "label": pa.array([], pa.string())}), path)
    with pytest.raises(InputError, match=r"rows\.parquet: has no rows"):
        read_rows(str(path), DataOptions(on_bad_row="skip"), CLASSIFICATION)
    with pytest.raises(InputError, match=r"no column 'lable' .* did you mean 'label'"):
        read_rows(str(path), DataOptions(label="lable"), CLASSIFICATION)


class TestSeveral:
    @pytest.fixture
    def parts(self, tmp_path):
        """Three files of three formats which together hold ROWS."""
        (tmp_path / "part-1.csv").write_bytes(text_file(".csv", ROWS[:7]))
        (tmp_path / "part-2.jsonl.gz").write_bytes(gzip.compress(text_file(".jsonl", ROWS[7:9])))
        return [
            *(str(tmp_path / n) for n in ("part-1.csv", "part-2.jsonl.gz")),
            parquet(tmp_path / "part-3.parquet", ROWS[9:]),
        ]

    def test_several_paths_and_a_pattern_are_read_in_order(self, parts, tmp_path, tokenizer, reference):
        assert same(load(tuple(parts), tokenizer), reference)
        pattern = load(f"{tmp_path}/part-*", tokenizer)
        assert same(pattern, reference)
        assert list(pattern.fingerprints) == parts
        rows = read_rows(parts, DataOptions(), CLASSIFICATION)
        assert [rows.where(i) for i in (0, 6, 7, 8, 9, 19)] == [
            f"{parts[0]}:2",
            f"{parts[0]}:8",
            f"{parts[1]}:1",
            f"{parts[1]}:2",
            f"{parts[2]}: row 0",
            f"{parts[2]}: row 10",
        ]

    def test_places_stay_right_when_rows_are_left_out(self, parts, tmp_path):
        (tmp_path / "part-2.jsonl.gz").write_bytes(gzip.compress(b'{"text": "", "label": 1}\n{"text": "a"}\n'))
        (tmp_path / "part-1.csv").write_bytes(text_file(".csv", [(" ", "pos"), *ROWS[:2]]))
        rows = read_rows(parts, DataOptions(on_bad_row="skip"), CLASSIFICATION)
        assert [bad.where for bad in rows.bad] == [f"{parts[0]}:2", f"{parts[1]}:1", f"{parts[1]}:2"]
        assert [rows.where(i) for i in range(3)] == [f"{parts[0]}:3", f"{parts[0]}:4", f"{parts[2]}: row 0"]

    def test_the_cache_is_keyed_by_all_files(self, parts, tmp_path, tokenizer):
        cache = tmp_path / "cache"

        def notes(**fields):
            return load(f"{tmp_path}/part-*", tokenizer, cache=str(cache), **fields).notes[0]

        assert "tokenized in" in notes()
        assert "read from" in notes()
        parquet(Path(parts[2]), [*ROWS[9:-1], ("other film", "pos")])
        assert "tokenized in" in notes()

    def test_left_out_rows_are_part_of_the_cache_key(self, tmp_path, tokenizer):
        path = tmp_path / "rows.csv"
        path.write_text("text,label,other\ngood,pos,neg\nbad,,neg\ndull plot,neg,\nfilm,pos,pos\n")
        fields = {"cache": str(tmp_path / "cache"), "dev_rows": 1, "on_bad_row": "skip"}
        for label in ("label", "other"):
            loaded = load(str(path), tokenizer, label=label, **fields)
            plain = load(str(path), tokenizer, **(fields | {"label": label, "cache": ""}))
            assert same(loaded, plain)
            assert "tokenized in" in loaded.notes[0]

    def test_faults(self, parts, tmp_path):
        other = tmp_path / "other.csv"
        other.write_text("text,stars\na,1\n")
        with pytest.raises(InputError, match=r"other\.csv: has the columns text, stars, expected .*part-1\.csv"):
            open_source([parts[0], str(other)])
        with pytest.raises(InputError, match=r"part-1\.csv: is given twice"):
            open_source([parts[0], f"{tmp_path}/part-*"])
        with pytest.raises(InputError, match=r"nothing-\*\.csv: no file matches this pattern"):
            open_source(f"{tmp_path}/nothing-*.csv")
        with pytest.raises(InputError, match="expected a file, a folder or an address"):
            open_source(())
        with pytest.raises(InputError, match=r"part-3\.parquet: column 'label' has the classes neg, pos, expected"):
            open_source([parts[0], parquet(Path(parts[2]), names=["neg", "pos"])])
        with pytest.raises(InputError, match=r"--data\.train_split=test: .*part-1\.csv is no folder"):
            open_source(parts[0], split="test", role="train")

    def test_a_file_whose_name_looks_like_a_pattern_is_that_file(self, tmp_path):
        path = tmp_path / "rows[1].csv"
        path.write_bytes(text_file(".csv"))
        assert list(open_source(str(path)).fingerprints) == [str(path)]

    def test_patterns_are_shown_as_they_were_given(self, tmp_path, monkeypatch):
        for name in ("a/x/rows.csv", "a/y/rows.csv"):
            (tmp_path / name).parent.mkdir(parents=True)
            (tmp_path / name).write_bytes(text_file(".csv"))
        monkeypatch.chdir(tmp_path)
        assert list(open_source("a/*/rows.csv").fingerprints) == ["a/x/rows.csv", "a/y/rows.csv"]
        assert list(open_source("**/*.csv").fingerprints) == ["a/x/rows.csv", "a/y/rows.csv"]
        monkeypatch.setenv("HOME", str(tmp_path))
        assert list(open_source("~/a/x/*.csv").fingerprints) == ["~/a/x/rows.csv"]
        with pytest.raises(InputError, match=r"package://bertjax/data/rows\.py: has the ending"):
            open_source("package://bertjax/data/ro*.py")

    def test_the_command_line_takes_one_or_several(self):
        import tyro

        def parsed(*arguments):
            return tyro.cli(RunConfig, args=list(arguments), use_underscores=True).data

        assert parsed("--data.train=a.csv", "--data.label=y").train == "a.csv"
        assert parsed("--data.train", "a.csv", "b.csv", "--data.dev", "c.csv").train == ("a.csv", "b.csv")
        assert parsed("--data.dev", "a.csv", "b.csv").dev == ("a.csv", "b.csv")
        config = RunConfig(data=DataOptions(train=("a.csv", "b.csv"), dev="c.csv"))
        assert from_dict(RunConfig, json.loads(to_json(config))) == config


SHARDS = ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001")
CARD = """---
language: en
dataset_info:
  features:
  - name: text
    dtype: string
  - name: label
    dtype:
      class_label:
        names:
          '0': neg
          '1': pos
  splits:
  - name: train
---
# A data set
"""


class TestFolders:
    """Data sets as the Hugging Face hub lays them out."""

    @pytest.mark.parametrize("names", ["file", "card", "config card"])
    @pytest.mark.parametrize(
        "layout",
        [
            [f"data/{name}.parquet" for name in SHARDS],
            [f"{name}-0a1b2c3d.parquet" for name in SHARDS],
            ["train/0000.parquet", "train/0001.parquet", "validation/0000.parquet"],
            ["train/a.parquet", "train/b.parquet", "valid/a.parquet"],
        ],
        ids=["data folder", "hashes", "converted", "folders"],
    )  # fmt: skip
    def test_splits_and_label_names_are_found(self, tmp_path, tokenizer, layout, names):
        (tmp_path / "train.csv").write_bytes(text_file(".csv"))
        (tmp_path / "dev.csv").write_bytes(text_file(".csv", ROWS[:5]))
        expected = load(str(tmp_path / "train.csv"), tokenizer, dev=str(tmp_path / "dev.csv"), dev_rows=None)
        folder = tmp_path / "films" if names == "config card" else tmp_path / "set"
        for name, rows in zip(layout, (NUMBERED[:13], NUMBERED[13:], NUMBERED[:5]), strict=True):
            parquet(folder / name, rows)
            if names == "file":
                labelled = [(text, ("neg", "pos")[label]) for text, label in rows]
                parquet(folder / name, labelled, names=["neg", "pos"])
        if names == "card":
            (folder / "README.md").write_text(CARD)
        if names == "config card":  # the card of several data sets lies above them
            infos = CARD.replace(
                "dataset_info:\n", "dataset_info:\n- config_name: other\n  features: []\n- config_name: films\n"
            )
            (tmp_path / "README.md").write_text(infos)
        for fields in ({"dev": str(folder)}, {"dev_split": "validation"}):
            loaded = load(str(folder), tokenizer, dev_rows=None, **fields)
            assert same(loaded, expected)
        other = load(str(folder), tokenizer, train_split="validation", dev_split="train", dev_rows=None)
        assert (len(other.train), len(other.dev)) == (5, 20)

    def test_the_card_may_name_the_files(self, tmp_path):
        for name, rows in (("a/one.parquet", ROWS[:5]), ("a/two.parquet", ROWS[5:9]), ("b/one.parquet", ROWS[9:])):
            parquet(tmp_path / name, rows)
        (tmp_path / "README.md").write_text(
            "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: a/*\n"
            "  - split: test\n    path:\n    - b/one.parquet\n---\n"
        )
        assert len(read_rows(str(tmp_path), DataOptions(), CLASSIFICATION, role="train")) == 9
        assert len(read_rows(str(tmp_path), DataOptions(), CLASSIFICATION, split="test")) == 11
        (tmp_path / "b/one.parquet").unlink()
        with pytest.raises(InputError, match=r"has no file b/one\.parquet, which README\.md names for the split test"):
            open_source(str(tmp_path))

    def test_several_data_sets_in_one_folder_are_told_apart(self, tmp_path):
        for name in ("sst2", "cola"):
            parquet(tmp_path / name / "train-00000-of-00001.parquet")
        with pytest.raises(InputError, match=r"holds 2 data sets, in cola, sst2; expected .* for example .*/sst2"):
            open_source(str(tmp_path))
        (tmp_path / "README.md").write_text(
            "---\nconfigs:\n- config_name: cola\n  data_files: cola/train-*\n"
            "- config_name: sst2\n  data_files:\n  - split: train\n    path: sst2/train-*\n---\n"
        )
        with pytest.raises(InputError, match=r"holds 2 data sets \(cola, sst2\), .* for example .*/cola"):
            open_source(str(tmp_path))
        assert len(read_rows(f"{tmp_path}/sst2/", DataOptions(), CLASSIFICATION)) == 20

    def test_which_split_is_read(self, tmp_path):
        parquet(tmp_path / "test.parquet", ROWS[:3])
        for role in ("train", "dev", "data"):  # the only one
            assert len(read_rows(str(tmp_path), DataOptions(), CLASSIFICATION, role=role)) == 3
        parquet(tmp_path / "train.parquet", ROWS[:5])
        assert len(read_rows(str(tmp_path), DataOptions(), CLASSIFICATION, role="train")) == 5
        with pytest.raises(InputError, match=r"has several splits, expected --split to name one of: test, train"):
            open_source(str(tmp_path))
        with pytest.raises(InputError, match=r"has no split 'validation', expected --data\.dev_split to name one of"):
            open_source(str(tmp_path), role="dev")
        with pytest.raises(InputError, match=r"has no split 'trian', expected --data\.train_split"):
            open_source(str(tmp_path), split="trian", role="train")

    def test_folders_of_text_files_and_hidden_files(self, tmp_path):
        (tmp_path / "train.csv.gz").write_bytes(gzip.compress(text_file(".csv")))
        (tmp_path / ".cache").mkdir()
        (tmp_path / ".cache" / "test.parquet").write_bytes(b"half a download")
        rows = read_rows(str(tmp_path), DataOptions(), CLASSIFICATION)
        assert (len(rows), rows.where(0)) == (20, f"{tmp_path}/train.csv.gz:2")

    def test_what_save_to_disk_wrote_is_refused_with_a_way_out(self, tmp_path):
        (tmp_path / "data-00000-of-00001.arrow").write_bytes(b"")
        with pytest.raises(InputError, match=r"without data files, .* write it by to_parquet"):
            open_source(str(tmp_path))

    @pytest.mark.parametrize(
        "card", ["---\n[", "no block", "---\n- 1\n---\n", "---\ndataset_info: 3\nconfigs: x\n---\n"]
    )
    def test_a_card_that_says_nothing_is_no_error(self, tmp_path, card):
        (tmp_path / "README.md").write_text(f"---\n{card}\n---\n")
        parquet(tmp_path / "train.parquet")
        assert len(read_rows(str(tmp_path), DataOptions(), CLASSIFICATION)) == 20


def test_scores_that_are_all_minus_one_are_no_labels(tmp_path, tokenizer):
    path = parquet(tmp_path / "test.parquet", [(text, -1.0) for text, _ in ROWS])
    with pytest.raises(InputError, match=r"column 'label' is -1 in all 20 rows: the rows are not labelled"):
        load(path, tokenizer, task="regression")
    assert len(read_rows(path, dataclasses.replace(DataOptions(), label="none"), CLASSIFICATION, labelled=False)) == 20
