"""Finished results: one netCDF file each, with named dimensions, checksums, and what it was computed from."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from bertjax import paths
from bertjax.errors import InputError, brief, first_line

# Names of the points of a plane that a result may store as "marks".
START, END, OTHER_END = "start θ₀", "end θ₁", "end θ₂"
STATUS_MEANINGS = "0 todo, 1 done, 2 not finite"
# Stands after the end of the HDF5 file, where its readers do not look: the hash of all bytes before.
_SEAL = b"\nbertjax sha256 %s\n"
_SEAL_LENGTH = len(_SEAL % (b"0" * 64))


def write_netcdf(dataset: xr.Dataset, path: Path) -> Path:
    """Writes a result as netCDF-4, compressed; a reader sees the whole file or none."""
    encoding: dict[str, Any] = {}
    for name, variable in dataset.variables.items():
        if variable.dtype.kind in "fiu" and variable.ndim:
            packed = {"zlib": True, "complevel": 4} if variable.dtype.kind == "f" else {}
            encoding[str(name)] = {"fletcher32": True, **packed}
    # Made in memory: HDF5 crashes the process at its exit when the disk is full.
    contents = bytes(dataset.to_netcdf(engine="h5netcdf", encoding=encoding))
    with paths.replacing(path) as temporary:
        temporary.write_bytes(contents + _seal(contents))
    return path


def read_netcdf(path: Path) -> xr.Dataset:
    """Reads a stored result into memory; InputError if it is missing or damaged."""
    if not path.is_file():
        raise InputError(f"{path} {'is no file' if path.exists() else 'does not exist'}")
    try:
        contents = path.read_bytes()
        body, seal = contents[:-_SEAL_LENGTH], contents[-_SEAL_LENGTH:]
        if seal.startswith(_SEAL[:16]) and seal != _seal(body):
            raise ValueError("its bytes have another checksum than when it was written")
        with xr.open_dataset(path, engine="h5netcdf") as opened:
            return opened.load()
    except Exception as error:
        raise InputError(
            f"{path} is not a readable netCDF file ({first_line(error)}); remove it to compute it again"
        ) from None


def check_identity(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """InputError with the list of differences where a stored result belongs to another computation."""
    found, wanted = json.loads(json.dumps(found)), json.loads(json.dumps(wanted))
    keys = [key for key in wanted | found if found.get(key) != wanted.get(key)]
    if keys:
        shown = "; ".join(f"{key}: {brief(found.get(key))} -> {brief(wanted.get(key))}" for key in keys)
        raise InputError(f"{path} holds another computation ({shown}); choose another --name, or remove it")


def to_dataset(
    values: dict[str, np.ndarray], axes: dict[str, np.ndarray], split: np.ndarray, attributes: dict[str, Any]
) -> xr.Dataset:
    """Arranges values [points, examples] on their grid, with mean and standard error for each split.

    Args:
      values: {name: [points, examples]} and `status` [points].
      axes: coordinates by dimension name; the first runs fastest.
      split: [examples] name of each example's split.
      attributes: attributes of the dataset.
    """
    dims = tuple(reversed(axes))
    shape = tuple(len(axes[d]) for d in dims)
    names = list(dict.fromkeys(split.tolist()))
    dataset = xr.Dataset(
        coords={d: axes[d] for d in dims} | {"split": names, "example_split": ("example", split)}, attrs=attributes
    )
    dataset["status"] = (dims, values["status"].reshape(shape), {"meaning": STATUS_MEANINGS})
    for name in sorted(set(values) - {"status"}):
        array = values[name]
        mean = np.stack([array[:, split == s].mean(axis=1, dtype=np.float64) for s in names])
        error = np.stack([_standard_error(array[:, split == s]) for s in names])
        dataset[name] = (("split", *dims), mean.reshape(-1, *shape))
        dataset[f"{name}_se"] = (("split", *dims), error.reshape(-1, *shape))
        dataset[f"example_{name}"] = ((*dims, "example"), array.reshape(*shape, -1))
    return dataset


def _standard_error(array: np.ndarray) -> np.ndarray:
    n = array.shape[1]
    if n < 2:
        return np.full(array.shape[0], np.nan)
    with np.errstate(invalid="ignore", over="ignore"):
        return array.std(axis=1, ddof=1, dtype=np.float64) / np.sqrt(n)


def _seal(contents: bytes) -> bytes:
    return _SEAL % hashlib.sha256(contents).hexdigest().encode()
