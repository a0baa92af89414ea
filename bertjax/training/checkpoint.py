"""Checkpoints and parameter snapshots of a run. The only module that knows orbax.

`checkpoints/` holds what training needs to continue (state and data iterator together): the last two, and the best by
the headline metric. `snapshots/` holds parameters alone, from step 0 to the last, for all that looks at training.
Checksums of all arrays are kept with them, so that a damaged file is noticed and never trained on.
"""

import contextlib
import dataclasses
import gc
import json
import logging
import math
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
from bertjax.progress import say
from bertjax.training.checksums import changed, checksums

logging.getLogger("absl").setLevel(logging.CRITICAL)  # orbax logs what it then raises, and how it waits
# Of a damaged file, asyncio would show a traceback for each array besides the error that is raised.
logging.getLogger("asyncio").addFilter(lambda record: "tensorstore_spec" not in str(record.exc_info))
_policies = ocp.training.preservation_policies
_ALWAYS = ocp.training.save_decision_policies.FixedIntervalPolicy(1)


@dataclasses.dataclass(frozen=True)
class Resumed:
    """A checkpoint that was read back."""

    step: int
    state: Any
    scores: dict[str, float] | None
    """Metrics of the evaluation at this step; None where it has not been done."""
    pending: list[dict[str, float]]
    """Values of training steps that metrics.jsonl does not hold yet."""


class Checkpoints:
    """The last two checkpoints of a run and the best.

    Args:
      folder: where they are; made if absent. Remains of a save that was cut short are removed.
      metric: name of the headline metric in the scores given to `save`.
      higher_is_better: which end of it is the best.
    """

    def __init__(self, folder: Path, metric: str, higher_is_better: bool) -> None:
        sign = 1.0 if higher_is_better else -1.0

        def rank(metrics: dict[str, float] | None) -> float:
            value = (metrics or {}).get(metric, math.nan)
            return -math.inf if math.isnan(value) else sign * value

        self._folder, self._rank = folder, rank
        self._keep = _policies.AnyPreservationPolicy([_policies.LatestN(2), _policies.BestN(get_metric_fn=rank, n=1)])
        self._set_unreadable_aside()
        self._checkpointer = _open(folder, self._keep, write=True)

    @property
    def steps(self) -> list[int]:
        """Steps of all checkpoints, ascending."""
        return sorted(c.step for c in self._checkpointer.checkpoints)

    @property
    def best(self) -> int | None:
        """Step of the best checkpoint (the latest of equals), or None."""
        found = [(self._rank(c.metrics), c.step) for c in self._checkpointer.checkpoints]
        return max(found)[1] if found else None

    def save(
        self,
        step: int,
        state: Any,
        iterator: Any,
        scores: dict[str, float] | None,
        pending: list[dict[str, float]],
    ) -> None:
        """Saves in the background; the next save, `wait` or `close` waits for it and raises what went wrong.

        The state is copied before this returns, so it may be donated to the next step. A checkpoint of the same step,
        saved before its evaluation, is replaced.
        """
        seal = {"scores": scores, "pending": pending, "iterator": iterator.get_state(), "state": checksums(state)}
        with _writing(self._folder / str(step)):
            self._checkpointer.save_checkpointables_async(
                step,
                {"state": state, "iterator": iterator},
                metrics=scores,
                custom_metadata=_sealed(seal),
                overwrite=step in self.steps,
            )

    def resume(self, abstract: Any, iterator: Any) -> Resumed | None:
        """The last checkpoint that is whole, laid out as `abstract` says; sets the iterator to where it was.

        Damaged checkpoints are named and moved to the folder `damaged` beside theirs. None: there is no checkpoint yet.

        Raises:
          InputError: there are checkpoints, and none of them is whole; or they belong to another model.
        """
        bad = []
        for step in reversed(self.steps):
            try:
                resumed = self._read(step, abstract, iterator)
            except InputError as error:
                bad.append((step, str(error)))
                continue
            for number, reason in bad:
                say(f"damaged {reason}; it is set aside, training continues at step {step}")
                self._checkpointer.close()
                _set_aside(self._folder, str(number))
            if bad:
                self._checkpointer = _open(self._folder, self._keep, write=True)
            return resumed
        if bad:
            raise InputError(f"no checkpoint can be read: {'; '.join(reason for _, reason in bad)}")
        return None

    def _read(self, step: int, abstract: Any, iterator: Any) -> Resumed:
        where = f"checkpoint {self._folder / str(step)}"
        found, seal = _metadata(self._checkpointer, step, where)
        _check_shapes(found["state"], abstract, where)
        state = _load(self._checkpointer, step, {"state": abstract, "iterator": iterator}, where)["state"]
        _check_sums(seal["state"], state, where)
        if json.loads(json.dumps(iterator.get_state())) != seal["iterator"]:
            raise InputError(f"{where} is damaged: the position in the data is not the one that was saved")
        return Resumed(step, state, seal["scores"], seal["pending"])

    def _set_unreadable_aside(self) -> None:
        """Orbax refuses to open a folder in which one checkpoint has lost its description."""
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if path.name.isdigit() and not _described(path):
                say(f"damaged checkpoint {path} cannot be read; it is set aside")
                _set_aside(self._folder, path.name)

    def wait(self) -> None:
        """Waits for the save under way."""
        with _writing(self._folder):
            self._checkpointer.wait()

    def close(self) -> None:
        """Waits for the save under way, and ends the work of this object."""
        with _writing(self._folder):
            self._checkpointer.close()


class Snapshots:
    """Parameters of a run at chosen steps.

    Args:
      folder: where they are.
      write: make the folder, and remove the remains of a save that was cut short. Only for the process that trains.
    """

    def __init__(self, folder: Path, write: bool = False) -> None:
        if not write and not folder.is_dir():
            raise InputError(f"{folder} does not exist: the run has no parameter snapshots")
        self._folder = folder
        self._checkpointer = _open(folder, _policies.PreserveAll(), write)

    @property
    def steps(self) -> list[int]:
        """Steps at which parameters were kept, ascending."""
        return sorted(c.step for c in self._checkpointer.checkpoints)

    def save(self, step: int, params: Any) -> None:
        """Saves in the background, unless there is a snapshot of this step already."""
        if step in self.steps:
            return
        with _writing(self._folder / str(step)):
            self._checkpointer.save_checkpointables_async(
                step, {"params": params}, custom_metadata=_sealed({"params": checksums(params)})
            )

    def load(self, step: int, abstract: Any) -> Any:
        """The parameters at `step`, laid out as `abstract` says (a tree of ShapeDtypeStruct with shardings).

        Raises:
          InputError: no such snapshot, a damaged one, or one of another architecture (the parameter is named).
        """
        where = f"snapshot {self._folder / str(step)}"
        if step not in self.steps:
            raise InputError(f"{where} does not exist; there are steps {self.steps}")
        found, seal = _metadata(self._checkpointer, step, where)
        _check_shapes(found["params"], abstract, where)
        params = _load(self._checkpointer, step, {"params": abstract}, where)["params"]
        _check_sums(seal["params"], params, where)
        return params

    def wait(self) -> None:
        """Waits for the save under way."""
        with _writing(self._folder):
            self._checkpointer.wait()

    def close(self) -> None:
        """Waits for the save under way, and ends the work of this object."""
        with _writing(self._folder):
            self._checkpointer.close()


def _open(folder: Path, keep: Any, write: bool) -> ocp.training.Checkpointer:
    # Orbax measures its time limits by the clock on the wall, which may jump: no limit, and nothing that has its own.
    waiting = ocp.options.AsyncOptions(timeout_secs=10**9, create_directories_asynchronously=False)
    with _writing(folder):
        return ocp.training.Checkpointer(
            folder.absolute(),
            context=ocp.Context(async_options=waiting),
            save_decision_policy=_ALWAYS,
            preservation_policy=keep,
            cleanup_tmp_directories=write,
        )


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turns what a save may raise, now or later (a full disk, a folder that went away), into one clear line."""
    try:
        yield
    except Exception as error:
        raise InputError(f"{path} cannot be written: {_reason(error)}; what was complete before is kept") from error


def _metadata(checkpointer: ocp.training.Checkpointer, step: int, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Shapes and types of a checkpoint's arrays, and what `_sealed` was given."""

    def read() -> tuple[Any, str, int]:
        metadata = checkpointer.checkpointables_metadata(step)
        return metadata.metadata, metadata.custom_metadata["seal"], metadata.custom_metadata["crc32"]

    shapes, text, crc = _reading(where, read)
    if zlib.crc32(text.encode()) != crc:
        raise InputError(f"{where} is damaged: its description has another checksum")
    return shapes, json.loads(text)


def _sealed(values: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(values)
    return {"seal": text, "crc32": zlib.crc32(text.encode())}


def _load(checkpointer: ocp.training.Checkpointer, step: int, items: dict[str, Any], where: str) -> dict[str, Any]:
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


def _check_sums(expected: dict[str, int], tree: Any, where: str) -> None:
    wrong = changed(expected, checksums(tree))
    if wrong:
        more = f" and {len(wrong) - 1} more arrays" if len(wrong) > 1 else ""
        raise InputError(f"{where} is damaged: {wrong[0]}{more} is not what was saved")


def _described(path: Path) -> bool:
    """Whether orbax will be able to list the checkpoint."""
    try:
        json.loads((path / "_CHECKPOINT_METADATA").read_text())
        if (path / "metrics").exists():
            json.loads((path / "metrics" / "metrics").read_text())
    except (OSError, ValueError):
        return False
    return True


def _set_aside(folder: Path, name: str) -> None:
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
    return first_line(error).partition(" [tensorstore_spec")[0]


def _check_shapes(found: Any, expected: Any, where: str) -> None:
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
        raise InputError(f"{where} does not fit the model: {'; '.join(problems[:4])}{more}")


def _shapes(tree: Any) -> dict[str, str]:
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: hasattr(x, "shape"))
    return {
        "/".join(_name(key) for key in path): f"{leaf.dtype}{list(leaf.shape)}"
        for path, leaf in leaves
        if hasattr(leaf, "shape")
    }


def _name(key: Any) -> str:
    return str(next(getattr(key, a) for a in ("name", "key", "idx") if hasattr(key, a)))
