"""Task heads: a BERT with what sits on top of it, and each head's loss per example.

`HEADS` names the heads. Losses and errors are returned per example in float32; means are taken by the caller.
"""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertjax.config import nearest
from bertjax.errors import InputError
from bertjax.model.bert import BertModel, Numerics
from bertjax.model.cls_norm import CLS_NORMS
from bertjax.model.config import BertConfig
from bertjax.model.fusion import FUSIONS
from bertjax.model.layers import dense, dropout

Array = jax.Array

# Top-level names of the parameter tree that belong to the head; everything else is the encoder.
HEAD_GROUPS = ("fusion", "cls_norm", "head")


@dataclasses.dataclass(frozen=True)
class Head:
    """What a head computes from its outputs [batch, outputs] and the labels [batch] or [batch, outputs]."""

    loss_name: str
    """The loss, with its unit."""
    loss: Callable[[Array, Array], Array]
    """Loss per example."""
    error: Callable[[Array, Array], Array] | None
    """1 where the prediction is wrong, else 0; None where there is no such thing."""
    predict: Callable[[Array], Array]
    """Prediction per example: class number, score, or 1 for each class that the example has."""
    probabilities: Callable[[Array], Array] | None
    """Probability of each class, [batch, outputs]; None where outputs are no classes."""


def _cross_entropy(logits: Array, labels: Array) -> Array:
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def _wrong(logits: Array, labels: Array) -> Array:
    return (jnp.argmax(logits, axis=-1) != labels).astype(jnp.float32)


def _binary_cross_entropy(logits: Array, labels: Array) -> Array:
    logits, labels = logits.astype(jnp.float32), labels.astype(jnp.float32)
    return jnp.mean(jax.nn.softplus(logits) - labels * logits, axis=-1)


def _any_wrong(logits: Array, labels: Array) -> Array:
    return jnp.any((logits > 0) != (labels > 0.5), axis=-1).astype(jnp.float32)


def _squared_error(outputs: Array, labels: Array) -> Array:
    return jnp.square(outputs[:, 0].astype(jnp.float32) - labels.astype(jnp.float32))


HEADS: dict[str, Head] = {
    "classification": Head(
        "cross entropy, nats", _cross_entropy, _wrong, lambda z: jnp.argmax(z, axis=-1), jax.nn.softmax
    ),
    "regression": Head("squared error", _squared_error, None, lambda z: z[:, 0].astype(jnp.float32), None),
    # The mean over the classes, so that losses of different numbers of classes can be compared [choice].
    "multilabel": Head(
        "binary cross entropy per class, nats",
        _binary_cross_entropy,
        _any_wrong,
        lambda z: (z > 0).astype(jnp.int32),
        jax.nn.sigmoid,
    ),
}


class TaskModel(nn.Module):
    """BERT with a sentence head: encoder, [CLS], pooler, dropout, dense map to `outputs` numbers."""

    config: BertConfig
    outputs: int
    numerics: Numerics = Numerics()
    fusion: str = "none"
    cls_norm: str = "none"

    def setup(self) -> None:
        for option, name, table in (("fusion", self.fusion, FUSIONS), ("cls_norm", self.cls_norm, CLS_NORMS)):
            if name not in table:
                raise InputError(f"model.{option} {name!r} is not known{nearest(name, table)}")
        c = self.config
        self.encoder = BertModel(c, self.numerics)
        # The last map is computed in float32: its few numbers decide loss and metrics.
        self.head = dense(
            self.outputs, stddev=c.initializer_range, dtype=jnp.float32, param_dtype=self.numerics.param_dtype
        )

    def __call__(
        self,
        input_ids: Array,
        attention_mask: Array,
        token_type_ids: Array,
        key: Array | None = None,
        **packed: Array,
    ) -> Array:
        """Outputs of the head, [batch, outputs] float32 (logits, or the value of a regression).

        Of packed rows (`packed`: position_ids, segment_ids and cls [batch, s], which the encoder reads) the outputs
        of all segments in a row: [batch * s, outputs].
        """
        key_encoder, key_head = (None, None) if key is None else jax.random.split(key)
        encoded = self.encoder(input_ids, attention_mask, token_type_ids, key=key_encoder, only_cls=True, **packed)
        pooled = self.encoder.pool(encoded.cls.reshape(-1, self.config.hidden_size))
        rate = self.config.classifier_dropout
        pooled = dropout(pooled, self.config.hidden_dropout_prob if rate is None else rate, key_head)
        return self.head(pooled.astype(jnp.float32))
