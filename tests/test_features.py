"""Rows become word pieces and labels: split without leaks, cached safely, refused with file and line when unusable."""

import dataclasses
import io
import json
import os
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tiny import tiny_tokenizer

from bertjax.config import DataOptions
from bertjax.data import splits, token_files
from bertjax.data.features import load_splits
from bertjax.errors import InputError

REAL = os.environ.get("BERTJAX_REAL_DATA")
ARRAYS = ("offsets", "labels", "rows", "cut")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def load(tmp_path, tokenizer):
    """load(lines of a file, field=value ...) -> Splits; `dev` takes lines too."""

    def load(lines, *, dev=None, name="train.tsv", **fields):
        train = write(tmp_path / name, lines)
        fields = {"cache": "", "dev_rows": None if dev else 1} | fields
        fields["dev"] = write(tmp_path / f"dev{Path(name).suffix}", dev) if dev else ""
        return load_splits(DataOptions(train=train, **fields), tokenizer, positions=512)

    return load


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def table(rows) -> list[str]:
    return ["text\tlabel", *(f"{text}\t{label}" for text, label in rows)]


ROWS = [("good film", "pos"), ("bad film", "neg"), ("very good", "pos"), ("dull plot .", "neg"), ("great", "pos")]


def same(a, b) -> bool:
    pieces = zip(a.pieces(), b.pieces(), strict=True)
    return all(np.array_equal(x, y) for x, y in pieces) and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in ARRAYS
    )


def test_rows_are_the_tokenizers_word_pieces(load, tokenizer):
    loaded = load(table(ROWS), dev=table(ROWS[:2]))
    assert loaded.labels == ("neg", "pos")
    assert loaded.train.labels.tolist() == [1, 0, 1, 0, 1]
    assert loaded.train.labels.dtype == loaded.train.ids.dtype == np.int32
    for i, (text, _) in enumerate(ROWS):
        start, stop = loaded.train.offsets[i : i + 2]
        assert loaded.train.pieces()[0][start:stop].tolist() == tokenizer(text)["input_ids"]
        assert loaded.train.lengths[i] == len(text.split()) + 2
    assert loaded.texts("train") == [(text, None) for text, _ in ROWS]
    assert loaded.texts("dev") == [(text, None) for text, _ in ROWS[:2]]


def test_pairs_are_truncated_as_the_tokenizer_does_and_counted(load, tokenizer):
    long, short = "good " * 9, "bad film"
    lines = ["a\tb\ty", f"{long}\t{short}\tx", f"{short}\t{short}\ty"]
    loaded = load(lines, dev=lines, text="a", text_pair="b", label="y", max_length=8)
    expected = tokenizer(long, short, truncation=True, max_length=8)
    assert loaded.train.pieces()[0][:8].tolist() == expected["input_ids"]
    assert loaded.train.pieces()[1][:8].tolist() == expected["token_type_ids"]
    assert loaded.train.lengths.tolist() == [8, 7]
    assert loaded.train.truncated == 1
    assert loaded.texts("train")[0] == (long.strip(), short)
    assert any("truncated 1 (50.00 %)" in line for line in loaded.summary())


def test_take_keeps_rows_whole(load):
    features = load(table(ROWS), dev=table(ROWS)).train
    order = np.array([3, 0, 3, 4])
    taken = features.take(order)
    for place, row in enumerate(order):
        for got, whole in zip(taken.pieces(), features.pieces(), strict=True):
            expected = whole[features.offsets[row] : features.offsets[row + 1]]
            assert np.array_equal(got[taken.offsets[place] : taken.offsets[place + 1]], expected)
    assert taken.labels.tolist() == features.labels[order].tolist()
    assert taken.rows.tolist() == order.tolist()
    assert len(features.take([])) == 0


def test_regression_labels_are_numbers(load):
    rows = [("good", "4.5"), ("bad", "-1"), ("dull", "1e-3")]
    loaded = load(table(rows), dev=table(rows), task="regression")
    assert loaded.labels == ()
    assert loaded.train.labels.dtype == np.float32
    assert loaded.train.labels.tolist() == np.float32([4.5, -1, 1e-3]).tolist()
    assert loaded.task.metrics == ("pearson", "spearman", "mse")
    assert any("label mean 1.167" in line for line in loaded.summary())


def test_json_values_become_text(load):
    lines = [json.dumps({"text": text, "label": label}) for text, label in [(7, 1), ("good", True), (0.5, 1)]]
    loaded = load(lines, dev=lines, name="train.jsonl")
    assert loaded.labels == ("1", "true")
    assert loaded.texts("train") == [("7", None), ("good", None), ("0.5", None)]


def test_label_names_come_from_the_options_in_their_order(load):
    assert load(table(ROWS), labels=("pos", "other", "neg")).labels == ("pos", "other", "neg")
    loaded = load(table(ROWS), dev=table(ROWS), labels=("pos", "neg"))
    assert loaded.train.labels.tolist() == [0, 1, 0, 1, 0]


def many(n: int = 300) -> list[tuple[str, str]]:
    """Rows of which about half repeat an earlier text, some in other letters."""
    draw = np.random.default_rng(0)
    return [((f"film {k}", f"FILM {k} ")[draw.integers(2)], "xy"[k % 2]) for k in draw.integers(n // 2, size=n)]


@pytest.mark.parametrize("seed", range(5))
def test_equal_texts_stay_on_one_side(load, seed):
    loaded = load(table(many()), dev_rows=40, split_seed=seed)
    sides = [{splits.normal(*text) for text in loaded.texts(split)} for split in ("train", "dev")]
    assert not sides[0] & sides[1]
    rows = np.concatenate([loaded.train.rows, loaded.dev.rows])
    assert sorted(rows) == list(range(300))
    assert len(loaded.dev) == 40
    assert loaded.summary()[-1].endswith("dev rows whose text is also in train: 0 (0.00 %)")


def test_the_split_depends_on_the_seed_alone(load):
    first, again = (load(table(many()), dev_rows=40) for _ in range(2))
    assert same(first.train, again.train)
    assert same(first.dev, again.dev)
    other = load(table(many()), dev_rows=40, split_seed=1)
    assert set(other.dev.rows) != set(first.dev.rows)


def test_samples_are_nested_and_leave_the_held_out_rows_alone(load):
    whole = load(table(many()), dev_rows=40)
    small, large = (load(table(many()), dev_rows=40, train_rows=rows) for rows in (20, 100))
    assert (len(small.train), len(large.train)) == (20, 100)
    assert set(small.train.rows) < set(large.train.rows) < set(whole.train.rows)
    assert same(small.dev, whole.dev)
    assert load(table(ROWS), dev=table(many()), dev_rows=7, labels=("neg", "pos", "x", "y")).dev.rows.size == 7


def test_a_tenth_is_held_out_unless_told(load):
    assert len(load(table(many()), dev_rows=None).dev) == 30


def test_a_text_with_many_copies_is_held_out_as_often_as_its_place_among_texts():
    keys = np.array(["copied"] * 30 + list(range(970)))
    held = [splits.hold_out(keys, 100, seed)[1] for seed in range(20)]
    assert all(len(rows) == 100 for rows in held)
    assert all((rows >= 30).all() for rows in held)  # 30 of 100 rows would let one text decide the result
    few = np.array(["copied"] * 3 + list(range(97)))
    share = np.mean([(splits.hold_out(few, 60, seed)[1] < 3).any() for seed in range(400)])
    assert share == pytest.approx(0.6, abs=0.08)  # drawn row by row it would be about 0.94


def test_groups_that_cannot_add_up_give_fewer_rows(load):
    doubled = table([(f"film {i // 2}", "xy"[i // 2 % 2]) for i in range(40)])
    loaded = load(doubled, dev_rows=5)
    assert len(loaded.dev) == 4
    assert any("5 asked for: equal texts stay together" in line for line in loaded.summary())


def test_summary_counts_repeats_contradictions_and_leaks(load):
    train = [("good", "p"), ("Good", "n"), ("bad", "n"), ("dull", "n")]
    loaded = load(table(train), dev=table([("GOOD ", "p"), ("film", "n")]))
    line = loaded.summary()[-1]
    assert "repeated texts: 1 in train, 0 in dev" in line
    assert "another label: 2;" in line
    assert "also in train: 1 (50.00 %)" in line
    assert len(loaded.dev) == 2
    assert any("n 3, p 1; most frequent n 75.0 %" in line for line in loaded.summary())


class TestCache:
    @pytest.fixture
    def folder(self, tmp_path):
        return tmp_path / "cache"

    def files(self, folder):
        return sorted(file.parent for file in folder.rglob("entry.json"))

    def test_the_second_time_nothing_is_tokenized(self, load, folder, monkeypatch):
        cold = load(table(ROWS), dev=table(ROWS[:2]), cache=str(folder))
        assert len(self.files(folder)) == 2
        monkeypatch.setattr("bertjax.data.tokens._encode", lambda *_: pytest.fail("tokenized again"))
        warm = load(table(ROWS), dev=table(ROWS[:2]), cache=str(folder))
        assert same(cold.train, warm.train)
        assert same(cold.dev, warm.dev)
        assert ("tokenized in" in cold.notes[0], "read from" in warm.notes[0]) == (True, True)

    def test_splits_share_the_file_and_whatever_changes_word_pieces_does_not(self, load, folder):
        load(table(ROWS), cache=str(folder))
        load(table(ROWS), cache=str(folder), dev_rows=2, train_rows=2, split_seed=5)
        assert len(self.files(folder)) == 1
        variants = (
            {"max_length": 4},
            {"too_long": "error"},
            {"text": "label", "dev_rows": 2},
            {"text_pair": "label"},
            {"encoding": "ascii"},
        )
        for count, change in enumerate(variants, start=2):
            load(table(ROWS), cache=str(folder), **change)
            assert len(self.files(folder)) == count, change
        load(table(ROWS[::-1]), cache=str(folder))
        assert len(self.files(folder)) == len(variants) + 2

    def test_another_tokenizer_has_another_file(self, load, folder, tmp_path, tokenizer):
        load(table(ROWS), cache=str(folder))
        other = tiny_tokenizer(tmp_path / "other")
        other.add_tokens(["film"])
        options = DataOptions(train=str(tmp_path / "train.tsv"), cache=str(folder), dev_rows=1)
        load_splits(options, other, positions=512)
        assert len(self.files(folder)) == 2
        tokenizer(["good"], truncation=True, max_length=3, padding="max_length")  # leaves its mark on the tokenizer
        load(table(ROWS), cache=str(folder))
        assert len(self.files(folder)) == 2

    @pytest.mark.parametrize("name", [*token_files.ARRAYS, "entry"])
    @pytest.mark.parametrize(
        "damage", ["cut short", "a byte changed", "something else", "empty", "pickle", "fewer", "another type", "gone"]
    )
    def test_a_damaged_or_foreign_entry_is_rebuilt(self, load, folder, name, damage):
        good = load(table(ROWS), dev=table(ROWS[:4]), cache=str(folder))
        for entry in self.files(folder):
            file = entry / f"{name}.{'json' if name == 'entry' else 'npy'}"
            raw = file.read_bytes()
            file.unlink()  # what maps it keeps it
            changed = {
                "cut short": raw[:-1],
                "a byte changed": raw[:-2] + bytes([raw[-2] ^ 1]) + raw[-1:],
                "something else": b"x",
                "empty": b"",
            }
            if damage in changed:
                file.write_bytes(changed[damage])
            elif damage == "gone":
                continue
            elif name == "entry":
                file.write_text({"pickle": "[]", "fewer": "{}", "another type": '{"key": 1}'}[damage])
            else:
                stored = np.load(io.BytesIO(raw))
                other = {"pickle": np.array([{}, None]), "fewer": stored[:-1], "another type": stored.astype("f8")}
                np.save(file, other[damage])
        again = load(table(ROWS), dev=table(ROWS[:4]), cache=str(folder))
        assert "tokenized in" in again.notes[0]
        assert same(good.train, again.train) and same(good.dev, again.dev)
        assert "read from" in load(table(ROWS), dev=table(ROWS[:4]), cache=str(folder)).notes[0]

    def test_word_pieces_stay_in_files_and_an_entry_is_whole_or_not_there(self, load, folder, monkeypatch):
        monkeypatch.setattr("bertjax.data.tokens._CHUNK", 3)
        mapped = load(table(ROWS), dev=table(ROWS[:4]), cache=str(folder))
        assert isinstance(mapped.train.ids, np.memmap) and isinstance(mapped.train.types, np.memmap)
        plain = load(table(ROWS), dev=table(ROWS[:4]), cache="")
        assert not isinstance(plain.train.ids, np.memmap)
        assert same(mapped.train, plain.train) and same(mapped.dev, plain.dev)
        for entry in self.files(folder):
            shutil.rmtree(entry)
        append = token_files._Growing.append

        def full(self, values):
            if self._count:
                raise OSError(28, "No space left on device")
            append(self, values)

        monkeypatch.setattr("bertjax.data.token_files._Growing.append", full)
        again = load(table(ROWS), dev=table(ROWS[:2]), cache=str(folder))
        assert "not cached" in again.notes[0] and "No space left" in again.notes[0]
        assert same(again.train, plain.train)
        assert [path for path in (folder / "tokens").iterdir() if path not in self.files(folder)] == []

    def test_what_a_killed_process_left_long_ago_is_removed(self, load, folder):
        load(table(ROWS), cache=str(folder))
        (entry,) = self.files(folder)
        old, new = (entry.parent / f".{entry.name}.tmp-{name}" for name in ("old", "new"))
        for left in (old, new):
            left.mkdir()
            (left / "ids.npy").write_bytes(b"")
        for path in (old / "ids.npy", old):
            os.utime(path, (0, 0))
        shutil.rmtree(entry)
        load(table(ROWS), cache=str(folder))
        assert entry.is_dir() and new.is_dir() and not old.exists()

    def test_a_folder_that_cannot_be_made_costs_only_the_cache(self, load, tmp_path):
        (tmp_path / "file").write_text("")
        loaded = load(table(ROWS), cache=str(tmp_path / "file"))
        assert "not cached (" in loaded.notes[0]


BAD_ROWS = {
    "empty text": ([*ROWS, (" ", "pos")], {}, r"train\.tsv:7: column 'text' is empty"),
    "empty label": ([("good", ""), *ROWS], {}, r"train\.tsv:2: column 'label' is empty"),
    "one class": (ROWS[::2], {}, r"all 3 rows have the label 'pos', expected at least two"),
    "no column": (
        ROWS,
        {"label": "lable"},
        r"no column 'lable' \(--data\.label\), .*text, label; did you mean 'label'\?",
    ),
    "no second column": (ROWS, {"text_pair": "b"}, r"no column 'b' \(--data\.text_pair\), expected one of text, label"),
    "not a number": (ROWS, {"task": "regression"}, r"train\.tsv:2: column 'label' is 'pos', .*\(4 more such rows\)"),
    "nan": ([("a", "1"), ("b", "nan")], {"task": "regression"}, r"train\.tsv:3: .*'nan', expected a finite number"),
    "infinite": ([("a", "1"), ("b", "1e39")], {"task": "regression"}, r"train\.tsv:3: .*'1e39'"),
    "underscore": ([("a", "1"), ("b", "1_0")], {"task": "regression"}, r"train\.tsv:3: .*'1_0'"),
    "too long": (
        [*ROWS, ("good " * 9, "pos")],
        {"max_length": 8, "too_long": "error"},
        r"train\.tsv:7: 11 word pieces",
    ),
    "unknown label": (
        [*ROWS, ("a", "poss")],
        {"labels": ("neg", "pos")},
        r"tsv:7: label 'poss', .*neg, pos; did you mean 'pos'",
    ),
    "label twice": (ROWS, {"labels": ("pos", "pos")}, r"--data\.labels: got pos, pos, expected at least two different"),
    "all held out": (ROWS, {"dev_rows": 5}, r"--data\.dev_rows=5: the training file has 5 rows"),
    "too many rows": (ROWS, {"train_rows": 5}, r"--data\.train_rows: .*only 4 rows to draw from, got 5"),
    "no rows": (ROWS, {"train_rows": 0}, r"--data\.train_rows=0: expected at least 1"),
    "one text": ([("a", "x"), ("A", "y"), ("a", "x")], {"dev_rows": 1}, r"every text .* occurs more often"),
    "too short a limit": (ROWS, {"max_length": 2}, r"--data\.max_length=2: expected at least 3"),
    "negative seed": (ROWS, {"split_seed": -1}, r"--data\.split_seed=-1"),
    "labels of scores": (
        ROWS,
        {"task": "regression", "labels": ("a", "b")},
        r"--data\.labels: got a, b, but the task regression",
    ),
    "unknown task": (ROWS, {"task": "regresion"}, r"no such task; did you mean 'regression'\?"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_unusable_rows_and_options_are_named(load, case):
    rows, fields, message = BAD_ROWS[case]
    with pytest.raises(InputError, match=message):
        load(table(rows), **fields)


def test_dev_rows_are_checked_like_training_rows(load):
    with pytest.raises(InputError, match=r"dev\.tsv:3: label 'maybe', expected one of neg, pos"):
        load(table(ROWS), dev=table([ROWS[0], ("film", "maybe")]))
    with pytest.raises(InputError, match=r"--data\.dev_rows: .*dev\.tsv: there are only 2 rows to draw from, got 3"):
        load(table(ROWS), dev=table(ROWS[:2]), dev_rows=3)


@pytest.mark.parametrize(
    ("value", "message"),
    [("null", "is missing"), ("[1]", "is a list, expected a text"), ('"\\ud800"', "has the lone surrogate")],
)
def test_json_values_that_are_no_text(load, value, message):
    lines = ['{"text": "a", "label": 1}', f'{{"text": {value}, "label": 0}}', '{"label": 1}']
    with pytest.raises(InputError, match=rf"train\.jsonl:2: column 'text' {message}"):
        load(lines, name="train.jsonl")


@pytest.mark.parametrize(
    ("stored", "fields", "message"),
    [
        (("no", "yes"), {}, r"train\.tsv:2: label 'pos', expected one of no, yes"),
        (("pos", "neg"), {"labels": ("neg", "pos")}, r"--data\.labels: got neg, pos, expected .* order: pos, neg"),
        ((), {}, r"--data\.task=classification: the model predicts a number"),
        (("a", "b"), {"task": "regression"}, r"--data\.task=regression: the model has the labels a, b"),
    ],
)
def test_rows_that_do_not_fit_the_models_labels_are_refused(tmp_path, tokenizer, stored, fields, message):
    options = DataOptions(train=write(tmp_path / "train.tsv", table(ROWS)), dev_rows=1, cache="", **fields)
    with pytest.raises(InputError, match=message):
        load_splits(options, tokenizer, positions=512, labels=stored)


def test_the_models_labels_decide_the_numbers(tmp_path, tokenizer):
    options = DataOptions(train=write(tmp_path / "train.tsv", table(ROWS[::2])), dev_rows=1, cache="")
    loaded = load_splits(options, tokenizer, positions=512, labels=["so-so", "neg", "pos"])
    assert loaded.labels == ("so-so", "neg", "pos")
    assert loaded.train.labels.tolist() == [2, 2]


def test_more_word_pieces_than_positions_is_refused_before_anything_is_read(tokenizer):
    options = DataOptions(train="missing.csv", max_length=129)
    with pytest.raises(InputError, match=r"--data\.max_length=129: the model has 128 position embeddings"):
        load_splits(options, tokenizer, positions=128)


def test_fingerprints_tell_files_apart(load):
    loaded = load(table(ROWS), dev=table(ROWS[:2]))
    assert sorted(Path(path).name for path in loaded.fingerprints) == ["dev.tsv", "train.tsv"]
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in loaded.fingerprints.values())
    assert len(set(loaded.fingerprints.values())) == 2


@pytest.mark.skipif(REAL is None, reason="BERTJAX_REAL_DATA names no folder with the real data sets")
def test_published_counts_of_labels(tokenizer):
    options = DataOptions(
        train=f"{REAL}/SST-2/dev.tsv", dev=f"{REAL}/SST-2/dev.tsv", text="sentence", label="label", cache=""
    )
    loaded = load_splits(options, tokenizer, positions=512)
    assert Counter(loaded.dev.labels.tolist()) == {0: 428, 1: 444}
    pairs = dataclasses.replace(
        options,
        train=f"{REAL}/STS-B/train.tsv",
        dev=f"{REAL}/STS-B/dev.tsv",
        task="regression",
        text="sentence1",
        text_pair="sentence2",
        label="score",
    )
    loaded = load_splits(pairs, tokenizer, positions=512)
    assert (len(loaded.train), len(loaded.dev)) == (5_749, 1_500)
    assert (loaded.train.labels.min(), loaded.train.labels.max()) == (0, 5)
