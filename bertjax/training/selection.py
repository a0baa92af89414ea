"""Selections of parameters by globs over their paths, down to single layers of the stack.

A glob is a shell pattern over whole paths (`*` also spans slashes): `encoder/embeddings/*`, `head/*`, `*/bias`. After
`encoder/layers` an index or slice in Python's meaning picks layers of the stack, counted from 0 at the bottom:
`encoder/layers[0:4]/*`, `encoder/layers[-1]/attention/*`. Without brackets all layers are meant.
"""

import difflib
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from bertjax.config import OptimOptions
from bertjax.errors import InputError
from bertjax.tree import flatten, unflatten

STACK = "encoder/layers/"
"""Prefix of the parameters that hold all layers along axis 0."""
_LAYERS = re.compile(r"encoder/layers\[(-?\d+|(-?\d*):(-?\d*))\](/.+)")


def is_stacked(path: str) -> bool:
    """Whether the parameter holds a slice of each layer along axis 0."""
    return path.startswith(STACK)


def layer_count(params: Any) -> int:
    """Number of layers in the stack; 0 where there is none."""
    return next((x.shape[0] for path, x in flatten(params).items() if is_stacked(path)), 0)


def select(params: Any, globs: Sequence[str], option: str) -> Any:
    """Which parameters any of `globs` selects.

    Args:
      params: tree of arrays or shapes.
      globs: see the module.
      option: name of the option that holds them, for errors.

    Returns:
      A tree of boolean numpy arrays that broadcast against the parameters: [layers, 1, ...] for those of the stack, []
      for others.

    Raises:
      InputError: a glob that selects nothing; names it, the option and parameters with similar paths.
    """
    leaves, layers = flatten(params), layer_count(params)
    chosen = {path: np.zeros(_mask_shape(path, x), bool) for path, x in leaves.items()}
    for glob in globs:
        pattern, which = _parse(glob, layers)
        paths = [path for path in leaves if fnmatchcase(path, pattern) and (which is None or is_stacked(path))]
        if not paths or (which is not None and not which):
            close = difflib.get_close_matches(pattern, leaves, n=3, cutoff=0.3) or list(leaves)[:3]
            raise InputError(
                f"{option}: {glob!r} matches no parameter of this model with {layers} layers; "
                f"parameters are, for example, {', '.join(close)}"
            )
        for path in paths:
            chosen[path][... if which is None else list(which)] = True
    return unflatten(chosen)


def trainable(options: OptimOptions, params: Any) -> Any | None:
    """Which parameters train, as `select` gives it; None where all do.

    Raises:
      InputError: a glob of `freeze` or `train_only` that selects nothing; nothing is left to train.
    """
    if not options.freeze and not options.train_only:
        return None
    mask = flatten(select(params, options.train_only or ("*",), "--optim.train_only"))
    frozen = flatten(select(params, options.freeze, "--optim.freeze"))
    mask = {path: x & ~frozen[path] for path, x in mask.items()}
    if not any(x.any() for x in mask.values()):
        raise InputError(
            f"--optim.freeze {' '.join(options.freeze)} and --optim.train_only {' '.join(options.train_only)} leave no "
            "parameter to train"
        )
    return unflatten(mask)


def count(params: Any, mask: Any | None) -> tuple[int, int]:
    """Number of selected values, and of all; `mask` None: all are selected."""
    leaves = flatten(params)
    whole = sum(int(np.prod(x.shape)) for x in leaves.values())
    if mask is None:
        return whole, whole
    return sum(int(x.mean() * np.prod(leaves[path].shape) + 0.5) for path, x in flatten(mask).items()), whole


def rate_factors(layer_decay: float, params: Any) -> Any:
    """Factor of each parameter's learning rate, float32 arrays shaped as `select` shapes its masks.

    Head and pooler have 1, the top layer `layer_decay`, each layer below once more, the embeddings
    `layer_decay ** (layers + 1)`.
    """
    layers, factors = layer_count(params), {}
    for path, x in flatten(params).items():
        if is_stacked(path):
            exponent = (layers - np.arange(layers)).reshape(_mask_shape(path, x))
        else:
            exponent = np.array(layers + 1 if path.startswith("encoder/embeddings/") else 0)
        factors[path] = np.float32(layer_decay) ** exponent.astype(np.float32)
    return unflatten(factors)


def _mask_shape(path: str, leaf: Any) -> tuple[int, ...]:
    return (leaf.shape[0],) + (1,) * (len(leaf.shape) - 1) if is_stacked(path) else ()


def _parse(glob: str, layers: int) -> tuple[str, range | None]:
    """The glob without brackets, and the layers that these picked (None: had no brackets)."""
    found = _LAYERS.fullmatch(glob)
    if not found:
        return glob, None
    index, start, stop, rest = found.groups()
    if start is None:
        at = int(index)
        which = range(layers)[at : at + 1 or None] if -layers <= at < layers else range(0)
    else:
        which = range(layers)[int(start) if start else None : int(stop) if stop else None]
    return f"encoder/layers{rest}", which
