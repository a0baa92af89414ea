"""Which rows train and which are held out, so that equal texts never lie on both sides."""

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

from bertjax.errors import InputError

_LARGE = 0.05  # share of the held-out rows above which the copies of one text are held out only if need be


def normal(text: str, text_pair: str | None) -> tuple[str, str | None]:
    """What must be the same for two rows to count as the same text."""
    return text.strip().casefold(), None if text_pair is None else text_pair.strip().casefold()


def hold_out(keys: Sequence[Hashable], count: int | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws rows to hold out; rows with the same key are held out together or not at all.

    Args:
      keys: a key for each row.
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
    size = Counter(keys)
    texts = list(size)
    # Drawn text by text: drawn row by row, a text with hundreds of copies would nearly always be held out. Texts that
    # alone would be a large part of the held-out rows come last, or one draw of them would decide the result.
    order = np.random.default_rng(seed).permutation(len(texts)).tolist()
    order.sort(key=lambda i: size[texts[i]] > max(1, wanted * _LARGE))
    held_keys: set[Hashable] = set()
    left = wanted
    for i in order:
        if size[texts[i]] <= left:
            held_keys.add(texts[i])
            left -= size[texts[i]]
        if not left:
            break
    held = np.array([key in held_keys for key in keys])
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


def repeats(keys: Sequence[Hashable]) -> int:
    """How many rows have the key of an earlier row."""
    return len(keys) - len(set(keys))


def contradictions(keys: Sequence[Hashable], labels: Sequence[Hashable]) -> int:
    """How many rows have a key that also occurs with another label."""
    variants = Counter(key for key, _ in set(zip(keys, labels, strict=True)))
    return sum(variants[key] > 1 for key in keys)
