"""The architecture of a BERT, with the names and defaults of Hugging Face's config.json."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from bertjax.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig:
    """Sizes and constants of one BERT. Hashable, so that it can be a static argument and a module field."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    classifier_dropout: float | None = None
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}, expected at least 1")
        if self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def with_dropout(self, hidden: float | None, attention: float | None) -> "BertConfig":
        """The same architecture with other dropout rates; None keeps a rate."""
        changes: dict[str, Any] = {}
        for option, rate in (("hidden_dropout", hidden), ("attention_dropout", attention)):
            if rate is not None and not 0 <= rate < 1:
                raise InputError(f"model.{option} is {rate}, expected a rate from 0 up to but not including 1")
        if hidden is not None:
            changes |= {"hidden_dropout_prob": hidden, "classifier_dropout": hidden}
        if attention is not None:
            changes |= {"attention_probs_dropout_prob": attention}
        return dataclasses.replace(self, **changes)


def from_hugging_face(values: dict[str, Any], where: str) -> BertConfig:
    """The BertConfig in the contents of a config.json; `where` names it in errors.

    Raises:
      InputError: another architecture, a kind of position embedding BERT does not have, or a missing or odd value.
    """
    kind = values.get("model_type")
    if kind != "bert":
        given = f"model_type is {kind!r}" if kind else "model_type is not set"
        raise InputError(f"{where}: {given} (architectures: {values.get('architectures')}); bertjax loads 'bert' only")
    positions = values.get("position_embedding_type", "absolute")
    if positions != "absolute":
        raise InputError(
            f"{where}: position_embedding_type is {positions!r}; only 'absolute' (published BERT) is built"
        )
    if values.get("is_decoder") or values.get("add_cross_attention"):
        raise InputError(
            f"{where}: this is a decoder (is_decoder or add_cross_attention); bertjax builds encoders only"
        )
    fields = {}
    for field in dataclasses.fields(BertConfig):
        if field.name not in values or (values[field.name] is None and field.default is not None):
            continue
        value = values[field.name]
        kinds = (int, float) if isinstance(field.default, float) or field.default is None else type(field.default)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
            raise InputError(f"{where}: {field.name} is {value!r}, expected a value like {field.default!r}")
        fields[field.name] = value
    try:
        return BertConfig(**fields)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def read_config(folder: Path) -> tuple[BertConfig, dict[str, Any]]:
    """Reads `folder`/config.json; returns the architecture and the whole file as a dictionary."""
    path = folder / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: expected a Hugging Face model folder") from None
    except (ValueError, OSError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected a JSON object, got {type(values).__name__}")
    return from_hugging_face(values, str(path)), values
