"""Texts of rows: in memory while they are few, the others in a file without a name."""

import functools
import json
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, overload

from bertjax.errors import InputError

Text = tuple[str, str | None]
"""A text and its second text, None where texts are single."""

IN_MEMORY = 64_000_000  # characters that stay in memory
CHUNK = 2000  # rows that are written and read at once


class Texts(Sequence[Text]):
    """A sequence that grows by `append`; what is beyond `IN_MEMORY` characters lies on the disk and is read when asked.

    The file has no name: nothing of it is left when the process ends, in whatever way.
    """

    def __init__(self, folder: str = "") -> None:
        """`folder` takes the file; empty: all stays in memory."""
        self._folder = folder
        self._memory: list[Text] = []
        self._characters = 0
        self._file: IO[bytes] | None = None
        self._chunks: list[tuple[int, int]] = []  # offset and length in the file of CHUNK rows each
        self._last: list[Text] = []  # rows behind those
        self._read = functools.lru_cache(maxsize=2)(self._read_chunk)

    def append(self, text: Text) -> None:
        """Adds a row.

        Raises:
          InputError: the file cannot be written.
        """
        if not self._folder or self._characters < IN_MEMORY:
            self._memory.append(text)
            self._characters += len(text[0]) + len(text[1] or "")
            return
        self._last.append(text)
        if len(self._last) == CHUNK:
            self._write_chunk()

    def __len__(self) -> int:
        return len(self._memory) + CHUNK * len(self._chunks) + len(self._last)

    @overload
    def __getitem__(self, index: int) -> Text: ...
    @overload
    def __getitem__(self, index: slice) -> list[Text]: ...
    def __getitem__(self, index: int | slice) -> Text | list[Text]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        if at < len(self._memory):
            return self._memory[at]
        chunk, place = divmod(at - len(self._memory), CHUNK)
        return (self._last if chunk == len(self._chunks) else self._read(chunk))[place]

    def __iter__(self) -> Iterator[Text]:
        yield from self._memory
        for chunk in range(len(self._chunks)):
            yield from self._read(chunk)
        yield from self._last

    def taken(self, indices: Sequence[int]) -> "Texts":
        """The rows at ascending `indices`."""
        texts = Texts(self._folder)
        for i in indices:
            texts.append(self[i])
        return texts

    def _write_chunk(self) -> None:
        data = json.dumps(self._last).encode()
        try:
            if self._file is None:
                folder = Path(self._folder).expanduser()
                folder.mkdir(parents=True, exist_ok=True)
                self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
                weakref.finalize(self, self._file.close)
            offset = self._file.seek(0, 2)
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise InputError(
                f"{self._folder}: {error.strerror}; the texts that do not fit in memory are kept there, expected room "
                "for them, or another folder in --data.cache"
            ) from error
        self._chunks.append((offset, len(data)))
        self._last = []

    def _read_chunk(self, chunk: int) -> list[Text]:
        offset, length = self._chunks[chunk]
        assert self._file is not None
        self._file.seek(offset)
        return [(first, second) for first, second in json.loads(self._file.read(length))]
