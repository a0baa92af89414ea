"""Checkpoints and parameter snapshots of a run. Orbax itself is known to orbax_files.py alone.

`checkpoints/` holds what training needs to continue (state and data iterator together): the last two, and the best by
the headline metric. `snapshots/` holds parameters alone, from step 0 to the last, for all that looks at training.
Checksums of all arrays are kept with them, so that a damaged file is noticed and never trained on.
"""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from bertjax.errors import InputError
from bertjax.progress import say
from bertjax.training.checksums import checksums
from bertjax.training.orbax_files import (
    check_shapes,
    check_sums,
    described,
    load,
    metadata,
    open_folder,
    policies,
    sealed,
    set_aside,
    writing,
)


@dataclasses.dataclass(frozen=True)
class Resumed:
    """A checkpoint that was read back."""

    step: int
    state: Any
    scores: dict[str, float] | None
    """Metrics of the evaluation at this step; None where it has not been done."""
    pending: list[dict[str, float]]
    """Values of training steps that metrics.jsonl does not hold yet."""


class _Saver:
    """What saves in the background: waited for, and heard when it fails."""

    _folder: Path
    _checkpointer: Any

    def wait(self) -> None:
        """Waits for the save under way."""
        with writing(self._folder):
            self._checkpointer.wait()

    def close(self) -> None:
        """Waits for the save under way, and ends the work of this object."""
        with writing(self._folder):
            self._checkpointer.close()


class Checkpoints(_Saver):
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
        self._keep = policies.AnyPreservationPolicy([policies.LatestN(2), policies.BestN(get_metric_fn=rank, n=1)])
        self._set_unreadable_aside()
        self._checkpointer = open_folder(folder, self._keep, write=True)

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
        with writing(self._folder / str(step)):
            self._checkpointer.save_checkpointables_async(
                step,
                {"state": state, "iterator": iterator},
                metrics=scores,
                custom_metadata=sealed(seal),
                overwrite=step in self.steps,
            )

    def resume(self, abstract: Any, iterator: Any, at: int | None = None) -> Resumed | None:
        """The last checkpoint that is whole, laid out as `abstract` says; sets the iterator to where it was.

        With `at`, later ones than that step are passed over; they are replaced when training comes there again.
        Damaged checkpoints are named and moved to the folder `damaged` beside theirs. None: there is no checkpoint yet.

        Raises:
          InputError: there are checkpoints, and none of them is whole; or they belong to another model.
        """
        bad = []
        for step in reversed([step for step in self.steps if at is None or step <= at]):
            try:
                resumed = self._read(step, abstract, iterator)
            except InputError as error:
                bad.append((step, str(error)))
                continue
            for number, reason in bad:
                say(f"damaged {reason}; it is set aside, training continues at step {step}")
                self._checkpointer.close()
                set_aside(self._folder, str(number))
            if bad:
                self._checkpointer = open_folder(self._folder, self._keep, write=True)
            return resumed
        if bad:
            raise InputError(f"no checkpoint can be read: {'; '.join(reason for _, reason in bad)}")
        return None

    def _read(self, step: int, abstract: Any, iterator: Any) -> Resumed:
        where = f"checkpoint {self._folder / str(step)}"
        found, seal = metadata(self._checkpointer, step, where)
        check_shapes(found["state"], abstract, where)
        state = load(self._checkpointer, step, {"state": abstract, "iterator": iterator}, where)["state"]
        check_sums(seal["state"], state, where)
        _check_step(int(state.step), step, where)
        if json.loads(json.dumps(iterator.get_state())) != seal["iterator"]:
            raise InputError(f"{where} is damaged: the position in the data is not the one that was saved")
        return Resumed(step, state, seal["scores"], seal["pending"])

    def _set_unreadable_aside(self) -> None:
        """Orbax refuses to open a folder in which one checkpoint has lost its description."""
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if path.name.isdigit() and not described(path):
                say(f"damaged checkpoint {path} cannot be read; it is set aside")
                set_aside(self._folder, path.name)


class Snapshots(_Saver):
    """Parameters of a run at chosen steps.

    Args:
      folder: where they are.
      write: make the folder, and remove the remains of a save that was cut short. Only for the process that trains.
    """

    def __init__(self, folder: Path, write: bool = False) -> None:
        if not write and not folder.is_dir():
            raise InputError(f"{folder} does not exist: the run has no parameter snapshots")
        self._folder = folder
        self._checkpointer = open_folder(folder, policies.PreserveAll(), write)

    @property
    def steps(self) -> list[int]:
        """Steps at which parameters were kept, ascending."""
        return sorted(c.step for c in self._checkpointer.checkpoints)

    def save(self, step: int, params: Any) -> None:
        """Saves in the background, unless there is a snapshot of this step already."""
        if step in self.steps:
            return
        with writing(self._folder / str(step)):
            self._checkpointer.save_checkpointables_async(
                step, {"params": params}, custom_metadata=sealed({"step": step, "params": checksums(params)})
            )

    def load(self, step: int, abstract: Any) -> Any:
        """The parameters at `step`, laid out as `abstract` says (a tree of ShapeDtypeStruct with shardings).

        Raises:
          InputError: no such snapshot, a damaged one, or one of another architecture (the parameter is named).
        """
        where = f"snapshot {self._folder / str(step)}"
        if step not in self.steps:
            raise InputError(f"{where} does not exist; there are steps {self.steps}")
        found, seal = metadata(self._checkpointer, step, where)
        check_shapes(found["params"], abstract, where)
        params = load(self._checkpointer, step, {"params": abstract}, where)["params"]
        check_sums(seal["params"], params, where)
        _check_step(seal["step"], step, where)
        return params


def _check_step(found: int, step: int, where: str) -> None:
    if found != step:
        raise InputError(f"{where} is damaged: it holds step {found}")


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps of the checkpoints in a folder, ascending; reads only."""
    return (
        sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit() and described(path))
        if folder.is_dir()
        else []
    )


def checkpoint_params(folder: Path, step: int, abstract: Any) -> Any:
    """The parameters in a checkpoint, laid out as the abstract state says.

    Raises:
      InputError: a damaged checkpoint, or one of another model.
    """
    where = f"checkpoint {folder / str(step)}"
    checkpointer = open_folder(folder, policies.PreserveAll(), write=False)
    found, seal = metadata(checkpointer, step, where)
    check_shapes(found["state"], abstract, where)
    state = load(checkpointer, step, {"state": abstract}, where)["state"]
    check_sums(seal["state"], state, where)
    _check_step(int(state.step), step, where)
    checkpointer.close()
    return state.params
