"""The records of all families that cacheir-importers brings."""

from __future__ import annotations

from collections.abc import Iterator

from cacheir.plugins import FamilySpec

# family -> what it is, architectures of config.json, architectures of GGUF, reader of GGUF metadata, names
_FAMILIES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], str, str]] = {
    "gemma2": ("Gemma 2.", ("Gemma2ForCausalLM",), ("gemma2",), "read_gemma2", "tensor_names"),
    "gemma3": ("Gemma 3, text alone.", ("Gemma3ForCausalLM",), ("gemma3",), "read_gemma3", "tensor_names"),
    "granite": ("Granite 3, dense.", ("GraniteForCausalLM",), ("granite",), "read_granite", "tensor_names"),
    "llama": (
        "Llama 1 to 3, SmolLM2, TinyLlama and others of their shape.",
        ("LlamaForCausalLM",),
        ("llama",),
        "read_llama",
        "tensor_names",
    ),
    "mistral": ("Mistral 7B and others of its shape.", ("MistralForCausalLM",), (), "read_llama", "tensor_names"),
    "mixtral": ("Mixtral.", ("MixtralForCausalLM",), (), "read_llama", "mixtral_names"),
    "phi3": ("Phi-3 and Phi-4-mini.", ("Phi3ForCausalLM",), ("phi3",), "read_phi3", "phi3_names"),
    "qwen2": (
        "Qwen2, Qwen2.5 and DeepSeek-R1-Distill-Qwen.",
        ("Qwen2ForCausalLM",),
        ("qwen2",),
        "read_qwen2",
        "tensor_names",
    ),
    "qwen2_moe": (
        "Qwen1.5-MoE and Qwen2-MoE.",
        ("Qwen2MoeForCausalLM",),
        ("qwen2moe",),
        "read_qwen2_moe",
        "tensor_names",
    ),
    "qwen3": ("Qwen3, dense.", ("Qwen3ForCausalLM",), ("qwen3",), "read_qwen3", "tensor_names"),
    "qwen3_moe": (
        "Qwen3 with experts.",
        ("Qwen3MoeForCausalLM",),
        ("qwen3moe",),
        "read_qwen3_moe",
        "tensor_names",
    ),
    "smollm3": ("SmolLM3.", ("SmolLM3ForCausalLM",), ("smollm3",), "read_smollm3", "tensor_names"),
}


def families() -> Iterator[FamilySpec]:
    """The records, for the families hook."""
    for name, (summary, architectures, gguf_architectures, reader, names) in _FAMILIES.items():
        yield FamilySpec(
            name=name,
            summary=summary,
            architectures=architectures,
            gguf_architectures=gguf_architectures,
            config=f"cacheir_importers.families.{name}:read_config",
            gguf_config=f"cacheir_importers.families.gguf:{reader}",
            names=f"cacheir_importers.families.names:{names}",
        )
