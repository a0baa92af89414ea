"""Word pieces in files: written chunk by chunk, and mapped into memory to be read, so that they may be larger than it.

A cache entry is a folder with one .npy file for each array of `ARRAYS` and entry.json, which is written last and holds
the key and a CRC-32 of the data of each array.
"""

import contextlib
import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

Arrays = Mapping[str, np.ndarray]

ARRAYS = {"ids": np.int32, "types": np.int8, "lengths": np.int32, "cut": np.bool_}
"""Names and types of the arrays, each of one dimension: two with an entry for each word piece, two for each row."""

_ENTRY = "entry.json"
_BLOCK = 1 << 20  # entries that are checked at once
_OLD = 86400  # seconds after which an entry that is not whole is nobody's


def write(folder: Path, key: str, chunks: Iterable[Arrays]) -> None:
    """Writes an entry in place of what is at `folder`, which is the old one, or whole, at any time.

    Raises:
      OSError: it cannot be written; nothing is left of it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_old(folder)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.tmp-", dir=folder.parent))
    try:
        with contextlib.ExitStack() as stack:
            files = {
                name: stack.enter_context(_Growing(temporary / f"{name}.npy", dtype)) for name, dtype in ARRAYS.items()
            }
            for chunk in chunks:
                for name, file in files.items():
                    file.append(chunk[name])
        sums = {name: file.crc for name, file in files.items()}
        (temporary / _ENTRY).write_text(json.dumps({"key": key, "crc32": sums}), encoding="utf-8")
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o777 & ~mask)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was quicker, with the same contents
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read(folder: Path, key: str, rows: int) -> Arrays | None:
    """The arrays of an entry, in maps of its files; None where there is none or it is not what it should be."""
    try:
        entry = json.loads((folder / _ENTRY).read_text(encoding="utf-8"))
        if entry["key"] != key:
            return None
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ARRAYS}
        if any(array.dtype != ARRAYS[name] or array.ndim != 1 for name, array in arrays.items()):
            return None
        if any(_crc(array) != entry["crc32"][name] for name, array in arrays.items()):
            return None
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None
    return arrays if len(arrays["lengths"]) == len(arrays["cut"]) == rows else None


def _remove_old(folder: Path) -> None:
    """Removes what a process left that was killed while it wrote this entry, a day ago or earlier."""
    for left in folder.parent.glob(f".{folder.name}.tmp-*"):
        with contextlib.suppress(OSError):
            if time.time() - max(path.stat().st_mtime for path in (left, *left.iterdir())) > _OLD:
                shutil.rmtree(left, ignore_errors=True)


class _Growing:
    """A .npy file of one dimension that is made longer; its header has room for any length."""

    def __init__(self, path: Path, dtype: type) -> None:
        self._dtype, self._count, self.crc = np.dtype(dtype), 0, 0
        self._file = path.open("wb")

    def __enter__(self) -> "_Growing":
        self._header()
        return self

    def append(self, values: np.ndarray) -> None:
        data = np.ascontiguousarray(values, self._dtype).tobytes()
        self._file.write(data)
        self.crc = zlib.crc32(data, self.crc)
        self._count += len(values)

    def __exit__(self, *_: object) -> None:
        try:
            self._file.seek(0)
            self._header()
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:
            self._file.close()

    def _header(self) -> None:
        fields = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self._count,),
        }
        np.lib.format.write_array_header_1_0(self._file, fields)


def _crc(array: np.ndarray) -> int:
    crc = 0
    for start in range(0, len(array), _BLOCK):
        crc = zlib.crc32(array[start : start + _BLOCK].tobytes(), crc)
    return crc
