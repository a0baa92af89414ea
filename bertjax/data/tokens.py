"""Word pieces of all rows of a file, made once and kept in a cache that is keyed by everything they depend on."""

import dataclasses
import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.data import token_files
from bertjax.data.texts import Text
from bertjax.errors import InputError

FORMAT_VERSION = 2  # goes up with any change to what is stored or to how texts are prepared
_CHUNK = 2000  # rows per tokenizer call: enough for its threads, little memory for Python lists


@dataclasses.dataclass(frozen=True, eq=False)
class Tokens:
    """Word pieces of n rows, one row after the other."""

    ids: np.ndarray
    """[total] int32, special tokens included; may be a map of a file."""
    offsets: np.ndarray
    """[n + 1] int64: row i is ids[offsets[i]:offsets[i + 1]]."""
    types: np.ndarray
    """[total] int8 token type ids."""
    cut: np.ndarray
    """[n] bool, True where the row was longer than the limit and was truncated."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What word pieces depend on besides the tokenizer; part of the cache key."""

    fingerprint: str
    """SHA-256 of the file."""
    reading: tuple[str, ...]
    """How texts were read from the file: ending, column names, encoding."""
    max_length: int
    """Longest row, special tokens included."""
    too_long: str
    """"truncate" or "error"."""


def tokenize(
    texts: Sequence[Text], tokenizer: Any, recipe: Recipe, *, where: Callable[[int], str], cache: str
) -> tuple[Tokens, str]:
    """Word pieces of the texts, from the cache where it has them.

    Args:
      texts: all with a second text, or all without.
      tokenizer: a fast tokenizer of transformers.
      recipe: decides the limit and, with the tokenizer, the name of the cache entry.
      where: file and line of a row, for messages.
      cache: folder of the cache; empty: no cache.

    Returns:
      The word pieces, and a phrase that says where they come from.

    Raises:
      InputError: a row is too long and recipe.too_long is "error".
    """
    started = time.perf_counter()
    if not cache:
        return _gathered(_encoded(texts, tokenizer, recipe, where)), f"tokenized in {_since(started)}, not cached"
    key = _key(tokenizer, recipe)
    folder = Path(cache).expanduser() / "tokens" / key[:32]
    stored = token_files.read(folder, key, len(texts))
    if stored is not None:
        return _tokens(stored), f"read from {folder}"
    try:
        token_files.write(folder, key, _encoded(texts, tokenizer, recipe, where))
        stored = token_files.read(folder, key, len(texts))
        problem = "it was changed while it was written"
    except OSError as error:
        problem = str(error.strerror)
    if stored is None:  # a cache that cannot be used costs time, not the run
        tokens = _gathered(_encoded(texts, tokenizer, recipe, where))
        return tokens, f"tokenized in {_since(started)}, not cached ({folder.parent}: {problem})"
    return _tokens(stored), f"tokenized in {_since(started)}, cached in {folder}"


def _encoded(
    texts: Iterable[Text], tokenizer: Any, recipe: Recipe, where: Callable[[int], str]
) -> Iterator[token_files.Arrays]:
    """The word pieces of so many rows at a time."""
    # Said outright, or the tokenizers library warns when a process that has used it forks.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    start, stream = 0, iter(texts)
    while some := list(itertools.islice(stream, _CHUNK)):
        rows = _encode(some, tokenizer)
        cut = np.zeros(len(some), bool)
        long = [i for i, (ids, _) in enumerate(rows) if len(ids) > recipe.max_length]
        if long and recipe.too_long == "error":
            raise InputError(
                f"{where(start + long[0])}: {len(rows[long[0]][0]):,} word pieces, expected at most "
                f"--data.max_length={recipe.max_length} (--data.too_long=truncate cuts longer rows)"
            )
        if long:
            shortened = _encode([some[i] for i in long], tokenizer, truncation=True, max_length=recipe.max_length)
            for i, row in zip(long, shortened, strict=True):
                rows[i] = row
            cut[long] = True
        yield {
            "ids": np.concatenate([ids for ids, _ in rows]),
            "types": np.concatenate([types for _, types in rows]),
            "lengths": np.array([len(ids) for ids, _ in rows], np.int32),
            "cut": cut,
        }
        start += len(some)


def _gathered(chunks: Iterable[token_files.Arrays]) -> Tokens:
    parts = list(chunks)
    return _tokens({name: np.concatenate([part[name] for part in parts]) for name in token_files.ARRAYS})


def _tokens(arrays: token_files.Arrays) -> Tokens:
    return Tokens(
        ids=arrays["ids"],
        offsets=np.concatenate([[0], np.cumsum(arrays["lengths"], dtype=np.int64)]),
        types=arrays["types"],
        cut=np.array(arrays["cut"]),
    )


def _encode(texts: Sequence[Text], tokenizer: Any, **limit: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    first = [text for text, _ in texts]
    second = None if texts[0][1] is None else [pair for _, pair in texts]
    encoded = tokenizer(
        first,
        second,
        add_special_tokens=True,
        padding=False,
        return_attention_mask=False,
        return_token_type_ids=True,
        verbose=False,  # its warning about long rows is ours to give
        **({"truncation": False} | limit),
    )
    return [
        (np.array(ids, np.int32), np.array(types, np.int8))
        for ids, types in zip(encoded["input_ids"], encoded["token_type_ids"], strict=True)
    ]


def tokenizer_state(tokenizer: Any) -> Any:
    """All that decides how a fast tokenizer cuts texts, as JSON values."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    # These two are left over from the last call, and every call here sets them anew.
    backend.pop("truncation", None)
    backend.pop("padding", None)
    return [backend, tokenizer.truncation_side]


def _key(tokenizer: Any, recipe: Recipe) -> str:
    parts = [FORMAT_VERSION, *tokenizer_state(tokenizer), dataclasses.asdict(recipe)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _since(started: float) -> str:
    return f"{time.perf_counter() - started:.1f} s"
