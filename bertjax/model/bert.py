"""BERT as published: post-layer-norm encoder, learned positions, token types, pooler (Devlin et al. 2019).

The parameters of all layers are one stack along axis 0 (`encoder/layers/...` in the parameter tree). The encoder is a
functional `lax.scan` of `Block.apply` over its slices; the last layer stands outside the scan, because where only
[CLS] is read, its query, output and feed-forward are computed for that one position only.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from bertjax.model.config import BertConfig
from bertjax.model.layers import LayerNorm, activation, dense, dropout

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Numerics:
    """How the model is computed, apart from what it is."""

    dtype: Any = jnp.float32
    """Type of activations and matrix products; softmax and layer norm are float32 in any case."""
    param_dtype: Any = jnp.float32
    """Type of the parameters."""
    unroll: int = 1
    """Layers per step of the scan."""
    remat: bool = False
    """Recompute layers in the backward pass."""
    activation_spec: PartitionSpec | None = None
    """How activations [batch, tokens, hidden] are laid over the mesh in context; None: left to the compiler."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EncoderOutput:
    """What the encoder computed; d is the hidden size, n the padded length, L the number of layers."""

    cls: Array
    """[batch, d]: the last layer's vector of the first token; [batch, s, d] where rows hold s segments."""
    last_hidden_state: Array | None
    """[batch, n, d], or None where only [CLS] was asked for."""
    hidden_states: Array | None
    """[L + 1, batch, n, d], the embedding output first, or None."""
    attentions: Array | None
    """[L, batch, heads, n, n], rows sum to 1, or None."""


def _constrain(x: Array, spec: PartitionSpec | None) -> Array:
    if spec is None or jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, spec)


class Embeddings(nn.Module):
    """Sum of word, position and token type embeddings, layer norm, dropout."""

    config: BertConfig
    numerics: Numerics

    @nn.compact
    def __call__(
        self, input_ids: Array, token_type_ids: Array | None, position_ids: Array | None, key: Array | None
    ) -> Array:
        c, dtype = self.config, self.numerics.dtype

        def table(name: str, rows: int) -> Array:
            init = nn.initializers.normal(c.initializer_range)
            return self.param(name, init, (rows, c.hidden_size), self.numerics.param_dtype)

        x = jnp.take(table("word", c.vocab_size), input_ids, axis=0).astype(dtype)
        positions = table("position", c.max_position_embeddings)
        if position_ids is None:
            x = x + positions[: input_ids.shape[1]].astype(dtype)[None]
        else:
            x = x + jnp.take(positions, position_ids, axis=0).astype(dtype)
        if c.type_vocab_size > 0:
            types = table("token_type", c.type_vocab_size)
            token_type_ids = jnp.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            x = x + jnp.take(types, token_type_ids, axis=0).astype(dtype)
        x = LayerNorm(c.layer_norm_eps, dtype, self.numerics.param_dtype, name="norm")(x)
        return dropout(x, c.hidden_dropout_prob, key)


class SelfAttention(nn.Module):
    """Multi-head self-attention with its output projection, residual and layer norm."""

    config: BertConfig
    numerics: Numerics

    @nn.compact
    def __call__(
        self, x: Array, queries: Array, mask: Array, key: Array | None, weights: bool
    ) -> tuple[Array, Array | None]:
        """x [batch, n, d] gives keys and values, queries [batch, m, d] the rows computed; mask as in `attend`."""
        c = self.config
        options = dict(stddev=c.initializer_range, dtype=self.numerics.dtype, param_dtype=self.numerics.param_dtype)
        heads = (c.num_attention_heads, c.head_dim)
        q = dense(heads, name="query", **options)(queries)  # [batch, m, heads, head_dim]
        k = dense(heads, name="key", **options)(x)  # [batch, n, heads, head_dim]
        v = dense(heads, name="value", **options)(x)
        key_weights, key_output = (None, None) if key is None else jax.random.split(key)
        attention = None
        if weights or (key is not None and c.attention_probs_dropout_prob > 0):
            context, attention = attend(q, k, v, mask, c.attention_probs_dropout_prob, key_weights)
        else:
            # JAX's own function is the choice of accelerators; on CPUs it is slower than `attend`.
            context = jax.lax.platform_dependent(
                q, k, v, mask, cpu=lambda *tensors: attend(*tensors)[0], default=_dot_product_attention
            )
        y = dense(c.hidden_size, axis=(-2, -1), name="output", **options)(context)
        y = dropout(y, c.hidden_dropout_prob, key_output)
        y = LayerNorm(c.layer_norm_eps, self.numerics.dtype, self.numerics.param_dtype, name="norm")(queries + y)
        return y, attention if weights else None


def _dot_product_attention(q: Array, k: Array, v: Array, mask: Array) -> Array:
    # It promotes bfloat16 to float32 inside, which strict promotion would refuse.
    with jax.numpy_dtype_promotion("standard"):
        return jax.nn.dot_product_attention(q, k, v, mask=mask)


def attend(
    q: Array, k: Array, v: Array, mask: Array, rate: float = 0.0, key: Array | None = None
) -> tuple[Array, Array]:
    """Softmax attention in float32.

    The weighted sum is divided by the softmax's denominator at the end, heads before tokens: for 128 tokens on a CPU
    this takes a third of the time of a sum over divided weights in the layout of q.

    Args:
      q: [batch, m, heads, head_dim].
      k: [batch, n, heads, head_dim].
      v: like k.
      mask: [batch, 1, 1 or m, n], true at the tokens that a query sees; without any, all count alike.
      rate: dropout rate of the weights.
      key: dropout key, or None.

    Returns:
      The context [batch, m, heads, head_dim] in the type of v, and the weights [batch, heads, m, n] before dropout.
    """
    logits = jnp.einsum("bmhk,bnhk->bhmn", q, k, preferred_element_type=jnp.float32)
    logits = jnp.where(mask, logits * (q.shape[-1] ** -0.5), jnp.finfo(jnp.float32).min)
    exponentials = jnp.exp(logits - jax.lax.stop_gradient(logits.max(-1, keepdims=True)))
    total = exponentials.sum(-1, keepdims=True)
    kept = dropout(exponentials, rate, key).astype(v.dtype)
    context = jnp.einsum("bhmn,bhnk->bhmk", kept, v.swapaxes(1, 2), preferred_element_type=jnp.float32) / total
    return context.astype(v.dtype).swapaxes(1, 2), exponentials / total


class Block(nn.Module):
    """One layer: self-attention, then the feed-forward network, each with residual and layer norm."""

    config: BertConfig
    numerics: Numerics

    @nn.compact
    def __call__(
        self, x: Array, queries: Array, mask: Array, key: Array | None = None, weights: bool = False
    ) -> tuple[Array, Array | None]:
        c = self.config
        options = dict(stddev=c.initializer_range, dtype=self.numerics.dtype, param_dtype=self.numerics.param_dtype)
        key_attention, key_output = (None, None) if key is None else jax.random.split(key)
        y, attention = SelfAttention(c, self.numerics, name="attention")(x, queries, mask, key_attention, weights)
        z = activation(c.hidden_act)(dense(c.intermediate_size, name="intermediate", **options)(y))
        z = dense(c.hidden_size, name="output", **options)(z)
        z = dropout(z, c.hidden_dropout_prob, key_output)
        z = LayerNorm(c.layer_norm_eps, self.numerics.dtype, self.numerics.param_dtype, name="norm")(y + z)
        return z, attention


class BertModel(nn.Module):
    """Embeddings, the stack of layers, and the pooler."""

    config: BertConfig
    numerics: Numerics = Numerics()

    def setup(self) -> None:
        c = self.config
        self.embeddings = Embeddings(c, self.numerics)
        self.layers = self.param("layers", self._init_layers)
        self.pooler = dense(
            c.hidden_size, stddev=c.initializer_range, dtype=self.numerics.dtype, param_dtype=self.numerics.param_dtype
        )

    def _init_layers(self, key: Array) -> Any:
        block = self._block()
        x = jnp.zeros((1, 1, self.config.hidden_size), self.numerics.dtype)
        mask = jnp.ones((1, 1, 1, 1), bool)
        keys = jax.random.split(key, self.config.num_hidden_layers)
        return jax.vmap(lambda k: block.init(k, x, x, mask)["params"])(keys)

    def _block(self) -> Block:
        return Block(self.config, self.numerics, parent=None)

    def __call__(
        self,
        input_ids: Array,
        attention_mask: Array | None = None,
        token_type_ids: Array | None = None,
        position_ids: Array | None = None,
        *,
        segment_ids: Array | None = None,
        cls: Array | None = None,
        key: Array | None = None,
        only_cls: bool = False,
        hidden_states: bool = False,
        attentions: bool = False,
    ) -> EncoderOutput:
        """Encodes a batch.

        Args:
          input_ids: [batch, n] integers.
          attention_mask: [batch, n], true or 1 at real tokens; None: all are real.
          token_type_ids: [batch, n]; None: zeros.
          position_ids: [batch, n]; None: 0 … n−1.
          segment_ids: [batch, n], of packed rows: a token attends to those of the same number; None: one segment.
          cls: [batch, s], of packed rows: where the first tokens of the segments stand; `cls` of the output is then
            [batch, s, d].
          key: dropout key; None: no dropout.
          only_cls: compute the last layer for the first token (of each segment) only.
          hidden_states: also return the states of all layers (the last for every token).
          attentions: also return all attention matrices.
        """
        n = input_ids.shape[1]
        if n > self.config.max_position_embeddings:
            raise ValueError(f"{n} tokens, but the model has {self.config.max_position_embeddings} positions")
        if attention_mask is None:
            attention_mask = jnp.ones(input_ids.shape, bool)
        mask = query_mask = attention_mask.astype(bool)[:, None, None, :]
        if segment_ids is not None:
            # Padding is a segment too: nobody reads it, and no token is without any that it attends to.
            mask = query_mask = (segment_ids[:, :, None] == segment_ids[:, None, :])[:, None]
        spec = self.numerics.activation_spec
        depth = self.config.num_hidden_layers
        block = self._block()

        def layer_key(index: Array | int) -> Array | None:
            return None if key is None else jax.random.fold_in(key, index)

        def apply(params: Any, x: Array, queries: Array, mask: Array, index: Array | int) -> tuple[Array, Array | None]:
            y, weights = block.apply({"params": params}, x, queries, mask, layer_key(index), attentions)
            return _constrain(y, spec), weights

        if self.numerics.remat:
            apply = jax.checkpoint(apply, prevent_cse=False)

        def body(x: Array, layer: tuple[Any, Array]) -> tuple[Array, Any]:
            params, index = layer
            y, weights = apply(params, x, x, mask, index)
            return y, (x if hidden_states else None, weights)

        x = self.embeddings(input_ids, token_type_ids, position_ids, layer_key(depth))
        x = _constrain(x, spec)
        first = jax.tree.map(lambda leaf: leaf[:-1], self.layers)
        x, (states, weights) = jax.lax.scan(
            body, x, (first, jnp.arange(depth - 1)), unroll=max(1, min(self.numerics.unroll, depth - 1))
        )
        last = jax.tree.map(lambda leaf: leaf[-1], self.layers)
        only_cls = only_cls and not hidden_states and not attentions
        queries = x
        if only_cls and cls is None:
            queries = x[:, :1]
            query_mask = mask[:, :, :1]
        elif only_cls:
            queries = jnp.take_along_axis(x, cls[:, :, None], axis=1)
            if segment_ids is not None:
                query_mask = jnp.take_along_axis(mask, cls[:, None, :, None], axis=2)
        y, last_weights = apply(last, x, queries, query_mask, depth - 1)
        first_tokens = y[:, 0] if cls is None else y if only_cls else jnp.take_along_axis(y, cls[:, :, None], axis=1)
        return EncoderOutput(
            cls=first_tokens,
            last_hidden_state=None if only_cls else y,
            hidden_states=jnp.concatenate([states, x[None], y[None]]) if hidden_states else None,
            attentions=jnp.concatenate([weights, last_weights[None]]) if attentions else None,
        )

    def pool(self, cls: Array) -> Array:
        """The pooler: tanh of a dense map of the [CLS] vector, [batch, d] -> [batch, d]."""
        return jnp.tanh(self.pooler(cls))
