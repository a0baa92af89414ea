"""Small layers of BERT: layer norm in float32, dense maps that name their axes, exact activations."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertjax.config import nearest
from bertjax.errors import InputError

Array = jax.Array


def _gelu_tanh(x: Array) -> Array:
    return nn.gelu(x, approximate=True)


# Names as in config.json's hidden_act.
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": lambda x: nn.gelu(x, approximate=False),
    "gelu_new": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "quick_gelu": lambda x: x * nn.sigmoid(1.702 * x),
    "relu": nn.relu,
    "relu6": nn.relu6,
    "leaky_relu": nn.leaky_relu,
    "silu": nn.silu,
    "swish": nn.silu,
    "sigmoid": nn.sigmoid,
    "tanh": jnp.tanh,
    "linear": lambda x: x,
}


def activation(name: str) -> Callable[[Array], Array]:
    """The activation function of a config's hidden_act; InputError if there is none of that name."""
    if name not in ACTIVATIONS:
        raise InputError(f"hidden_act {name!r} is not known{nearest(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]


class LayerNorm(nn.Module):
    """Layer normalization over the last axis, computed in float32, returned in `dtype`."""

    epsilon: float
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        width = x.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (width,), self.param_dtype)
        bias = self.param("bias", nn.initializers.zeros, (width,), self.param_dtype)
        wide = (1,) * (x.ndim - 1) + (width,)
        x = x.astype(jnp.float32)
        centred = x - x.mean(-1, keepdims=True)
        variance = jnp.square(centred).mean(-1, keepdims=True)
        y = centred * jax.lax.rsqrt(variance + self.epsilon)
        y = y * scale.astype(jnp.float32).reshape(wide) + bias.astype(jnp.float32).reshape(wide)
        return y.astype(self.dtype)


def dense(
    features: int | tuple[int, ...],
    *,
    axis: int | tuple[int, ...] = -1,
    stddev: float,
    dtype: Any,
    param_dtype: Any,
    name: str | None = None,
) -> nn.DenseGeneral:
    """A dense map with BERT's initialization: kernel from a normal of standard deviation `stddev`, bias zero."""
    return nn.DenseGeneral(
        features, axis=axis, dtype=dtype, param_dtype=param_dtype, name=name, kernel_init=nn.initializers.normal(stddev)
    )


def dropout(x: Array, rate: float, key: Array | None) -> Array:
    """Inverted dropout; `key` None or rate 0 returns x itself."""
    if key is None or rate == 0.0:
        return x
    keep = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(keep, x / jnp.asarray(1.0 - rate, x.dtype), jnp.zeros((), x.dtype))
