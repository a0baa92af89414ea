"""Texts that do not fit in memory are on the disk, and nobody notices; data larger than memory can be read."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from bertjax.data import texts
from bertjax.data.texts import Texts
from bertjax.errors import InputError

ODD = ["", "a\nb\r\n\tc", "\x00", "é中😀", "\ud800", '"\\', "\u2028", " x "]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(texts, "IN_MEMORY", 40)
    monkeypatch.setattr(texts, "CHUNK", 7)


@pytest.mark.parametrize("count", [0, 1, 5, 40, 41, 200])
@pytest.mark.parametrize("spill", [False, True])
def test_a_sequence_like_any_other(small, tmp_path, count, spill):
    draw = random.Random(count)
    expected = [(draw.choice(ODD) * draw.randint(0, 3), draw.choice([None, *ODD])) for _ in range(count)]
    found = Texts(str(tmp_path / "cache") if spill else "")
    for i, text in enumerate(expected):
        found.append(text)
        if i % 11 == 0:  # reading between writing disturbs nothing
            assert found[i // 2] == expected[i // 2] and found[-1] == text
    assert len(found) == count and list(found) == expected == [found[i] for i in range(count)]
    assert found[3:-2:2] == expected[3:-2:2]
    order = draw.sample(range(count), count)
    assert [found[i] for i in order] == [expected[i] for i in order]
    kept = sorted(order[: count // 2])
    assert list(found.taken(kept)) == [expected[i] for i in kept]
    for outside in (count, -count - 1):
        with pytest.raises(IndexError):
            found[outside]
    assert not spill or not any(tmp_path.rglob("*.*")), "the file has no name"
    if count == 200:
        assert (found._file is not None) == spill


def test_a_folder_that_takes_no_file_is_named(small, tmp_path):
    (tmp_path / "cache").write_text("")
    found = Texts(str(tmp_path / "cache"))
    with pytest.raises(InputError, match=r"cache: .*expected room for them, or another folder in --data\.cache"):
        for _ in range(100):
            found.append(("word " * 10, None))


MEASURED = """
import json, sys, threading, time
from pathlib import Path
from tiny import tiny_tokenizer
from bertjax.config import DataOptions
from bertjax.data import texts
from bertjax.data.features import load_splits
from bertjax.data.batches import train_batches

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

file, folder = sys.argv[1:]
texts.IN_MEMORY = 1_000_000
tokenizer = tiny_tokenizer(Path(folder) / "tokenizer")
base, peak, done = anonymous(), 0, False

def watch():
    global peak
    while not done:
        peak = max(peak, anonymous())
        time.sleep(0.01)

thread = threading.Thread(target=watch)
thread.start()
splits = load_splits(DataOptions(train=file, max_length=256, cache=folder + "/cache"), tokenizer, positions=256)
summary = splits.summary()
batches = train_batches(splits.train, batch_size=32, buckets=(256,), seed=0)
for _ in range(50):
    next(batches)
done = True
thread.join()
print(json.dumps([len(splits.train) + len(splits.dev), peak - base]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_memory_does_not_grow_with_the_texts(tmp_path):
    """Of each row of 1,200 characters and 240 word pieces a few numbers stay in memory."""
    words = ["good", "bad", "film", "plot", "very", "dull", "great", "."]
    found = {}
    for rows in (10_000, 110_000):
        file, folder = tmp_path / f"{rows}.csv", tmp_path / str(rows)
        folder.mkdir()
        draw = random.Random(0)
        with file.open("w") as out:
            out.write("text,label\n")
            for i in range(rows):
                out.write(f"{' '.join(draw.choices(words, k=240))} {i},{i % 2}\n")
        path = os.pathsep.join((str(Path(__file__).parent), str(Path(__file__).parent.parent)))
        result = subprocess.run(
            [sys.executable, "-c", MEASURED, file, folder],
            check=True,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        )
        count, found[rows] = json.loads(result.stdout.splitlines()[-1])
        assert count == rows
        size = file.stat().st_size
        file.unlink()
    growth = (found[110_000] - found[10_000]) / 100_000
    print(f"a row of {size / 110_000:,.0f} bytes takes {growth:,.0f} bytes of memory")
    assert growth < 250
