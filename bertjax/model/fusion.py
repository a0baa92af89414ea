"""Layer fusion: how the hidden states of all layers become the representation the head reads.

`FUSIONS` names the variants; an entry is a Linen module class, or None for plain BERT, whose head reads the last layer.
"""

from flax.linen import Module

FUSIONS: dict[str, type[Module] | None] = {
    "none": None,
}
