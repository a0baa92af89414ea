"""Which rows train and which are held out, so that equal texts never lie on both sides."""

import hashlib
from collections.abc import Iterable

import numpy as np

from bertjax.data.texts import Text
from bertjax.errors import InputError

_LARGE = 0.05  # share of the held-out rows above which the copies of one text are held out only if need be


def normal(text: str, text_pair: str | None) -> tuple[str, str | None]:
    """What must be the same for two rows to count as the same text."""
    return text.strip().casefold(), None if text_pair is None else text_pair.strip().casefold()


def keys(texts: Iterable[Text]) -> np.ndarray:
    """[n] uint64, equal for texts that count as the same; for others too with a chance of 1 in 2⁶⁴."""
    digests = b"".join(
        hashlib.blake2b(repr(normal(*text)).encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts
    )
    return np.frombuffer(digests, np.uint64)


def hold_out(keys: np.ndarray, count: int | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws rows to hold out; rows with the same key are held out together or not at all.

    Args:
      keys: [n], a key for each row.
      count: how many rows; None: a tenth, at least one.
      seed: decides the draw.

    Returns:
      The other rows and the held-out rows, both ascending. Fewer than `count` rows are held out where groups of equal
      keys cannot add up to it.

    Raises:
      InputError: `count` leaves no row for training, or no group is small enough.
    """
    n = len(keys)
    wanted = max(1, n // 10) if count is None else count
    if wanted >= n:
        raise InputError(
            f"--data.dev_rows={wanted}: the training file has {n:,} rows and at least one must be left for training; "
            "expected fewer, or a file in --data.dev"
        )
    _, first, group, size = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    # Drawn text by text: drawn row by row, a text with hundreds of copies would nearly always be held out. Texts that
    # alone would be a large part of the held-out rows come last, or one draw of them would decide the result.
    order = np.argsort(first)[np.random.default_rng(seed).permutation(len(size))]
    order = order[np.argsort(size[order] > max(1, wanted * _LARGE), kind="stable")]
    chosen = np.zeros(len(size), bool)
    left = wanted
    for i, rows in zip(order.tolist(), size[order].tolist(), strict=True):
        if rows <= left:
            chosen[i] = True
            left -= rows
        if not left:
            break
    held = chosen[group]
    if not held.any():
        raise InputError(
            f"--data.dev_rows={wanted}: every text of the training file occurs more often than that ({n:,} rows, "
            f"{len(size):,} different texts), and equal texts stay together; expected a larger number, or a file in "
            "--data.dev"
        )
    return np.flatnonzero(~held), np.flatnonzero(held)


def sample(rows: np.ndarray, count: int | None, seed: int, what: str) -> np.ndarray:
    """`count` of the rows (None: all), ascending. With one seed, a smaller sample is part of a larger one.

    Raises:
      InputError: there are not so many; `what` says which option asked and where the rows come from.
    """
    if count is None:
        return rows
    if count > len(rows):
        raise InputError(f"{what}: there are only {len(rows):,} rows to draw from, got {count:,}")
    # A second stream of the seed: hold_out draws from the first.
    return np.sort(np.random.default_rng([seed, 1]).permutation(rows)[:count])


def repeats(keys: np.ndarray) -> int:
    """How many rows have the key of an earlier row."""
    return len(keys) - len(np.unique(keys))


def contradictions(keys: np.ndarray, labels: np.ndarray) -> int:
    """How many rows have a key that also occurs with another label, [n] or [n, classes]."""
    _, group = np.unique(keys, return_inverse=True)
    _, label = np.unique(labels, axis=0, return_inverse=True)
    variants = np.unique(np.stack([group, label.ravel()]), axis=1)[0]
    return int((np.bincount(variants)[group] > 1).sum())
