"""How a run is laid over devices: one table for parameters, one entry each for activations and batches.

Mesh axes: `data` splits rows; `fsdp` splits rows, parameters and optimizer state; `tensor` splits attention heads and
feed-forward units. Of `PARAMETER_SPECS` the first pattern that fits a parameter's path decides.
"""

from fnmatch import fnmatch
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.config import MeshOptions
from bertjax.errors import InputError
from bertjax.tree import flatten, unflatten

AXES = ("data", "fsdp", "tensor")

PARAMETER_SPECS: tuple[tuple[str, P], ...] = (
    ("encoder/embeddings/norm/*", P()),
    ("encoder/embeddings/*", P(None, "fsdp")),  # [rows, hidden]
    ("encoder/layers/attention/output/kernel", P(None, "tensor", None, "fsdp")),  # [layer, heads, head_dim, hidden]
    ("encoder/layers/attention/output/bias", P()),
    ("encoder/layers/attention/norm/*", P()),
    ("encoder/layers/attention/*/kernel", P(None, "fsdp", "tensor", None)),  # [layer, hidden, heads, head_dim]
    ("encoder/layers/attention/*/bias", P(None, "tensor", None)),  # [layer, heads, head_dim]
    ("encoder/layers/intermediate/kernel", P(None, "fsdp", "tensor")),  # [layer, hidden, feed-forward]
    ("encoder/layers/intermediate/bias", P(None, "tensor")),
    ("encoder/layers/output/kernel", P(None, "tensor", "fsdp")),  # [layer, feed-forward, hidden]
    ("encoder/pooler/kernel", P("fsdp", "tensor")),
    ("*", P()),
)
ROWS = P(("data", "fsdp"))
ACTIVATIONS = P(("data", "fsdp"), None, None)  # [batch, tokens, hidden]


def make_mesh(options: MeshOptions, devices: list[Any] | None = None) -> Mesh:
    """The mesh of a run. `data=-1` takes all devices that the other axes leave.

    Raises:
      InputError: the axes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = {axis: getattr(options, axis) for axis in AXES}
    for axis, size in sizes.items():
        if size < 1 and not (axis == "data" and size == -1):
            raise InputError(f"--mesh.{axis}={size}: expected at least 1{' or -1' if axis == 'data' else ''}")
    others = sizes["fsdp"] * sizes["tensor"]
    if sizes["data"] == -1:
        sizes["data"] = max(1, len(devices) // others)
    if sizes["data"] * others != len(devices):
        given = " ".join(f"--mesh.{axis}={size}" for axis, size in sizes.items())
        raise InputError(
            f"{given}: a mesh of {sizes['data'] * others} devices, expected the {len(devices)} of this machine "
            "(--mesh.data=-1 takes what the others leave)"
        )
    return jax.make_mesh(tuple(sizes.values()), AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)


def spec_of(path: str) -> P:
    """The partition spec of the parameter at `path`."""
    return next(spec for pattern, spec in PARAMETER_SPECS if fnmatch(path, pattern))


def parameter_shardings(params: Any, mesh: Mesh) -> Any:
    """A tree of NamedSharding for a tree of parameters (arrays or shapes).

    Raises:
      InputError: a dimension is not a multiple of the devices it is split over; all are listed.
    """
    shardings, uneven = {}, []
    for path, leaf in flatten(params).items():
        spec = spec_of(path)
        for size, axes in zip(leaf.shape, spec, strict=False):
            count = _devices(axes, mesh)
            if size % count:
                uneven.append(f"{path} {tuple(leaf.shape)}: {size} over {axes}={count}")
        shardings[path] = NamedSharding(mesh, spec)
    if uneven:
        raise InputError(
            f"the model does not divide over this mesh: {'; '.join(uneven[:4])}"
            f"{f'; and {len(uneven) - 4} more' if len(uneven) > 4 else ''}"
        )
    return unflatten(shardings)


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of a value that every device holds whole."""
    return NamedSharding(mesh, P())


def row_count(mesh: Mesh) -> int:
    """Over how many devices the rows of a batch are split."""
    return _devices(ROWS[0], mesh)


def check_batch_size(name: str, size: int, mesh: Mesh, parts: int = 1) -> None:
    """InputError unless `size` rows can be cut into `parts` equal parts for the mesh."""
    unit = row_count(mesh) * parts
    if size < 1:
        raise InputError(f"--{name}={size}: expected at least 1")
    if size % unit:
        raise InputError(f"--{name}={size}: expected a multiple of {unit} ({row_count(mesh)} devices x {parts} parts)")


def put_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Lays the rows of a host batch over the mesh."""
    sharding = NamedSharding(mesh, ROWS)
    return {name: jax.make_array_from_process_local_data(sharding, value) for name, value in batch.items()}


def put_tree(tree: Any, shardings: Any) -> Any:
    """Lays a tree of host arrays over the mesh, each leaf by its sharding."""
    return jax.tree.map(jax.device_put, tree, shardings)


def _devices(axes: str | tuple[str, ...] | None, mesh: Mesh) -> int:
    names = (axes,) if isinstance(axes, str) else axes or ()
    return int(np.prod([mesh.shape[name] for name in names], dtype=int))
