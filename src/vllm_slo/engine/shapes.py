"""The dimensions of the models that we make ourselves: no weights, nothing downloaded."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A decoder's dimensions, under the names of its Hugging Face `config.json`.

    `extra` are further keys of that file. Every architecture here takes token ids alone.
    """

    name: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    architecture: str = "LlamaForCausalLM"
    model_type: str = "llama"
    extra: tuple[tuple[str, Any], ...] = ()

    def config(self) -> dict[str, Any]:
        """The content of `config.json`."""
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate_size,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_position_embeddings,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.rms_norm_eps,
            "hidden_act": "silu",
            "tie_word_embeddings": self.tie_word_embeddings,
            "torch_dtype": "bfloat16",
            # Of an older form transformers suspects the tokenizer, and warns.
            "transformers_version": "5.0.0",
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": None,
        } | dict(self.extra)


# Dimensions from the models' own config.json on the Hugging Face hub; `tiny` is ours.
_SHAPES = (
    Shape(
        name="tiny",
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=32,  # the smallest that vLLM's CPU attention kernels take
        intermediate_size=64,
        vocab_size=512,
        max_position_embeddings=131072,  # no shorter than the models that it stands in for
        rope_theta=10000.0,
    ),
    Shape(
        name="llama-3-8b",  # meta-llama/Meta-Llama-3-8B
        hidden_size=4096,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=14336,
        vocab_size=128256,
        max_position_embeddings=8192,
        rope_theta=500000.0,
    ),
    Shape(
        name="llama-3-70b",  # meta-llama/Meta-Llama-3-70B
        hidden_size=8192,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=28672,
        vocab_size=128256,
        max_position_embeddings=8192,
        rope_theta=500000.0,
    ),
    Shape(
        name="llama-3.2-1b",  # meta-llama/Llama-3.2-1B, without its rope scaling
        hidden_size=2048,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        intermediate_size=8192,
        vocab_size=128256,
        max_position_embeddings=131072,
        rope_theta=500000.0,
        tie_word_embeddings=True,
    ),
    Shape(
        name="mistral-7b",  # mistralai/Mistral-7B-v0.3
        hidden_size=4096,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=14336,
        vocab_size=32768,
        max_position_embeddings=32768,
        rope_theta=1000000.0,
        architecture="MistralForCausalLM",
        model_type="mistral",
        extra=(("sliding_window", None),),
    ),
    Shape(
        name="qwen2.5-7b",  # Qwen/Qwen2.5-7B
        hidden_size=3584,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        head_dim=128,
        intermediate_size=18944,
        vocab_size=152064,
        max_position_embeddings=131072,
        rope_theta=1000000.0,
        rms_norm_eps=1e-6,
        # As a Llama with biases, which is what it is: transformers gives every model that calls
        # itself qwen2 a tokenizer of its own, in place of ours.
        extra=(("attention_bias", True),),
    ),
)

SHAPES: dict[str, Shape] = {shape.name: shape for shape in _SHAPES}
