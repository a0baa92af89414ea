"""Checkpoints and parameter snapshots of a run. The only module that knows orbax.

`checkpoints/` holds what training needs to continue (state and data iterator together): the last and the best by the
headline metric. `snapshots/` holds parameters alone, from step 0 to the last, for everything that looks at training.
"""

import logging
import math
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint.experimental.v1 as ocp

from bertjax.errors import InputError, first_line

logging.getLogger("absl").setLevel(logging.ERROR)  # orbax warns that an iterator has no metadata
_policies = ocp.training.preservation_policies
_ALWAYS = ocp.training.save_decision_policies.FixedIntervalPolicy(1)


class Checkpoints:
    """The last and the best checkpoint of a run.

    Args:
      folder: where they are; made if absent.
      metric: name of the headline metric in the metrics given to `save`.
      higher_is_better: which end of it is the best.
    """

    def __init__(self, folder: Path, metric: str, higher_is_better: bool) -> None:
        sign = 1.0 if higher_is_better else -1.0

        def rank(metrics: dict[str, float]) -> float:
            value = metrics.get(metric, math.nan)
            return -math.inf if math.isnan(value) else sign * value

        self._rank = rank
        keep = _policies.AnyPreservationPolicy([_policies.LatestN(1), _policies.BestN(get_metric_fn=rank, n=1)])
        self._checkpointer = _open(folder, keep)

    @property
    def last(self) -> int | None:
        """Step of the last checkpoint, or None."""
        latest = self._checkpointer.latest
        return None if latest is None else latest.step

    @property
    def best(self) -> int | None:
        """Step of the best checkpoint (the latest of equals), or None."""
        found = [(self._rank(c.metrics or {}), c.step) for c in self._checkpointer.checkpoints]
        return max(found)[1] if found else None

    def save(self, step: int, state: Any, iterator: Any, metrics: dict[str, float]) -> None:
        """Saves in the background; the next save or `close` waits for it and raises what went wrong.

        The state is copied before this returns, so it may be donated to the next step.
        """
        self._checkpointer.save_checkpointables_async(step, {"state": state, "iterator": iterator}, metrics=metrics)

    def restore(self, step: int, abstract: Any, iterator: Any) -> Any:
        """The state saved at `step`, laid out as `abstract` says; sets the iterator to where it was."""
        found = _metadata(self._checkpointer, step)
        _check_shapes(found["state"], abstract, f"checkpoint {self._checkpointer.directory / str(step)}")
        items = {"state": abstract, "iterator": iterator}
        return self._checkpointer.load_checkpointables(step, items)["state"]

    def close(self) -> None:
        """Waits for the saves under way."""
        self._checkpointer.close()


class Snapshots:
    """Parameters of a run at chosen steps."""

    def __init__(self, folder: Path, create: bool = False) -> None:
        if not create and not folder.is_dir():
            raise InputError(f"{folder} does not exist: the run has no parameter snapshots")
        self._checkpointer = _open(folder, _policies.PreserveAll())

    @property
    def steps(self) -> list[int]:
        """Steps at which parameters were kept, ascending."""
        return [c.step for c in self._checkpointer.checkpoints]

    def save(self, step: int, params: Any) -> None:
        """Saves in the background, unless there is a snapshot of this step already."""
        if step not in self.steps:
            self._checkpointer.save_checkpointables_async(step, {"params": params})

    def load(self, step: int, abstract: Any) -> Any:
        """The parameters at `step`, laid out as `abstract` says (a tree of ShapeDtypeStruct with shardings).

        Raises:
          InputError: no such snapshot, or it belongs to another architecture (the parameter is named).
        """
        where = f"snapshot {self._checkpointer.directory / str(step)}"
        if step not in self.steps:
            raise InputError(f"{where} does not exist; there are steps {self.steps}")
        _check_shapes(_metadata(self._checkpointer, step)["params"], abstract, where)
        return self._checkpointer.load_checkpointables(step, {"params": abstract})["params"]

    def close(self) -> None:
        """Waits for the saves under way."""
        self._checkpointer.close()


def _open(folder: Path, keep: Any) -> ocp.training.Checkpointer:
    return ocp.training.Checkpointer(
        folder.absolute(), save_decision_policy=_ALWAYS, preservation_policy=keep, cleanup_tmp_directories=True
    )


def _metadata(checkpointer: ocp.training.Checkpointer, step: int) -> dict[str, Any]:
    try:
        return checkpointer.checkpointables_metadata(step).metadata
    except Exception as error:
        raise InputError(f"{checkpointer.directory / str(step)} cannot be read: {first_line(error)}") from error


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
