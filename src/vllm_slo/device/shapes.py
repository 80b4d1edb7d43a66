"""`ModelShape`: the dimensions of a model, and the bytes and operations that follow from them."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_slo.errors import ProfileError

_HF_NAMES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "intermediate": "intermediate_size",
    "vocab": "vocab_size",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A dense decoder with grouped-query attention and a gated MLP, such as Llama.

    `dtype_bytes` is the size of one weight, and of one cached key or value: 2 for bfloat16.
    `tied` says that the LM head is the embedding table.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool = False
    dtype_bytes: float = 2.0

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ProfileError(
                    f"model dimension {name} must be a whole number >= 1, not {value!r}"
                )
        if not (math.isfinite(self.dtype_bytes) and self.dtype_bytes > 0):
            raise ProfileError(f"dtype_bytes must be positive, not {self.dtype_bytes!r}")

    @property
    def layer_parameters(self) -> int:
        """Parameters of all transformer layers: what every step reads, and every token meets."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def head_parameters(self) -> int:
        return self.vocab * self.hidden

    @property
    def layer_bytes(self) -> float:
        return self.layer_parameters * self.dtype_bytes

    @property
    def head_bytes(self) -> float:
        return self.head_parameters * self.dtype_bytes

    @property
    def resident_bytes(self) -> float:
        """Weights in memory: layers, embedding, and the LM head where it is a table of its own."""
        return self.layer_bytes + self.head_bytes * (1 if self.tied else 2)

    @property
    def kv_bytes_per_token(self) -> float:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype_bytes

    @property
    def attention_flops_per_pair(self) -> int:
        """Operations for one query against one key: scores and weighted values, all layers."""
        return 4 * self.layers * self.heads * self.head_dim


def shape_from_config(path: Path) -> ModelShape:
    """The shape in a Hugging Face `config.json`, or in a file of the same names.

    Raises:
        ProfileError: the file cannot be read, or lacks a dimension.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProfileError(f"{path}: cannot be read as a model's JSON: {error}") from None
    if not isinstance(config, dict):
        raise ProfileError(f"{path}: expected a JSON object of dimensions such as hidden_size")
    missing = [hf for key, hf in _HF_NAMES.items() if key != "kv_heads" and hf not in config]
    if missing:
        raise ProfileError(f"{path}: lacks {', '.join(missing)}")
    values: dict[str, Any] = {key: config[hf] for key, hf in _HF_NAMES.items() if hf in config}
    values.setdefault("kv_heads", values["heads"])
    head_dim = config.get("head_dim")
    if head_dim is None:
        _check_whole(path, "hidden_size", values["hidden"])
        _check_whole(path, "num_attention_heads", values["heads"])
        head_dim = values["hidden"] // values["heads"]
    try:
        return ModelShape(
            **values, head_dim=head_dim, tied=bool(config.get("tie_word_embeddings", False))
        )
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from None


def _check_whole(path: Path, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ProfileError(f"{path}: {name} must be a whole number >= 1, not {value!r}")
