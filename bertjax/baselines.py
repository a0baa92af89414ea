"""What a result has to beat: the majority class, and logistic regression on TF-IDF of words and word pairs."""

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from bertjax.errors import InputError

Text = str | tuple[str, str | None]
"""A text, or a text and its second text (None where there is none)."""


def majority_baseline(train_labels: Sequence[Hashable], dev_labels: Sequence[Hashable]) -> float:
    """Accuracy on dev of always predicting the most frequent training label (of equally frequent ones the smallest)."""
    train, dev = np.asarray(train_labels), np.asarray(dev_labels)
    _need_rows(train, dev)
    names, counts = np.unique(train, return_counts=True)
    return float(np.mean(dev == names[counts.argmax()]))


def tfidf_baseline(
    train_texts: Sequence[Text],
    train_labels: Sequence[Hashable],
    dev_texts: Sequence[Text],
    dev_labels: Sequence[Hashable],
) -> float:
    """Accuracy on dev of logistic regression on TF-IDF of single words and pairs of neighbouring words.

    Texts that come in pairs are joined. Where there is nothing to learn from (one class, no words) the result is the
    majority baseline.
    """
    train, dev = np.asarray(train_labels), np.asarray(dev_labels)
    _need_rows(train, dev)
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\b\w+\b", dtype=np.float32)
    analyze = vectorizer.build_analyzer()
    train_joined = [_joined(text) for text in train_texts]
    if len(Counter(train.tolist())) < 2 or not any(analyze(text) for text in train_joined):
        return majority_baseline(train, dev)
    train_matrix = vectorizer.fit_transform(train_joined)
    model = LogisticRegression(max_iter=1000).fit(train_matrix, train)
    return float(np.mean(model.predict(vectorizer.transform([_joined(text) for text in dev_texts])) == dev))


def _joined(text: Text) -> str:
    return text if isinstance(text, str) else " ".join(part for part in text if part)


def _need_rows(train: np.ndarray, dev: np.ndarray) -> None:
    if not len(train) or not len(dev):
        raise InputError(f"a baseline needs training and dev rows, got {len(train)} and {len(dev)}")
