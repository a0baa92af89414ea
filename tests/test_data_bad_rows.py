"""Every kind of malformed row is named with file and line, or skipped, counted and listed where that is asked for."""

import json
import re
from pathlib import Path

import pytest
from tiny import tiny_tokenizer

from bertjax.config import DataOptions
from bertjax.data.features import load_splits
from bertjax.data.records import LONGEST_ROW
from bertjax.data.rows import RowReader, read_rows
from bertjax.data.tasks import TASKS
from bertjax.errors import InputError

GOOD = [("good film", "1"), ("bad film", "0"), ("dull plot", "0"), ("great", "1")]
CSV = [b"text,label", *(f"{text},{label}".encode() for text, label in GOOD)]
TSV = [line.replace(b",", b"\t") for line in CSV]
JSONL = [json.dumps({"text": text, "label": label}).encode() for text, label in GOOD]
NAMES = {".csv": CSV, ".tsv": TSV, ".jsonl": JSONL}

BAD = {
    # name: (ending, the malformed line, task, message). The line is put after the second good row.
    "missing column, csv": (".csv", b"dull", "1 field, expected 2 as in the header"),
    "missing column, tsv": (".tsv", b"dull", "1 field, expected 2 as in the header"),
    "missing column, jsonl": (".jsonl", b'{"label": "1"}', "column 'text' is missing"),
    "null": (".jsonl", b'{"text": null, "label": "1"}', "column 'text' is missing"),
    "extra column, csv": (".csv", b"dull,0,1", "3 fields, expected 2 as in the header"),
    "extra column, tsv": (".tsv", b"dull\t0\t1", "3 fields, expected 2 as in the header"),
    "unknown label, csv": (".csv", b"dull,2", "label '2', expected one of 0, 1"),
    "unknown label, jsonl": (".jsonl", b'{"text": "dull", "label": 2}', "label '2', expected one of 0, 1"),
    "empty text, csv": (".csv", b" ,0", "column 'text' is empty"),
    "empty text, tsv": (".tsv", b" \t0", "column 'text' is empty"),
    "empty text, jsonl": (".jsonl", b'{"text": "", "label": "0"}', "column 'text' is empty"),
    "empty label": (".csv", b"dull,", "column 'label' is empty"),
    "NaN label": (".jsonl", b'{"text": "dull", "label": NaN}', r"column 'label' is not a number \(NaN\)"),
    "NaN score, csv": (".csv", b"dull,nan", "column 'label' is 'nan', expected a finite number"),
    "NaN score, jsonl": (".jsonl", b'{"text": "dull", "label": NaN}', "column 'label' is 'nan', expected a finite"),
    "no number": (".csv", b"dull,x", "column 'label' is 'x', expected a finite number"),
    "byte order mark within": (".csv", b"\xef\xbb\xbfdull,0", "starts with a byte order mark"),
    "byte order mark within, jsonl": (".jsonl", b"\xef\xbb\xbf" + JSONL[0], "starts with a byte order mark"),
    "latin-1, csv": (".csv", b"na\xefve,0", "byte 0xef is not valid utf-8"),
    "latin-1, tsv": (".tsv", b"na\xefve\t0", "byte 0xef is not valid utf-8"),
    "latin-1, jsonl": (".jsonl", b'{"text": "na\xefve", "label": "0"}', "byte 0xef is not valid utf-8"),
    "text after a quote": (".csv", b'"dull" film,0', "not valid CSV: ',' expected after '\"'"),
    "open quote": (".csv", b'"dull,0', "not valid CSV: a quote .* never closed"),
    "10 MB line, csv": (".csv", b"x" * 10_000_000 + b",0", "is longer than 1,000,000 characters"),
    "10 MB line, tsv": (".tsv", b"x" * 10_000_000 + b"\t0", "is longer than 1,000,000 characters"),
    "10 MB line, jsonl": (".jsonl", b'{"text": "' + b"x" * 10_000_000 + b'"}', "is longer than 1,000,000 characters"),
    "10 MB line in quotes": (".csv", b'"' + b"x" * 10_000_000 + b'",0', "is longer than 1,000,000 characters"),
    "not JSON": (".jsonl", b'{"text": }', "not valid JSON"),
    "no object": (".jsonl", b'["dull"]', "a JSON array, expected an object"),
    "key twice": (".jsonl", b'{"text": "a", "text": "b", "label": "0"}', "not valid JSON: key 'text' occurs twice"),
    "lone surrogate": (".jsonl", b'{"text": "a\\ud800", "label": "0"}', "column 'text' has the lone surrogate"),
}
REGRESSION = {"NaN score, csv", "NaN score, jsonl", "no number"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def options(path: str, **fields) -> DataOptions:
    return DataOptions(train=path, **({"cache": "", "dev_rows": 1} | fields))


def write(path: Path, lines: list[bytes], newline: bytes = b"\n") -> str:
    path.write_bytes(newline.join(lines) + newline)
    return str(path)


def malformed(tmp_path, case, at=None, newline=b"\n") -> tuple[str, str, dict]:
    """A file with one malformed row, where that is, and the options to read it."""
    ending, line, _ = BAD[case]
    lines = NAMES[ending]
    at = len(lines) - 2 if at is None else at
    path = write(tmp_path / f"train{ending}", [*lines[:at], line, *lines[at:]], newline)
    fields = {"task": "regression"} if case in REGRESSION else {"labels": ("0", "1")}
    return path, f"{path}:{at + 1}", fields


@pytest.mark.parametrize("case", BAD)
def test_a_malformed_row_is_an_error_with_file_and_line(tmp_path, tokenizer, case):
    path, where, fields = malformed(tmp_path, case)
    with pytest.raises(InputError, match=rf"^{re.escape(where)}: {BAD[case][2]}") as error:
        load_splits(options(path, **fields), tokenizer, positions=512)
    assert "--data.on_bad_row=skip" in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("case", BAD)
def test_a_malformed_row_is_skipped_counted_and_listed(tmp_path, tokenizer, case, newline):
    path, where, fields = malformed(tmp_path, case, newline=newline)
    loaded = load_splits(options(path, on_bad_row="skip", **fields), tokenizer, positions=512)
    texts = dict(
        zip(
            [loaded.where(s, i) for s in ("train", "dev") for i in range(len(getattr(loaded, s)))],
            loaded.texts("train") + loaded.texts("dev"),
            strict=True,
        )
    )
    first = 1 if path.endswith("jsonl") else 2
    lines = [line for line in range(first, first + 5) if f"{path}:{line}" != where]
    assert texts == {f"{path}:{line}": (text, None) for line, (text, _) in zip(lines, GOOD, strict=True)}
    (bad,) = loaded.bad_rows()
    assert bad["where"] == where
    assert re.match(BAD[case][2], bad["reason"])
    (line,) = [line for line in loaded.summary() if "left out" in line]
    assert "1 unusable rows" in line
    assert where in line


@pytest.mark.parametrize("case", ["missing column, csv", "open quote", "10 MB line, csv", "latin-1, jsonl"])
@pytest.mark.parametrize("place", ["first", "last"])
def test_a_malformed_row_may_be_the_first_or_the_last(tmp_path, case, place):
    lines = NAMES[BAD[case][0]]
    at = {"first": int(lines is not JSONL), "last": len(lines)}[place]
    path, where, _ = malformed(tmp_path, case, at)
    rows = read_rows(path, options(path, on_bad_row="skip"), TASKS["classification"])
    assert [(text, label) for (text, _), label in zip(rows.texts, rows.labels, strict=True)] == GOOD
    assert [bad.where for bad in rows.bad] == [where]


def test_the_first_of_several_is_named_with_the_number_of_the_others(tmp_path):
    path = write(tmp_path / "a.csv", [*CSV, b"dull", b"a,b,c", b"dull,0", b" ,1"])
    with pytest.raises(InputError, match=r"a\.csv:6: 1 field.* \(2 more such rows\)"):
        read_rows(path, options(path), TASKS["classification"])
    rows = read_rows(path, options(path, on_bad_row="skip"), TASKS["classification"])
    assert [bad.where for bad in rows.bad] == [f"{path}:{line}" for line in (6, 7, 9)]
    assert rows.where(4) == f"{path}:8"


def test_every_malformed_row_of_a_file_is_listed_in_its_order(tmp_path, tokenizer):
    kinds = [b"dull", b"film,7", b"na\xefve,0", b'"a" b,1', b" ,1", b"film,8"]
    path = write(tmp_path / "a.csv", [*CSV, *kinds])
    loaded = load_splits(options(path, on_bad_row="skip", labels=("0", "1")), tokenizer, positions=512)
    assert [row["where"] for row in loaded.bad_rows()] == [f"{path}:{line}" for line in range(6, 12)]
    assert json.loads(json.dumps(loaded.bad_rows())) == loaded.bad_rows()
    assert len(loaded.train) + len(loaded.dev) == len(GOOD)


def test_dev_rows_are_skipped_and_listed_too(tmp_path, tokenizer):
    train = write(tmp_path / "a.csv", [*CSV, b"dull"])
    dev = write(tmp_path / "b.csv", [*CSV, b"dull,7"])
    loaded = load_splits(options(train, dev=dev, dev_rows=None, on_bad_row="skip"), tokenizer, positions=512)
    assert [row["where"] for row in loaded.bad_rows()] == [f"{train}:6", f"{dev}:6"]
    assert (len(loaded.train), len(loaded.dev)) == (4, 4)


@pytest.mark.parametrize("on_bad_row", ["error", "skip"])
def test_a_quote_that_is_never_closed_loses_its_own_line_only(tmp_path, on_bad_row):
    """One in the middle of a large file would otherwise swallow the rest of it."""
    rows = [f"film {i},{i % 2}".encode() for i in range(100_000)]
    rows[50], rows[60] = b'"open,0', b'say "" it,1'
    path = write(tmp_path / "a.csv", [b"text,label", *rows])
    if on_bad_row == "error":
        with pytest.raises(InputError, match=r"a\.csv:52: is longer than .*, or a quote .* never closed"):
            read_rows(path, options(path), TASKS["classification"])
    else:
        read = read_rows(path, options(path, on_bad_row="skip"), TASKS["classification"])
        assert len(read) == 99_999
        assert [bad.where for bad in read.bad] == [f"{path}:52"]


@pytest.mark.parametrize("on_bad_row", ["error", "skip"])
@pytest.mark.parametrize("case", ["byte order mark", "mixed newlines"])
def test_what_is_no_fault_is_read(tmp_path, on_bad_row, case):
    for ending, lines in NAMES.items():
        path = write(tmp_path / f"a{ending}", lines)
        expected = read_rows(path, options(path), TASKS["classification"])
        if case == "byte order mark":
            Path(path).write_bytes(b"\xef\xbb\xbf" + Path(path).read_bytes())
        else:
            ends = [b"\n", b"\r\n", b"\r"] * 2
            Path(path).write_bytes(b"".join(line + end for line, end in zip(lines, ends, strict=False)))
        rows = read_rows(path, options(path, on_bad_row=on_bad_row), TASKS["classification"])
        assert (list(rows.texts), rows.labels, rows.bad) == (list(expected.texts), expected.labels, ())


@pytest.mark.parametrize("on_bad_row", ["error", "skip"])
@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("a.csv", b"", "is empty"),
        ("a.csv", b"text,label\n", "has no rows after its header line"),
        ("a.jsonl", b"\n", "is empty"),
        ("a.csv", b"text,text,label\na,b,0\n", "'text' 2 times"),
        ("a.csv", b"text,y\na,0\n", "no column 'label'"),
        ("a.csv", b"te\xefxt,label\na,0\n", r"a\.csv:1: byte 0xef"),
        ("a.jsonl", b'{"text": "a"}\n', "no column 'label'"),
        ("a.csv", b"text,label\n ,0\n,1\n", r"a\.csv:2: column 'text' is empty"),
    ],
    ids=["empty", "no rows", "no JSON rows", "header twice", "no column", "latin-1 header", "no key", "all rows"],
)
def test_faults_of_the_whole_file_are_errors_in_any_case(tmp_path, on_bad_row, name, contents, message):
    path = tmp_path / name
    path.write_bytes(contents)
    with pytest.raises(InputError, match=message):
        read_rows(str(path), options(str(path), on_bad_row=on_bad_row), TASKS["classification"])
    with pytest.raises(InputError, match="does not exist"):
        read_rows(f"{path}x.csv", options("", on_bad_row=on_bad_row), TASKS["classification"])


def test_texts_as_long_as_a_row_may_be_are_read(tmp_path):
    text = "x" * (LONGEST_ROW - 2)
    path = write(tmp_path / "a.csv", [*CSV, f"{text},0".encode(), f'"{text[:-2]}",1'.encode()])
    rows = read_rows(path, options(path), TASKS["classification"])
    assert [len(text) for text, _ in rows.texts[4:]] == [LONGEST_ROW - 2, LONGEST_ROW - 4]


class TestReader:
    """Rows one after the other, as prediction reads them."""

    def test_an_error_comes_when_its_row_does(self, tmp_path):
        path = write(tmp_path / "a.csv", [*CSV[:3], b"dull", *CSV[3:]])
        seen = []
        with pytest.raises(InputError, match=r"a\.csv:4: 1 field"):
            seen.extend(RowReader(path, options(path), TASKS["classification"]))
        assert [row.text[0] for row in seen] == ["good film", "bad film"]
        reader = RowReader(path, options(path, on_bad_row="skip"), TASKS["classification"])
        assert [row.place for row in reader] == [2, 3, 5, 6]
        assert [row.place for row in reader] == [2, 3, 5, 6]
        assert [bad.place for bad in reader.bad] == [4]

    @pytest.mark.parametrize("labelled", [False, None])
    def test_labels_need_not_be_there(self, tmp_path, labelled):
        path = write(tmp_path / "a.csv", [b"id,text", b"7,good film"])
        reader = RowReader(path, options(path), TASKS["classification"], labelled=labelled)
        assert not reader.labelled
        assert [(row.text, row.label) for row in reader] == [(("good film", None), None)]
        with pytest.raises(InputError, match="no column 'label'"):
            RowReader(path, options(path), TASKS["classification"])

    def test_labels_are_read_where_they_are_if_not_forbidden(self, tmp_path):
        path = write(tmp_path / "a.csv", [*CSV, b"dull,"])
        reader = RowReader(path, options(path), TASKS["classification"], labelled=False)
        assert [row.label for row in reader] == [None] * 5
        reader = RowReader(path, options(path, on_bad_row="skip"), TASKS["classification"], labelled=None)
        assert [row.label for row in reader] == [label for _, label in GOOD]

    def test_memory_does_not_grow_with_the_file(self, tmp_path):
        import tracemalloc

        path = tmp_path / "a.csv"
        with path.open("w") as file:
            file.write("text,label\n")
            file.writelines(f"{'word ' * 100}{i},0\n" for i in range(40_000))  # 20 MB
        tracemalloc.start()
        try:
            rows = sum(1 for _ in RowReader(str(path), options(""), TASKS["classification"]))
            assert tracemalloc.get_traced_memory()[1] < 8_000_000
        finally:
            tracemalloc.stop()
        assert rows == 40_000
