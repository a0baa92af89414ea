"""Text files are read exactly, each row knows its line, and malformed files are named with place and remedy."""

import csv
import hashlib
import io
import os
import random
import re
from pathlib import Path

import pytest

from bertjax.data.records import Reading
from bertjax.data.sources import ENDINGS, open_source
from bertjax.errors import InputError

REAL = os.environ.get("BERTJAX_REAL_DATA")


def write(tmp_path: Path, name: str, contents: str | bytes) -> str:
    path = tmp_path / name
    path.write_bytes(contents.encode() if isinstance(contents, str) else contents)
    return str(path)


def records(source) -> list:
    return [record for _, record in source.records(source.columns)]


def rows_of(source) -> list[dict]:
    assert not [record for record in records(source) if record.problem]
    return [dict(zip(source.columns, record.values, strict=True)) for record in records(source)]


def places(source) -> list[str]:
    return [source.where(part, record.place) for part, record in source.records(source.columns)]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_csv_gives_back_what_was_written_and_the_line_of_each_row(tmp_path, newline):
    draw = random.Random(0)
    alphabet = ["a", "é", ",", '"', "\n", "\r\n", "\t", " ", "\u2028", "\x85", "\x0b", "\x1c", "🙂"]
    table = [["".join(draw.choices(alphabet, k=draw.randrange(1, 9))) for _ in range(3)] for _ in range(200)]
    text, lines = "x,y,z" + newline, []
    for row in table:
        lines.append(1 + text.count("\n"))
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator=newline, quoting=csv.QUOTE_ALL).writerow(row)
        text += buffer.getvalue()
    path = write(tmp_path, "rows.csv", text)
    source = open_source(path)
    assert source.columns == ("x", "y", "z")
    assert [list(row.values()) for row in rows_of(source)] == table
    assert places(source) == [f"{path}:{line}" for line in lines]
    assert source.fingerprint == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.csv", 'text,label\n"one\u2028\x85 piece",1\ntwo,0\n'),
        ("rows.tsv", "text\tlabel\none\u2028\x85 piece\t1\ntwo\t0\n"),
        ("rows.jsonl", '{"text": "one\u2028\x85 piece", "label": "1"}\n{"text": "two", "label": "0"}\n'),
    ],
)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
@pytest.mark.parametrize("newlines", ["\n", "\r\n", "\r", "mixed"])
@pytest.mark.parametrize("last", [True, False], ids=["newline at end", "none at end"])
def test_all_newlines_and_byte_order_marks_give_the_same_rows(tmp_path, name, text, mark, newlines, last):
    lines = text.rstrip("\n").split("\n")
    ends = {"mixed": ["\n", "\r\n", "\r"]}.get(newlines, [newlines] * 3)
    joined = "".join(line + end for line, end in zip(lines, ends[: len(lines)], strict=True))
    joined = joined if last else joined.rstrip("\r\n")
    source = open_source(write(tmp_path, name, mark + joined.encode()))
    assert rows_of(source) == [{"text": "one\u2028\x85 piece", "label": "1"}, {"text": "two", "label": "0"}]


def test_tsv_has_no_quoting_and_blank_lines_are_no_rows(tmp_path):
    path = write(tmp_path, "rows.tsv", 'text\tlabel\n"open\t1\n\nsay "hi", now \t0\n')
    source = open_source(path)
    assert rows_of(source) == [{"text": '"open', "label": "1"}, {"text": 'say "hi", now ', "label": "0"}]
    assert places(source) == [f"{path}:2", f"{path}:4"]


def test_jsonl_keeps_types_and_a_missing_key_is_none(tmp_path):
    path = write(tmp_path, "rows.jsonl", '{"text": "a", "label": 1}\n\n{"label": 0.5, "text": 7, "id": null}\n')
    source = open_source(path)
    assert source.columns == ("text", "label", "id")
    assert rows_of(source) == [{"text": "a", "label": 1, "id": None}, {"text": 7, "label": 0.5, "id": None}]
    assert places(source)[1] == f"{path}:3"


def test_a_stray_carriage_return_in_a_cell_does_not_shift_line_numbers(tmp_path):
    path = write(tmp_path, "rows.csv", 'text,label\n"a\rb\rc",1\nd,0\n')
    source = open_source(path)
    assert rows_of(source)[0]["text"] == "a\rb\rc"
    assert places(source)[1] == f"{path}:3"


def test_columns_stand_for_a_missing_header(tmp_path):
    path = write(tmp_path, "rows.tsv", "1\tone\n0\ttwo\n")
    source = open_source(path, Reading(columns=("label", "text")))
    assert rows_of(source) == [{"label": "1", "text": "one"}, {"label": "0", "text": "two"}]


def test_a_cell_may_be_longer_than_the_csv_module_allows_and_its_limit_is_put_back(tmp_path):
    limit = csv.field_size_limit()
    text = "x" * (limit + 1)
    for cell in (text, f'"{text}\n{text}"'):
        source = open_source(write(tmp_path, "rows.csv", f"text,label\na,1\n{cell},1\nb,0\n"))
        assert [row["text"] for row in rows_of(source)] == ["a", cell.strip('"'), "b"]
    assert csv.field_size_limit() == limit


def test_encodings(tmp_path):
    text = "text,label\nnaïve,1\n"

    def first(name, **reading):
        path = write(tmp_path, name, text.encode(reading.get("encoding", "latin-1")))
        return rows_of(open_source(path, Reading(**reading)))[0]["text"]

    assert first("l.csv", encoding="latin-1") == first("u.csv", encoding="utf-16") == "naïve"
    assert first("b.csv", encoding="utf-8-sig") == "naïve"
    assert first("r.csv", encoding_errors="replace") == "na\ufffdve"


MALFORMED = {
    "empty file": ("rows.csv", "", r"rows\.csv: is empty"),
    "only a byte order mark": ("rows.csv", b"\xef\xbb\xbf", r"rows\.csv: is empty"),
    "only white space": ("rows.tsv", "\n \n", r"rows\.tsv: is empty"),
    "header alone, csv": ("rows.csv", "text,label\n", r"rows\.csv: has no rows after its header line"),
    "header alone, tsv": ("rows.tsv", "text\tlabel\n", r"rows\.tsv: has no rows after its header line"),
    "header twice": ("rows.csv", "text,label,text\na,1,b\n", r"'text' 2 times"),
    "too few fields": ("rows.csv", 'text,label\n"a\nb",1\nc\n', r"rows\.csv:4: 1 field, expected 2 .*text, label"),
    "too many fields": ("rows.tsv", "text\tlabel\na\t1\n\nb\tc\t0\n", r"rows\.tsv:4: 3 fields, expected 2"),
    "open quote": ("rows.csv", 'text,label\na,1\n"b,0\nc,1\n', r"rows\.csv:3: not valid CSV: a quote .* never closed"),
    "text after a quote": ("rows.csv", 'text,label\n"a" b,1\n', r"rows\.csv:2: not valid CSV"),
    "not JSON": ("rows.jsonl", '{"text": "a"}\n{"text": }\n', r"rows\.jsonl:2: not valid JSON: .*column"),
    "not an object": ("rows.jsonl", '{"text": "a"}\n["b"]\n', r"rows\.jsonl:2: a JSON array, expected an object"),
    "key twice": ("rows.jsonl", '{"text": "a", "text": "b"}\n', r"rows\.jsonl:1: .*'text' occurs twice"),
    "undecodable": (
        "rows.csv",
        b"text,label\r\na,1\r\nna\xefve,0\r\n",
        r"rows\.csv:3: byte 0xef .*encoding_errors=replace",
    ),
    "utf-16 read as utf-8": (
        "rows.csv",
        "text,label\na,1\n".encode("utf-16"),
        r"rows\.csv:1: .*--data\.encoding=utf-16",
    ),
    "unknown ending": ("rows.xlsx", "x", r"'\.xlsx', expected one of \.csv, \.tsv, \.txt, \.jsonl, \.json, \.parquet"),
    "no ending": ("rows", "x", r"no ending, expected one of"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files_are_one_clear_message(tmp_path, case):
    name, contents, message = MALFORMED[case]
    path = write(tmp_path, name, contents)
    try:  # faults of the whole file are errors, faults of a row come with it
        source = open_source(path)
        found = [f"{source.where(0, r.place)}: {r.problem}" for r in records(source) if r.problem]
    except InputError as error:
        found = [str(error)]
    assert len(found) == 1
    assert re.search(message, found[0])
    assert path in found[0]
    assert "\n" not in found[0]


def test_missing_file_names_its_neighbour(tmp_path):
    write(tmp_path, "train.csv", "text,label\na,1\n")
    with pytest.raises(InputError, match=re.escape("trian.csv: does not exist; did you mean 'train.csv'?")):
        open_source(str(tmp_path / "trian.csv"))


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_empty_folder_is_not_a_file(tmp_path, ending):
    (tmp_path / f"rows{ending}").mkdir()
    with pytest.raises(InputError, match="is a folder without data files, expected"):
        open_source(str(tmp_path / f"rows{ending}"))


def test_unusable_options(tmp_path):
    path = write(tmp_path, "rows.csv", "a,1\n")
    for encoding in ("utf-9", "base64"):
        with pytest.raises(InputError, match=rf"--data\.encoding={encoding}: no such text encoding"):
            open_source(path, Reading(encoding=encoding))
    with pytest.raises(InputError, match="'text' 2 times"):
        open_source(path, Reading(columns=("text", "text")))
    (record,) = records(open_source(path, Reading(columns=("text", "label", "id"))))
    assert re.match(r"2 fields, expected 3 as in --data\.columns: text, label, id", record.problem)
    with pytest.raises(InputError, match=r"no --data\.columns"):
        open_source(write(tmp_path, "rows.jsonl", '{"text": "a"}\n'), Reading(columns=("text",)))


def test_messages_show_the_path_as_given():
    with pytest.raises(InputError, match=r"^package://bertjax/nothing\.csv: does not exist"):
        open_source("package://bertjax/nothing.csv")


@pytest.mark.skipif(REAL is None, reason="BERTJAX_REAL_DATA names no folder with the real data sets")
@pytest.mark.parametrize(
    ("file", "columns", "rows"),
    [
        ("SST-2/train.tsv", (), 67_349),
        ("SST-2/dev.tsv", (), 872),
        ("CoLA/train.tsv", ("source", "label", "mark", "sentence"), 8_551),
        ("CoLA/dev.tsv", ("source", "label", "mark", "sentence"), 1_043),
        ("STS-B/train.tsv", (), 5_749),
        ("STS-B/dev.tsv", (), 1_500),
        ("CosmosQA/valid.csv", (), 2_985),
    ],
)
def test_published_row_counts(file, columns, rows):
    assert len(rows_of(open_source(f"{REAL}/{file}", Reading(columns=columns)))) == rows
