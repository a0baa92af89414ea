"""Word pieces of all rows of a file, made once and kept in a cache that is keyed by everything they depend on."""

import dataclasses
import hashlib
import json
import os
import time
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax import paths
from bertjax.data.rows import Text
from bertjax.errors import InputError

FORMAT_VERSION = 1  # goes up with any change to what is stored or to how texts are prepared
_CHUNK = 2000  # rows per tokenizer call: enough for its threads, little memory for Python lists


@dataclasses.dataclass(frozen=True, eq=False)
class Tokens:
    """Word pieces of n rows, one row after the other."""

    ids: np.ndarray
    """[total] int32, special tokens included."""
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
      recipe: decides the limit and, with the tokenizer, the name of the cache file.
      where: file and line of a row, for messages.
      cache: folder of the cache; empty: no cache.

    Returns:
      The word pieces, and a phrase that says where they come from.

    Raises:
      InputError: a row is too long and recipe.too_long is "error".
    """
    if not cache:
        started = time.perf_counter()
        return _encode_all(texts, tokenizer, recipe, where), f"tokenized in {_since(started)}, not cached"
    key = _key(tokenizer, recipe)
    file = Path(cache).expanduser() / "tokens" / f"{key[:32]}.npz"
    tokens = _load(file, key, len(texts), len(tokenizer))
    if tokens is not None:
        return tokens, f"read from {file}"
    started = time.perf_counter()
    tokens = _encode_all(texts, tokenizer, recipe, where)
    note = f"tokenized in {_since(started)}"
    try:
        _save(file, key, tokens)
    except OSError as error:  # a cache that cannot be written costs time, not the run
        return tokens, f"{note}, not cached ({file.parent}: {error.strerror})"
    return tokens, f"{note}, cached in {file}"


def _encode_all(texts: Sequence[Text], tokenizer: Any, recipe: Recipe, where: Callable[[int], str]) -> Tokens:
    # Said outright, or the tokenizers library warns when a process that has used it forks.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    rows: list[tuple[np.ndarray, np.ndarray]] = []
    cut = np.zeros(len(texts), bool)
    for start in range(0, len(texts), _CHUNK):
        chunk = _encode(texts[start : start + _CHUNK], tokenizer)
        long = [i for i, (ids, _) in enumerate(chunk) if len(ids) > recipe.max_length]
        if long and recipe.too_long == "error":
            raise InputError(
                f"{where(start + long[0])}: {len(chunk[long[0]][0]):,} word pieces, expected at most "
                f"--data.max_length={recipe.max_length} (--data.too_long=truncate cuts longer rows)"
            )
        if long:
            shortened = _encode(
                [texts[start + i] for i in long], tokenizer, truncation=True, max_length=recipe.max_length
            )
            for i, row in zip(long, shortened, strict=True):
                chunk[i] = row
            cut[start + np.array(long)] = True
        rows += chunk
    lengths = np.array([len(ids) for ids, _ in rows], np.int64)
    return Tokens(
        ids=np.concatenate([ids for ids, _ in rows]),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        types=np.concatenate([types for _, types in rows]),
        cut=cut,
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


def _save(file: Path, key: str, tokens: Tokens) -> None:
    with paths.replacing(file) as temporary:
        np.savez(temporary, key=np.array(key), **dataclasses.asdict(tokens))


def _load(file: Path, key: str, rows: int, vocabulary: int) -> Tokens | None:
    """The cached word pieces; None where there are none or the file is not what it should be."""
    try:
        with file.open("rb") as raw, np.load(raw, allow_pickle=False) as stored:
            if str(stored["key"]) != key:
                return None
            tokens = Tokens(**{field.name: stored[field.name] for field in dataclasses.fields(Tokens)})
    except (OSError, ValueError, KeyError, TypeError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error):
        return None
    ids, offsets = tokens.ids, tokens.offsets
    whole = (
        (ids.dtype, offsets.dtype, tokens.types.dtype, tokens.cut.dtype) == (np.int32, np.int64, np.int8, np.bool_)
        and all(array.ndim == 1 for array in (ids, offsets, tokens.types, tokens.cut))
        and len(offsets) == rows + 1 == len(tokens.cut) + 1
        and len(tokens.types) == len(ids) == offsets[-1]
        and offsets[0] == 0
        and bool((np.diff(offsets) > 0).all())
        and ids.min() >= 0
        and ids.max() < vocabulary
    )
    return tokens if whole else None


def _since(started: float) -> str:
    return f"{time.perf_counter() - started:.1f} s"
