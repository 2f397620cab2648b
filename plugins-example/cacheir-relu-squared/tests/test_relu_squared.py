"""The plugin, the kernel and the family against the kit; the oracle of the family is written in NumPy below."""

import json

import numpy as np
from cacheir.testing import FamilyTests, KernelTests, PluginTests
from cacheir_importers.tiny import write_json, write_tiny
from safetensors.numpy import load_file


class TestPlugin(PluginTests):
    plugin = "cacheir_relu_squared.plugin"


class TestKernel(KernelTests):
    plugin = "cacheir_relu_squared.plugin"


class TestFamily(FamilyTests):
    plugins = ("cacheir_cpu.plugin", "cacheir_importers.plugin", "cacheir_relu_squared.plugin")
    tolerance = 5e-4  # the squares make logits of up to 40

    @classmethod
    def write_model(cls, folder):
        write_tiny(folder)
        config = json.loads((folder / "config.json").read_text())
        config |= {"architectures": ["ReluSquaredForCausalLM"], "model_type": "relu_squared", "hidden_act": "relu2"}
        write_json(folder / "config.json", config)

    @classmethod
    def make_oracle(cls, folder):
        config = json.loads((folder / "config.json").read_text())
        weights = {name: value.astype(np.float64) for name, value in load_file(folder / "model.safetensors").items()}
        return lambda ids: logits(config, weights, list(ids)).astype(np.float32)


def logits(config, weights, ids):
    """Logits [len(ids), V] in float64 by the definition of the model."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    count, size = len(ids), config["hidden_size"] // heads

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * weights[name]

    angles = np.arange(count)[:, None, None] * config["rope_theta"] ** (-np.arange(0, size, 2) / size)

    def turned(x):
        low, high = np.split(x, 2, axis=-1)
        return np.concatenate(
            [low * np.cos(angles) - high * np.sin(angles), high * np.cos(angles) + low * np.sin(angles)], -1
        )

    future = np.triu(np.ones((count, count), bool), 1)
    h = weights["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        x = norm(h, at + "input_layernorm.weight")
        q, k, v = (x @ weights[f"{at}self_attn.{part}_proj.weight"].T for part in "qkv")
        q = turned(q.reshape(count, heads, size))
        k, v = (y.reshape(count, kv_heads, size).repeat(heads // kv_heads, axis=1) for y in (k, v))
        scores = np.einsum("thd,shd->hts", q, turned(k)) / np.sqrt(size)
        scores[:, future] = -np.inf
        chances = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hts,shd->thd", chances / chances.sum(-1, keepdims=True), v).reshape(count, -1)
        h = h + mixed @ weights[at + "self_attn.o_proj.weight"].T
        y = norm(h, at + "post_attention_layernorm.weight")
        gate = np.maximum(y @ weights[at + "mlp.gate_proj.weight"].T, 0) ** 2
        h = h + (gate * (y @ weights[at + "mlp.up_proj.weight"].T)) @ weights[at + "mlp.down_proj.weight"].T
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return norm(h, "model.norm.weight") @ head.T
