"""A family of a third party, with its own block builder, gets the suite by subclassing; mistakes in it are seen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cacheir.testing import FamilyTests

# Attention and feed-forward both read the layer's input, and one norm serves both (GPT-J's block, gated).
PLUGIN = """
from cacheir.models.block import LayerWriter
from cacheir.plugins import FamilySpec, hookimpl
from cacheir.models.decoder_spec import LayerSpec
from cacheir_importers.families.decoder_config import (
    finish_decoder, open_config, read_activation, read_count, read_heads
)
from cacheir_importers.families.names import tensor_names
from cacheir_importers.families.rope import read_rotation


def read_config(config):
    fields = open_config(config, "parallel")
    count, sizes = read_count(fields), read_heads(fields)
    fields.ignore("attention_bias", "mlp_bias")
    rope = read_rotation(fields, sizes["head_dim"])
    width = fields.whole("intermediate_size")
    layer = LayerSpec(**sizes, feed_forward=width, rope=rope, activation=read_activation(fields))
    return finish_decoder(fields, "parallel", (layer,) * count, label="ParallelForCausalLM")


def names(spec, source):
    return tensor_names(spec, source)


def block(request):
    writer = LayerWriter(request)
    graph, layer = writer.graph, request.layer
    x = writer.norm(writer.h, "attn_norm", result="x")
    q, k, v = (writer.linear(x, f"attn.{part}", bias=False, result=part) for part in "qkv")
    q, k, v = (
        writer.by_head(value, heads, f"{value.name}_heads")
        for value, heads in ((q, layer.heads), (k, layer.kv_heads), (v, layer.kv_heads))
    )
    q, k = (graph.op("rope", value, *writer.table, layout="half", result="turned") for value in (q, k))
    mixed = graph.op(
        "grouped_query_attention", q, k, v, writer.positions, writer.row_starts,
        scale=layer.head_dim**-0.5, window=0, result="mixed",
    )
    mixed = graph.op("reshape", mixed, shape=("T", str(layer.heads * layer.head_dim)), result="flat")
    o = writer.linear(mixed, "attn.o", bias=False, result="o")
    y = writer.norm(writer.h, "ffn_norm", result="y")
    gate = graph.op("silu", writer.linear(y, "ffn.gate", bias=False, result="gate"), result="active")
    product = graph.op("multiply", gate, writer.linear(y, "ffn.up", bias=False, result="up"), result="product")
    down = writer.linear(product, "ffn.down", bias=False, result="down")
    return graph.finish(graph.op("add", graph.op("add", writer.h, o, result="mid"), down, result="out"))


@hookimpl
def cacheir_register_families():
    yield FamilySpec(
        name="parallel",
        summary="Attention and feed-forward side by side.",
        architectures=("ParallelForCausalLM",),
        gguf_architectures=(),
        config=read_config,
        gguf_config=read_config,
        names=names,
        block=block,
    )
"""

TESTS = """
import numpy as np
from pathlib import Path
from safetensors.numpy import load_file
from cacheir.testing import FamilyTests
from cacheir_importers.tiny import write_json, write_tiny
import json


def formula(folder):
    weights = {{name: value.astype(np.float64) for name, value in load_file(folder / "model.safetensors").items()}}

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weights[name + ".weight"]

    def logits(ids):
        count = len(ids)
        angles = np.arange(count)[:, None, None] * 1e4 ** (-np.arange(0, 16, 2) / 16)
        cos, sin, future = np.cos(angles), np.sin(angles), np.triu(np.ones((count, count), bool), 1)
        turn = lambda x: np.concatenate(
            (x[..., :8] * cos - x[..., 8:] * sin, x[..., 8:] * cos + x[..., :8] * sin), -1
        )
        h = weights["model.embed_tokens.weight"][list(ids)]
        for layer in range(2):
            at = lambda part: weights[f"model.layers.{{layer}}.{{part}}.weight"].T
            x = norm(h, f"model.layers.{{layer}}.input_layernorm")
            q = turn((x @ at("self_attn.q_proj")).reshape(count, 4, 16))
            k = turn((x @ at("self_attn.k_proj")).reshape(count, 2, 16))[:, [0, 0, 1, 1]]
            v = (x @ at("self_attn.v_proj")).reshape(count, 2, 16)[:, [0, 0, 1, 1]]
            scores = np.einsum("thd,shd->hts", q, k) / 4
            scores[:, future] = -np.inf
            chances = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = np.einsum("hts,shd->thd", chances / chances.sum(-1, keepdims=True), v).reshape(count, -1)
            y = norm(h, f"model.layers.{{layer}}.post_attention_layernorm")
            gate = y @ at("mlp.gate_proj")
            ffn = (gate / (1 + np.exp(-gate)) * (y @ at("mlp.up_proj"))) @ at("mlp.down_proj")
            h = h + mixed @ at("self_attn.o_proj") {sign} ffn
        return (norm(h, "model.norm") @ weights["lm_head.weight"].T).astype(np.float32)

    return logits


class TestParallel(FamilyTests):
    plugins = ("cacheir_cpu.plugin", "cacheir_importers.plugin", "parallel_family")

    @classmethod
    def write_model(cls, folder):
        write_tiny(folder)
        config = json.loads((folder / "config.json").read_text())
        config = {{**config, "architectures": ["ParallelForCausalLM"], "model_type": "parallel", {field}}}
        write_json(folder / "config.json", config)

    @classmethod
    def make_oracle(cls, folder):
        return formula(folder)
"""


def run(folder: Path, *, sign: str = "+", field: str = "") -> dict[str, str]:
    """The outcome of each test of the suite on the plugin, whose oracle and config.json may be made wrong."""
    (folder / "parallel_family.py").write_text(PLUGIN)
    (folder / "test_parallel.py").write_text(TESTS.format(sign=sign, field=field))
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    done = subprocess.run(
        [*command, str(folder)],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )
    words = [line.split() for line in done.stdout.splitlines() if line.startswith(("PASSED", "FAILED", "ERROR"))]
    assert words, done.stdout + done.stderr
    return {word[1].rpartition("::")[2]: word[0] for word in words}


def test_a_right_family_passes_all(tmp_path: Path) -> None:
    outcomes = run(tmp_path)
    assert set(outcomes.values()) == {"PASSED"}, outcomes
    assert set(outcomes) == {name for name in dir(FamilyTests) if name.startswith("test_")}


def test_a_wrong_block_and_an_unread_field_are_seen(tmp_path: Path) -> None:
    outcomes = run(tmp_path, sign="-", field='"new_field": 3')
    failed = {name for name, outcome in outcomes.items() if outcome != "PASSED"}
    assert failed == {
        "test_every_field_is_read",
        "test_greedy_tokens",
        "test_logits_at_long_positions",
        "test_logits_of_paged_decode",
        "test_logits_of_prefill",
    }
