"""Evaluates a loss at many points of a plane with one compiled program.

The grid is cut into blocks of one fixed size. For each point of a block the parameters are interpolated once, then all
batches, which lie on the device, are scanned; losses per example come back. Every block, the last one too, runs the
same program, so results do not depend on the order of blocks or on where a computation was interrupted.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bertjax.errors import InputError
from bertjax.landscape.blocks import GridStore, Prepared
from bertjax.landscape.plane import Plane

Array = jax.Array
LossFunction = Callable[[Any, Any], dict[str, Array]]

# How many points to try at once, by platform: on CPUs one at a time is fastest at real batch sizes, accelerators
# gain from several where the model is small. Unknown platforms are treated like accelerators.
CANDIDATES: dict[str, tuple[int, ...]] = {"cpu": (1,)}
ACCELERATOR_CANDIDATES = (1, 4, 16)
BLOCK_SECONDS = 1.0
MAX_STEPS_PER_BLOCK = 256


@dataclasses.dataclass(frozen=True)
class Examples:
    """A fixed evaluation set as batches on the device."""

    groups: tuple[Any, ...]
    """Each a pytree of arrays [batches, batch, ...]; groups may have different lengths of rows."""
    order: np.ndarray
    """[examples] where example i lies in the concatenation of all groups, batches and rows."""

    def __post_init__(self) -> None:
        if len(self.order) == 0:
            raise InputError("there are no examples to evaluate")


def scan_examples(loss: LossFunction, params: Any, groups: tuple[Any, ...]) -> dict[str, Array]:
    """The loss of every row of all groups at one set of parameters, one batch after another; {name: [rows]}."""
    parts = [jax.lax.scan(lambda carry, batch: (carry, loss(params, batch)), None, group)[1] for group in groups]
    return {name: jnp.concatenate([part[name].reshape(-1) for part in parts]) for name in parts[0]}


def block_program(loss: LossFunction, points_per_step: int, mesh: Mesh) -> Callable[..., dict[str, Array]]:
    """The compiled program: (plane, coefficients [block, k], groups) -> {name: [block, rows of all groups]}.

    `loss(params, batch)` returns arrays [batch]. Points lie over the mesh axis `point`, without communication.
    """

    def point(plane: Plane, groups: tuple[Any, ...], coefficients: Array) -> dict[str, Array]:
        return scan_examples(loss, plane.at(coefficients), groups)

    def block(plane: Plane, coefficients: Array, groups: tuple[Any, ...]) -> dict[str, Array]:
        size = None if points_per_step == 1 else points_per_step
        return jax.lax.map(functools.partial(point, plane, groups), coefficients, batch_size=size)

    sharded = jax.shard_map(
        block, mesh=mesh, in_specs=(P(), P("point"), P()), out_specs=P("point"), axis_names={"point"}, check_vma=False
    )
    return jax.jit(sharded)


def point_mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh that spreads points over all devices."""
    devices = list(jax.devices() if devices is None else devices)
    axes = ("point", "data", "fsdp", "tensor")
    return jax.make_mesh((len(devices), 1, 1, 1), axes, axis_types=(jax.sharding.AxisType.Auto,) * 4, devices=devices)


def evaluate(
    loss: LossFunction,
    plane: Plane,
    coefficients: np.ndarray,
    examples: Examples,
    *,
    store: Path | None = None,
    identity: dict[str, Any] | None = None,
    points_per_step: int | None = None,
    block: int | None = None,
    mesh: Mesh | None = None,
    what: str = "",
) -> dict[str, np.ndarray]:
    """Values per example at all points.

    Args:
      loss: pure function (params, batch) -> {name: [batch]}.
      plane: origin and directions.
      coefficients: [points, directions].
      examples: the evaluation set.
      store: Zarr folder in which finished blocks are kept and an interrupted grid is continued; None: in memory.
      identity: what must be equal for a stored grid to be continued.
      points_per_step: points evaluated together; None: measured.
      block: points per block; None: measured, so that a block takes about a second. A stored grid keeps its sizes.
      mesh: with the axis `point`; None: all devices.
      what: name on the progress bar; empty: no bar.

    Returns:
      {name: [points, examples]}, and `status` [points].
    """
    kept = GridStore.resume(store, identity or {}) if store is not None else None
    if kept:
        points_per_step, block = kept.points_per_step, kept.block
    prepared = prepare(loss, plane, coefficients, examples, points_per_step=points_per_step, block=block, mesh=mesh)
    if store is not None and kept is None:
        kept = GridStore.create(store, identity or {}, prepared.count, prepared.block, prepared.points_per_step)
    return prepared.run(kept, what=what)


def prepare(
    loss: LossFunction,
    plane: Plane,
    coefficients: np.ndarray,
    examples: Examples,
    *,
    points_per_step: int | None = None,
    block: int | None = None,
    mesh: Mesh | None = None,
) -> Prepared:
    """Places plane and examples on the devices, chooses the sizes that are not given, and compiles the block program.

    The arguments are those of `evaluate`.
    """
    coefficients = np.asarray(coefficients, np.float32)
    if coefficients.ndim != 2 or coefficients.shape[1] != len(plane.directions) or not len(coefficients):
        raise InputError(
            f"coefficients have shape {coefficients.shape}, expected [points, {len(plane.directions)}] and "
            "at least one point"
        )
    mesh = point_mesh() if mesh is None else mesh
    with jax.set_mesh(mesh):
        plane, groups = jax.device_put((plane, examples.groups), jax.sharding.NamedSharding(mesh, P()))
        if points_per_step is None or block is None:
            points_per_step, block = _measure(loss, plane, groups, coefficients, points_per_step, block, mesh)
        devices = mesh.shape["point"]
        if block % (devices * points_per_step):
            raise InputError(
                f"block {block} is not a multiple of {devices} devices x {points_per_step} points per step"
            )
        program = block_program(loss, points_per_step, mesh)
        shape = jax.ShapeDtypeStruct((block, coefficients.shape[1]), np.float32)
        compiled = program.lower(plane, shape, groups).compile()

    def compute(numbers: np.ndarray) -> dict[str, np.ndarray]:
        with jax.set_mesh(mesh):
            out = compiled(plane, coefficients[numbers], groups)
        return {name: np.asarray(x)[:, examples.order] for name, x in out.items()}

    return Prepared(compute, len(coefficients), block, points_per_step, program_memory(compiled))


def program_memory(compiled: Any) -> int | None:
    """Bytes of a compiled program on a device: arguments, outputs and temporaries; None where it does not say."""
    memory = compiled.memory_analysis()
    if memory is None:
        return None
    return memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes


def _measure(
    loss: LossFunction,
    plane: Plane,
    groups: Any,
    coefficients: np.ndarray,
    points_per_step: int | None,
    block: int | None,
    mesh: Mesh,
) -> tuple[int, int]:
    """Chooses how many points go together and how many make a block, by running a few points."""
    devices = mesh.shape["point"]
    platform = mesh.devices.flat[0].platform
    candidates = (points_per_step,) if points_per_step else CANDIDATES.get(platform, ACCELERATOR_CANDIDATES)
    best: tuple[float, int] | None = None
    for together in candidates:
        program = block_program(loss, together, mesh)
        sample = np.resize(coefficients, (devices * together, coefficients.shape[1]))
        try:
            jax.block_until_ready(program(plane, sample, groups))
            begin = time.perf_counter()
            jax.block_until_ready(program(plane, sample, groups))
        except jax.errors.JaxRuntimeError as error:
            if best is None or "RESOURCE_EXHAUSTED" not in str(error):
                raise
            break
        seconds = (time.perf_counter() - begin) / together
        if best is not None and seconds >= best[0]:
            break
        best = (seconds, together)
    assert best is not None
    seconds, together = best
    if block is None:
        steps = max(1, min(MAX_STEPS_PER_BLOCK, int(BLOCK_SECONDS / max(seconds * together, 1e-9))))
        needed = -(-len(coefficients) // (devices * together))
        block = devices * together * min(1 << (steps.bit_length() - 1), max(1, needed))
    return together, block
