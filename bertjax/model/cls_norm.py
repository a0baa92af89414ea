"""Normalization of the [CLS] vector before the pooler.

`CLS_NORMS` names the variants; an entry is a Linen module class, or None for plain BERT, which changes nothing.
"""

from flax.linen import Module

CLS_NORMS: dict[str, type[Module] | None] = {
    "none": None,
}
