"""Metrics agree with closed forms and with published vectors; baselines learn what can be learned."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from bertjax.baselines import majority_baseline, tfidf_baseline
from bertjax.data.sources import open_source
from bertjax.data.tasks import TASKS
from bertjax.errors import InputError
from bertjax.metrics import METRICS, score

REAL = os.environ.get("BERTJAX_REAL_DATA")
needs_real = pytest.mark.skipif(REAL is None, reason="BERTJAX_REAL_DATA names no folder with the real data sets")

# 3 true positives, 1 false positive, 2 false negatives, 4 true negatives
LABELS = np.array([1, 1, 1, 0, 1, 1, 0, 0, 0, 0])
PREDICTIONS = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])


def test_two_class_metrics_are_the_formulas_of_the_confusion_matrix():
    assert METRICS["accuracy"](LABELS, PREDICTIONS) == pytest.approx(0.7, abs=1e-12)
    assert METRICS["f1"](LABELS, PREDICTIONS) == pytest.approx(2 * 3 / (2 * 3 + 1 + 2), abs=1e-12)
    assert METRICS["f1_macro"](LABELS, PREDICTIONS) == pytest.approx((6 / 9 + 8 / 11) / 2, abs=1e-12)
    expected = (3 * 4 - 1 * 2) / math.sqrt((3 + 1) * (3 + 2) * (4 + 1) * (4 + 2))
    assert METRICS["matthews"](LABELS, PREDICTIONS) == pytest.approx(expected, abs=1e-12)


def test_correlations_have_closed_forms():
    x = np.array([1.0, 2.0, 3.0, 4.0])
    assert METRICS["pearson"](x, 3 - 2 * x) == pytest.approx(-1, abs=1e-12)
    assert METRICS["spearman"](x, np.exp(x)) == pytest.approx(1, abs=1e-12)
    # Ties take mean ranks: ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4.
    assert METRICS["spearman"](x, np.array([0.0, 1.0, 1.0, 5.0])) == pytest.approx(4.5 / math.sqrt(5 * 4.5), abs=1e-12)
    assert METRICS["mse"](x, x + np.array([1, -1, 3, 0])) == pytest.approx(11 / 4, abs=1e-12)


def test_exact_takes_numbers_texts_and_several_columns():
    assert METRICS["exact"](np.array(["a", "b"]), np.array(["a", "c"])) == 0.5
    assert METRICS["exact"](np.array([[1, 2], [3, 4]]), np.array([[1, 2], [3, 5]])) == 0.5


@pytest.mark.parametrize("name", ["pearson", "spearman"])
def test_undefined_correlations_are_nan_without_a_warning(name):
    scores, constant = np.array([1.0, 2.0, 4.0]), np.full(3, 0.1, np.float32)
    assert math.isnan(METRICS[name](scores, constant))
    assert math.isnan(METRICS[name](constant, scores))
    assert math.isnan(METRICS[name](scores, np.array([1.0, np.nan, 2.0])))
    assert math.isnan(METRICS[name](scores[:1], scores[:1]))
    nearly = 1 + np.array([0, 1e-15, 2e-15])
    assert math.isfinite(METRICS[name](scores, nearly))


def test_constant_classes_are_defined_without_a_warning():
    ones = np.ones(4, int)
    assert METRICS["matthews"](np.array([0, 1, 0, 1]), ones) == 0
    assert METRICS["matthews"](ones, ones) == 0
    assert METRICS["f1"](ones * 0, ones * 0) == 0
    assert METRICS["f1_macro"](ones, ones) == 1


def test_score_gives_the_metrics_of_the_task():
    assert score(TASKS["classification"], [0, 1], [0, 1]) == {"accuracy": 1, "f1_macro": 1, "matthews": 1}
    result = score(TASKS["regression"], np.array([1, 2, 3], np.float32), np.array([3, 2, 1], np.float32))
    assert result == {"pearson": pytest.approx(-1), "spearman": pytest.approx(-1), "mse": pytest.approx(8 / 3)}


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_tasks_name_known_metrics(task):
    assert set(task.metrics) <= set(METRICS)
    assert task.headline in task.metrics


def test_score_refuses_what_cannot_be_scored():
    with pytest.raises(InputError, match="no examples"):
        score(TASKS["classification"], [], [])
    with pytest.raises(InputError, match=r"labels have shape \(2,\), predictions \(3,\)"):
        score(TASKS["classification"], [0, 1], [0, 1, 1])
    with pytest.raises(InputError, match=r"classes 0 and 1, got \[0, 1, 2\]"):
        METRICS["f1"](np.array([0, 1]), np.array([0, 2]))


@needs_real
def test_published_vectors():
    names = {"macro_f1": "f1_macro", "matthews_correlation": "matthews", "spearmanr": "spearman"}
    vectors = json.loads(Path(REAL, "metrics", "glue_metric_vectors.json").read_text())["vectors"]
    checked = 0
    for vector in vectors:
        for name, expected in vector["expected"].items():
            got = METRICS[names.get(name, name)](np.array(vector["gold"]), np.array(vector["pred"]))
            assert got == pytest.approx(expected, abs=1e-9, rel=0), (vector["task"], name)
            checked += 1
    assert checked >= 9


def test_majority_baseline():
    assert majority_baseline(["a", "b", "b"], ["b", "a", "b", "c"]) == 0.5
    assert majority_baseline([1, 0], [0, 0, 1]) == pytest.approx(2 / 3)
    with pytest.raises(InputError, match="got 0 and 1"):
        majority_baseline([], [1])


def test_tfidf_baseline_learns_words_pairs_of_words_and_second_texts():
    words = tfidf_baseline(["good film", "bad film"] * 5, [1, 0] * 5, ["a good plot", "a bad plot"], [1, 0])
    assert words == 1
    # Every single word occurs in both classes: only the pair tells them apart.
    train = ["not good but bad", "not bad but good"] * 20
    assert tfidf_baseline(train, ["n", "p"] * 20, ["so not good", "so not bad"], ["n", "p"]) == 1
    pairs = [("same", "yes"), ("same", "no")] * 5
    assert tfidf_baseline(pairs, [1, 0] * 5, [("other", "yes"), ("other", "no")], [1, 0]) == 1


def test_tfidf_baseline_falls_back_to_the_majority():
    assert tfidf_baseline(["a b", "c d"], [1, 1], ["e", "f"], [1, 0]) == 0.5
    assert tfidf_baseline(["!", "?", "."], [1, 0, 0], [".", "!"], [0, 1]) == 0.5


@needs_real
def test_tfidf_baseline_on_sst2():
    sources = [open_source(f"{REAL}/SST-2/{split}.tsv") for split in ("train", "dev")]
    texts, labels = (
        [[record.values[0] for _, record in source.records([column])] for source in sources]
        for column in ("sentence", "label")
    )
    assert tfidf_baseline(texts[0], labels[0], texts[1], labels[1]) == pytest.approx(0.81, abs=0.02)
