"""Results of a grid on disk: Zarr while points are computed, one netCDF file at the end.

A block of points is one chunk of each array. A block's values are written before its status, and the status alone says
that a point is done; so a process that is killed loses at most the block it was computing.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

from bertjax import paths
from bertjax.errors import InputError, first_line

TODO, DONE, NOT_FINITE = 0, 1, 2
STATUS_MEANINGS = "0 todo, 1 done, 2 not finite"


class GridStore:
    """Values of a grid while it is computed: named arrays [points, examples], and a status per point."""

    def __init__(self, path: Path, group: zarr.Group) -> None:
        self.path, self._group = path, group

    @classmethod
    def create(cls, path: Path, identity: dict[str, Any], points: int, block: int, points_per_step: int) -> "GridStore":
        """A new store; `identity` is what must be equal for a computation to continue here."""
        if path.exists():
            shutil.rmtree(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        group = zarr.open_group(
            path,
            mode="w",
            attributes={"identity": identity, "points": points, "block": block, "points_per_step": points_per_step},
        )
        group.create_array(
            "status", shape=(_ceil(points, block) * block,), chunks=(block,), dtype="int8", fill_value=TODO
        )
        return cls(path, group)

    @classmethod
    def open(cls, path: Path) -> "GridStore":
        """An existing store; InputError if it is damaged."""
        try:
            store = cls(path, zarr.open_group(path, mode="r+"))
            store.status()
            int(store.block), int(store.points_per_step), dict(store.identity)
        except Exception as error:
            raise InputError(f"{path} is damaged ({first_line(error)}); remove it to start again") from None
        return store

    @property
    def identity(self) -> dict[str, Any]:
        """What the values belong to."""
        return self._group.attrs["identity"]

    @property
    def points(self) -> int:
        """Number of points of the grid."""
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
        """Writes the values of a block, arrays [block, examples], then its status."""
        rows = slice(number * self.block, (number + 1) * self.block)
        finite = np.ones(self.block, bool)
        for name, array in values.items():
            if name not in self._group:
                shape = (self._group["status"].shape[0], array.shape[1])
                self._group.create_array(
                    name, shape=shape, chunks=(self.block, array.shape[1]), dtype=array.dtype, fill_value=np.nan
                )
            self._group[name][rows] = array
            finite &= np.isfinite(array).all(axis=1)
        self._group["status"][rows] = np.where(finite, DONE, NOT_FINITE).astype(np.int8)

    def values(self) -> dict[str, np.ndarray]:
        """All arrays, [points, examples]; NaN where a point is still to do."""
        return {
            name: np.asarray(self._group[name][:])[: self.points]
            for name in sorted(self._group.array_keys())
            if name != "status"
        }

    def remove(self) -> None:
        """Deletes the store."""
        shutil.rmtree(self.path)


def check_identity(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """InputError with the list of differences where a stored result belongs to another computation."""
    found, wanted = json.loads(json.dumps(found)), json.loads(json.dumps(wanted))
    keys = [key for key in wanted | found if found.get(key) != wanted.get(key)]
    if keys:
        shown = "; ".join(f"{key}: {_short(found.get(key))} -> {_short(wanted.get(key))}" for key in keys)
        raise InputError(f"{path} holds another computation ({shown}); choose another --name, or remove it")


def write_netcdf(dataset: xr.Dataset, path: Path) -> Path:
    """Writes a result as netCDF-4, compressed; a reader sees the whole file or none."""
    encoding = {name: {"zlib": True, "complevel": 4} for name, v in dataset.data_vars.items() if v.dtype.kind == "f"}
    with paths.replacing(path) as temporary:
        dataset.to_netcdf(temporary, engine="h5netcdf", encoding=encoding)
    return path


def read_netcdf(path: Path) -> xr.Dataset:
    """Reads a stored result into memory; InputError if it is missing or damaged."""
    if not path.is_file():
        raise InputError(f"{path} does not exist")
    try:
        with xr.open_dataset(path, engine="h5netcdf") as dataset:
            return dataset.load()
    except Exception as error:
        raise InputError(f"{path} is not a readable netCDF file ({first_line(error)})") from None


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
