"""How orbax is opened, read and written here: clear errors, checksums, and nothing that depends on the clock."""

import contextlib
import errno
import gc
import json
import logging
import os
import shutil
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint.experimental.v1 as ocp

from bertjax.errors import InputError, first_line
from bertjax.training.checksums import changed, checksums

logging.getLogger("absl").setLevel(logging.CRITICAL)  # orbax logs what it then raises, and how it waits
# Of a damaged file, asyncio would show a traceback for each array besides the error that is raised.
logging.getLogger("asyncio").addFilter(lambda record: "tensorstore_spec" not in str(record.exc_info))
policies = ocp.training.preservation_policies
_ALWAYS = ocp.training.save_decision_policies.FixedIntervalPolicy(1)


def open_folder(folder: Path, keep: Any, write: bool) -> ocp.training.Checkpointer:
    # Orbax measures its time limits by the clock on the wall, which may jump: no limit, and nothing that has its own.
    waiting = ocp.options.AsyncOptions(timeout_secs=10**9, create_directories_asynchronously=False)
    with writing(folder):
        return ocp.training.Checkpointer(
            folder.absolute(),
            context=ocp.Context(async_options=waiting),
            save_decision_policy=_ALWAYS,
            preservation_policy=keep,
            cleanup_tmp_directories=write,
        )


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns what a save may raise, now or later (a full disk, a folder that went away), into one clear line."""
    try:
        yield
    except Exception as error:
        raise InputError(f"{path} cannot be written: {_reason(error)}; what was complete before is kept") from error


def metadata(checkpointer: ocp.training.Checkpointer, step: int, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Shapes and types of a checkpoint's arrays, and what `_sealed` was given."""

    def read() -> tuple[Any, str, int]:
        metadata = checkpointer.checkpointables_metadata(step)
        return metadata.metadata, metadata.custom_metadata["seal"], metadata.custom_metadata["crc32"]

    shapes, text, crc = _reading(where, read)
    if zlib.crc32(text.encode()) != crc:
        raise InputError(f"{where} is damaged: its description has another checksum")
    return shapes, json.loads(text)


def sealed(values: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(values)
    return {"seal": text, "crc32": zlib.crc32(text.encode())}


def load(checkpointer: ocp.training.Checkpointer, step: int, items: dict[str, Any], where: str) -> dict[str, Any]:
    return _reading(where, lambda: checkpointer.load_checkpointables(step, items))


def _reading(where: str, function: Callable[[], Any]) -> Any:
    """Calls a function that reads by orbax; InputError with the reason if it fails."""
    with _quiet():
        try:
            return function()
        except Exception as error:
            reason = _reason(error)
        time.sleep(0.2)  # reads under way end, and complain that nobody waits for them
        gc.collect()
    raise InputError(f"{where} cannot be read: {reason}")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences what orbax leaves behind when a file is damaged: the error itself says all there is to say."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    finally:
        sys.unraisablehook = hook


def check_sums(expected: dict[str, int], tree: Any, where: str) -> None:
    wrong = changed(expected, checksums(tree))
    if wrong:
        more = f" and {len(wrong) - 1} more arrays" if len(wrong) > 1 else ""
        raise InputError(f"{where} is damaged: {wrong[0]}{more} is not what was saved")


def described(path: Path) -> bool:
    """Whether orbax will be able to list the checkpoint."""
    try:
        json.loads((path / "_CHECKPOINT_METADATA").read_text())
        if (path / "metrics").exists():
            json.loads((path / "metrics" / "metrics").read_text())
    except (OSError, ValueError):
        return False
    return True


def set_aside(folder: Path, name: str) -> None:
    target = folder.with_name("damaged") / f"{folder.name}-{name}"
    target.parent.mkdir(exist_ok=True)
    number = 0
    while target.exists():
        number += 1
        target = target.with_name(f"{folder.name}-{name}-{number}")
    shutil.move(folder / name, target)


def _reason(error: BaseException) -> str:
    """The innermost cause in one line: orbax wraps what tensorstore or the system said."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, KeyError):
        return f"its description has no entry {error}"
    reason = first_line(error).partition(" [tensorstore_spec")[0]
    return next((known for known in (os.strerror(errno.ENOSPC), os.strerror(errno.EROFS)) if known in reason), reason)


def check_shapes(found: Any, expected: Any, where: str) -> None:
    """Orbax reports a wrong shape late and casts a wrong type in silence; here both are named."""
    there, wanted = _shapes(found), _shapes(expected)
    problems = [
        f"{path}: is {there.get(path, 'absent')}, expected {shape}"
        for path, shape in wanted.items()
        if there.get(path) != shape
    ]
    problems += [f"{path}: is there, but the model has no such parameter" for path in there if path not in wanted]
    if problems:
        more = f"; and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise InputError(
            f"{where} does not fit the model, or its description is damaged: {'; '.join(problems[:4])}{more}"
        )


def _shapes(tree: Any) -> dict[str, str]:
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: hasattr(x, "shape"))
    return {
        "/".join(_name(key) for key in path): f"{leaf.dtype}{list(leaf.shape)}"
        for path, leaf in leaves
        if hasattr(leaf, "shape")
    }


def _name(key: Any) -> str:
    return str(next(getattr(key, a) for a in ("name", "key", "idx") if hasattr(key, a)))
