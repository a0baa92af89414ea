"""Records of a run: metrics.jsonl and TensorBoard events hold the same, and a disk that is full ends events alone."""

import errno
import math
import struct

import numpy as np
import pytest
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog

from bertjax.training.records import Records, read_jsonl


def events(folder):
    """All events, by the framing of a TFRecord file: length, its checksum, contents, their checksum."""
    found = []
    for file in sorted((folder / "tensorboard").iterdir()):
        data = file.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            found.append(Event.FromString(data[12 : 12 + size]))
            data = data[16 + size :]
    return found


def points(folder):
    return {(v.tag, e.step): v.simple_value for e in events(folder) for v in e.summary.value}


def steps(log, first, last):
    for step in range(first, last + 1):
        log.collect({"loss": np.float32(1 / step), "grad_norm": np.float32(step)}, np.arange(4))
        if step % 2 == 0:
            log.flush(step)


def test_events_hold_what_the_metrics_hold(tmp_path):
    log = Records(tmp_path, None)
    steps(log, 1, 6)
    log.write({"step": 6, "dev/loss": 0.5, "dev/pearson": math.nan})
    log.close()
    stored = points(tmp_path)
    for record in read_jsonl(tmp_path / "metrics.jsonl"):
        for name, value in record.items():
            if name != "step" and value is not None:
                assert stored[name, record["step"]] == pytest.approx(value)
    assert math.isnan(stored["dev/pearson", 6]) and ("timing/examples_per_second", 4) in stored


def test_a_continued_run_says_from_where_tensorboard_is_to_forget(tmp_path):
    log = Records(tmp_path, None)
    steps(log, 1, 6)
    log.close()
    log = Records(tmp_path, 4)
    steps(log, 5, 8)
    log.close()
    assert [r["step"] for r in read_jsonl(tmp_path / "metrics.jsonl")] == [2, 4, 6, 8]
    starts = [e.step for e in events(tmp_path) if e.session_log.status == SessionLog.START]
    assert starts == [4]


def test_a_full_disk_ends_the_events_and_nothing_else(tmp_path, monkeypatch, capsys):
    def full(self, event):
        raise OSError(errno.ENOSPC, "No space left on device")

    log = Records(tmp_path, None)
    monkeypatch.setattr(EventsWriter, "write_event", full)
    steps(log, 1, 40)
    log.close()
    assert len(read_jsonl(tmp_path / "metrics.jsonl")) == 20
    assert capsys.readouterr().out.count("TensorBoard events cannot be written: No space left on device") == 1
