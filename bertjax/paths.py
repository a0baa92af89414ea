"""Paths: ``package://MODULE/file`` names a file inside an installed package; files are written beside and renamed."""

import contextlib
import importlib.util
import json
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertjax.errors import InputError

PACKAGE = "package://"


def resolve(path: str) -> Path:
    """The plain path for a path or a ``package://MODULE/file`` address. It need not exist.

    Raises:
      InputError: the address is malformed or its module is not installed.
    """
    if not path.startswith(PACKAGE):
        return Path(path).expanduser()
    module, _, rest = path[len(PACKAGE) :].partition("/")
    if not module.isidentifier():
        raise InputError(f"{path}: expected package://MODULE/file, where MODULE is the import name of a package")
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"{path}: no package {module!r} is installed (the demo's are in requirements/demo.txt)")
    root = Path(next(iter(spec.submodule_search_locations)))
    target = (root / rest).resolve()
    if not target.is_relative_to(root.resolve()):
        raise InputError(f"{path}: leaves the package {module!r}")
    return target


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; renames it onto `path` if the block succeeds, removes it if not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The temporary file keeps the ending: numpy adds its own to a file without.
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.tmp-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        _flush(temporary)  # or a power cut could leave the new name with nothing in it
        temporary.replace(path)
        _flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk; some file systems cannot do the latter."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError) if path.is_dir() else contextlib.nullcontext():
            os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Writes a text file so that a reader sees the old contents or the new, never a part."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, values: Any) -> None:
    """Writes a JSON file by `write_text`; numbers that are not finite become null, as JSON has no others."""
    write_text(path, json.dumps(finite_or_none(values), indent=2, allow_nan=False) + "\n")


def finite_or_none(values: Any) -> Any:
    """Nested dictionaries and lists with None in place of numbers that are not finite."""
    if isinstance(values, dict):
        return {key: finite_or_none(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [finite_or_none(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def remove_temporary(folder: Path) -> None:
    """Removes what a killed process left of files it was writing by `replacing` in this folder."""
    for path in folder.glob(".*.tmp-*"):
        path.unlink(missing_ok=True)
