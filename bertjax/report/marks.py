"""Named points of a plane: where the start, the end and the end of another task lie, as a stored result says."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from bertjax.landscape.store import END, OTHER_END, START

DEFAULT = {START: (0.0, 0.0), END: (1.0, 0.0)}

# Name -> matplotlib marker and size. Other names take those of `FURTHER` in turn.
MARKERS = {START: ("D", 7), END: ("*", 13), OTHER_END: ("p", 10)}
FURTHER = (("X", 9), ("h", 10), ("v", 9))

Points = Mapping[str, tuple[float, float]]


def marks_of(attrs: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Name -> (α, β) of the points that a result stores; start and end of δ₁ where it stores none."""
    if "marks" not in attrs:
        return dict(DEFAULT)
    return {name: (float(x), float(y)) for name, (x, y) in json.loads(attrs["marks"]).items()}


def shared_marks(results: Iterable[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """The points that all results (their attributes) have at the same place."""
    first, *others = [marks_of(attrs) for attrs in results]
    return {name: at for name, at in first.items() if all(other.get(name) == at for other in others)}


def markers(names: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Name -> matplotlib marker and size."""
    further = iter(FURTHER * 9)
    return {name: MARKERS[name] if name in MARKERS else next(further) for name in names}
