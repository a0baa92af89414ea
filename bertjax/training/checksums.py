"""Checksums of arrays, computed where the arrays lie, equal for every way of spreading them over devices."""

from typing import Any

import jax
import jax.numpy as jnp

_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


def checksums(tree: Any) -> dict[str, int]:
    """A 32-bit checksum of each leaf, by its path.

    The bits of element i, as an unsigned number, times 2·i + 1 are summed modulo 2³². The factor is odd, so any change
    within a single element of up to 32 bits changes the sum.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    sums = jax.device_get(_sums([leaf for _, leaf in leaves]))
    return {jax.tree_util.keystr(path): int(value) for (path, _), value in zip(leaves, sums, strict=True)}


@jax.jit
def _sums(leaves: list[jax.Array]) -> list[jax.Array]:
    return [_sum(leaf) for leaf in leaves]


def _sum(leaf: jax.Array) -> jax.Array:
    if leaf.dtype == jnp.bool_:
        leaf = leaf.astype(jnp.uint8)
    bits = jax.lax.bitcast_convert_type(leaf, _UNSIGNED[leaf.dtype.itemsize]).astype(jnp.uint32)
    index = jnp.zeros(leaf.shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(leaf.ndim)):  # element numbers from one axis at a time: no reshape, no communication
        along = jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, axis)
        index = index + along * jnp.uint32(stride % 2**32)
        stride *= leaf.shape[axis]
    return jnp.sum(bits * (jnp.uint32(2) * index + jnp.uint32(1)), dtype=jnp.uint32)


def changed(expected: dict[str, int], found: dict[str, int]) -> list[str]:
    """Paths whose checksum differs or that only one side has."""
    return [path for path in sorted(expected | found) if expected.get(path) != found.get(path)]
