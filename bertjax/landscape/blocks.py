"""Computes a result block by block, and keeps finished blocks in Zarr until the result is whole (see store.py).

A block of points is one chunk of each array, with a checksum. A block's values are written before its status, and the
status alone says that a point is done; so a process that is killed loses at most the block it was computing.
"""

import dataclasses
import json
import shutil
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from bertjax import stopping
from bertjax.errors import InputError, first_line
from bertjax.landscape.store import check_identity
from bertjax.progress import bar, say

TODO, DONE, NOT_FINITE = 0, 1, 2

_CHECKED = (zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec())  # a checksum of each chunk as it lies on disk


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A computation whose program is compiled: run it block by block, or ask what it costs."""

    compute: Callable[[np.ndarray], dict[str, np.ndarray]]
    """Numbers of the points of a block [block] -> {name: [block, n]}."""
    count: int
    """Number of points."""
    block: int
    """Points per block."""
    points_per_step: int = 1
    """Points that are evaluated together."""
    memory: int | None = None
    """Bytes of the compiled program with its arguments and outputs; None where it does not say."""

    def seconds(self) -> float:
        """Seconds that all points will take, from a block that is computed twice and thrown away."""
        first = self._numbers(0)
        self.compute(first)
        begin = time.perf_counter()
        self.compute(first)
        return (time.perf_counter() - begin) * -(-self.count // self.block)

    def run(self, store: "GridStore | None" = None, *, what: str = "", unit: str = "point") -> dict[str, np.ndarray]:
        """Computes all blocks that the store lacks; a signal stops it between two blocks.

        Args:
          store: keeps finished blocks; None: they are kept in memory.
          what: name on the progress bar; empty: no bar.
          unit: what a point is called there.

        Returns:
          {name: [points, n]}, and `status` [points].
        """
        count, block = self.count, self.block
        numbers = store.missing_blocks() if store else list(range(-(-count // block)))
        kept: dict[int, dict[str, np.ndarray]] = {}
        done = count - sum(min(block, count - number * block) for number in numbers)
        progress = bar(count, what, unit, initial=done) if what else None
        try:
            with stopping.graceful():
                for number in numbers:
                    values = self.compute(self._numbers(number))
                    if store:
                        store.write(number, values)
                    else:
                        kept[number] = values
                    if progress:
                        progress.update(min(block, count - number * block))
                    stopping.check()
        finally:
            if progress:
                progress.close()
        if store:
            return store.values() | {"status": store.status()}
        whole = {name: np.concatenate([kept[n][name] for n in numbers])[:count] for name in kept[0]}
        finite = np.all([np.isfinite(x).all(axis=1) for x in whole.values()], axis=0)
        return whole | {"status": np.where(finite, DONE, NOT_FINITE).astype(np.int8)}

    def _numbers(self, block: int) -> np.ndarray:
        """Numbers of the points of a block; the last one is filled up with its last point."""
        return np.minimum(np.arange(block * self.block, (block + 1) * self.block), self.count - 1)


class GridStore:
    """Values of a result while it is computed: named arrays [points, n], and a status per point."""

    def __init__(self, path: Path, group: zarr.Group) -> None:
        self.path, self._group = path, group

    @classmethod
    def create(cls, path: Path, identity: dict[str, Any], points: int, block: int, points_per_step: int) -> "GridStore":
        """A new store; `identity` is what must be equal for a computation to continue here."""
        if path.exists():
            shutil.rmtree(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        attributes = {
            "identity": json.loads(json.dumps(identity)),
            "points": points,
            "block": block,
            "points_per_step": points_per_step,
        }
        # Renamed when it is whole: a process that is killed here leaves no store without its status.
        new = path.with_name(f".{path.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        group = zarr.open_group(new, mode="w", attributes=attributes | {"crc32": _crc(attributes)})
        shape = (-(-points // block) * block,)
        group.create_array("status", shape=shape, chunks=(block,), dtype="int8", fill_value=TODO, compressors=_CHECKED)
        new.rename(path)
        return cls(path, zarr.open_group(path, mode="r+"))

    @classmethod
    def open(cls, path: Path) -> "GridStore":
        """An existing store. Blocks that are damaged are named, and are to be computed again.

        Raises:
          InputError: what says whose blocks these are, or how they are cut, is damaged.
        """
        for leftover in path.rglob("*.partial"):  # of a writer that was killed
            leftover.unlink()
        try:
            group = zarr.open_group(path, mode="r+")
            attributes = dict(group.attrs)
            if attributes.pop("crc32") != _crc(attributes):
                raise ValueError("its description has another checksum")
            store = cls(path, group)
            store._check_shapes()
        except Exception as error:
            raise InputError(f"{path} is damaged ({first_line(error)}); remove it to start again") from None
        for number in range(-(-store.points // store.block)):
            store._check_block(number)
        return store

    @classmethod
    def resume(cls, path: Path, identity: dict[str, Any]) -> "GridStore | None":
        """The store at `path`; None if there is none; InputError if it is damaged or of another computation."""
        if not path.exists():
            return None
        store = cls.open(path)
        check_identity(path, store.identity, identity)
        return store

    @property
    def identity(self) -> dict[str, Any]:
        """What the values belong to."""
        return self._group.attrs["identity"]

    @property
    def points(self) -> int:
        """Number of points."""
        return self._group.attrs["points"]

    @property
    def block(self) -> int:
        """Points per block."""
        return self._group.attrs["block"]

    @property
    def points_per_step(self) -> int:
        """Points that are evaluated together."""
        return self._group.attrs["points_per_step"]

    def status(self) -> np.ndarray:
        """Status of each point, [points] int8."""
        return np.asarray(self._group["status"][:])[: self.points]

    def missing_blocks(self) -> list[int]:
        """Numbers of the blocks that have points to do."""
        status = self.status()
        starts = range(0, self.points, self.block)
        return [start // self.block for start in starts if (status[start : start + self.block] == TODO).any()]

    def write(self, number: int, values: dict[str, np.ndarray]) -> None:
        """Writes the values of a block, arrays [block, n], then its status."""
        finite = np.ones(self.block, bool)
        for name, array in values.items():
            if name not in self._group:
                self._group.create_array(
                    name,
                    shape=(self._group["status"].shape[0], array.shape[1]),
                    chunks=(self.block, array.shape[1]),
                    dtype=array.dtype,
                    fill_value=np.nan,
                    compressors=_CHECKED,
                )
            # A chunk that is NaN everywhere is written too, or it could not be told from one that was lost.
            with zarr.config.set({"array.write_empty_chunks": True}):
                self._group[name][self._rows(number)] = array
            finite &= np.isfinite(array).all(axis=1)
        self._group["status"][self._rows(number)] = np.where(finite, DONE, NOT_FINITE).astype(np.int8)

    def values(self) -> dict[str, np.ndarray]:
        """All arrays, [points, n]; NaN where a point is still to do."""
        return {name: np.asarray(self._group[name][:])[: self.points] for name in self._names()}

    def _names(self) -> list[str]:
        return sorted(name for name in self._group.array_keys() if name != "status")

    def _rows(self, number: int) -> slice:
        return slice(number * self.block, (number + 1) * self.block)

    def _check_shapes(self) -> None:
        """ValueError if an array is not cut into blocks as the attributes say."""
        whole = -(-self.points // self.block) * self.block
        for name in ("status", *self._names()):
            array = self._group[name]
            kind = "i" if name == "status" else "f"
            if array.shape[0] != whole or array.chunks != (self.block, *array.shape[1:]) or array.dtype.kind != kind:
                raise ValueError(f"the array {name} is not cut into blocks of {self.block} points")

    def _check_block(self, number: int) -> None:
        """Marks a block that cannot be read, or is not what its status says, as to do."""
        try:
            status = np.asarray(self._group["status"][self._rows(number)])
            if (status == TODO).all():
                return
            if not np.isin(status, (DONE, NOT_FINITE)).all():
                raise ValueError(f"status {sorted(set(status.tolist()))}")
            finite = np.ones(self.block, bool)
            for name in self._names():
                if not (self.path / name / "c" / str(number) / "0").is_file():
                    raise ValueError(f"the chunk of {name} is lost")
                finite &= np.isfinite(self._group[name][self._rows(number)]).all(axis=1)
            if not self._names() or (np.where(finite, DONE, NOT_FINITE) != status).any():
                raise ValueError("the status is not that of the values")
        except Exception as error:
            say(f"damaged block {number} of {self.path} ({first_line(error)}): it is computed again")
            self._group["status"][self._rows(number)] = np.full(self.block, TODO, np.int8)


def _crc(attributes: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(attributes, sort_keys=True).encode())
