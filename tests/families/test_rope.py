"""Scaled rotations: the tables of cosine and sine beside transformers', and what is refused (B03, B04, B05, B07)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from cacheir import Runtime
from cacheir.errors import MalformedModelError, RequestTooLong, UnsupportedModelError, UsageError
from cacheir.ir.builder import GraphBuilder
from cacheir.ir.graph import Module
from cacheir.models.decoder_spec import DecoderSpec, RopeSpec
from cacheir.models.rotation import RotationTables
from cacheir.plugins.installation import default
from cacheir.reference.interpreter import interpret
from cacheir.reference.rotary import rope_frequencies
from cacheir.testing.interpreter import evaluate
from cacheir_importers.families.llama import read_config
from cacheir_importers.families.phi3 import read_config as read_phi3
from cacheir_importers.fields import Fields
from cacheir_importers.tiny import write_tiny
from cacheir_importers.tiny_config import TinyShape, tiny_config

POSITIONS = np.array([0, 1, 5, 100, 700, 9000, 40000], np.int32)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096}


def config(scaling: dict[str, Any], *, head_dim: int = 64, theta: float = 500_000.0, **more: Any) -> dict[str, Any]:
    values = tiny_config("llama", TinyShape(head_dim=head_dim, positions=131_072))
    del values["rope_theta"]
    return {**values, "rope_parameters": {**scaling, "rope_theta": theta}, **more}


def decoder(values: dict[str, Any]) -> DecoderSpec:
    return read_config(Fields(values, "config.json"))


def rope_of(values: dict[str, Any]) -> RopeSpec:
    (rope,) = {layer.rope for layer in decoder(values).layers}
    assert rope is not None
    return rope


def tables(rope: RopeSpec) -> list[np.ndarray]:
    attrs = {"theta": rope.theta, "dims": rope.dims, "factors": rope.factors, "magnitude": rope.magnitude}
    return list(evaluate("rope_table", POSITIONS, **attrs))


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 8.3},
        LLAMA3,
        {**LLAMA3, "factor": 8.0, "low_freq_factor": 1.5, "high_freq_factor": 3.5},
        YARN,
        {**YARN, "attention_factor": 1.0},
        {**YARN, "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0},
        {**YARN, "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.1},
        {**YARN, "beta_fast": 48.0, "beta_slow": 2.0},
        {**YARN, "truncate": False},
        {**YARN, "original_max_position_embeddings": 32768, "factor": 4.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
def test_tables_are_those_of_transformers(scaling: dict[str, Any], theta: float) -> None:
    values = config(scaling, theta=theta)
    module = LlamaRotaryEmbedding(LlamaConfig(**values))
    cos, sin = module(torch.zeros(1), torch.from_numpy(POSITIONS)[None].long())
    rope = rope_of(values)
    np.testing.assert_array_equal(rope_frequencies(rope.theta, rope.dims, rope.factors), module.inv_freq.numpy())
    for ours, theirs in zip(tables(rope), (cos, sin)):
        np.testing.assert_allclose(ours, theirs[0, :, :32].numpy(), rtol=0, atol=3e-7)


def test_b04_multipliers_of_llama3() -> None:
    factors = np.array(rope_of(config(LLAMA3)).factors)
    wanted = np.array([1.0] * 15 + [0.60557, 0.30374, 0.10345] + [0.03125] * 14)
    np.testing.assert_allclose(1 / factors, wanted, atol=1e-5)


def test_b04_both_spellings_in_both_places() -> None:
    old = {("type" if key == "rope_type" else key): value for key, value in LLAMA3.items()}
    wanted = rope_of(config(LLAMA3))
    base = config({})
    del base["rope_parameters"]
    for section in (LLAMA3, old):
        assert rope_of({**base, "rope_theta": 500_000.0, "rope_scaling": section}) == wanted
        assert rope_of({**base, "rope_parameters": {**section, "rope_theta": 500_000}}) == wanted


@pytest.mark.parametrize(
    ("changes", "magnitude"),
    [
        ({"attention_factor": 1.0}, 1.0),
        ({}, 1.4158883),
        ({"factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"factor": None}, 0.1 * math.log(131_072 / 4096) + 1),
    ],
)
def test_b05_magnitudes_of_yarn(changes: dict[str, Any], magnitude: float) -> None:
    rope = rope_of(config({**YARN, **changes}))
    assert rope.magnitude == pytest.approx(magnitude, abs=1e-6)


def test_b05_a_key_that_nothing_knows_is_reported() -> None:
    fields = Fields(config({**YARN, "odd": 3}), "config.json")
    read_config(fields)
    assert fields.unread() == ("rope_parameters.odd",)


def test_b07_longrope_has_two_tables_and_the_whole_context() -> None:
    table = {
        "short_factor": [1.0 + pair / 8 for pair in range(8)],
        "long_factor": [4.0 - pair / 9 for pair in range(8)],
    }
    scaling = {"rope_type": "longrope", "original_max_position_embeddings": 32, **table}
    values = config(scaling, head_dim=16, max_position_embeddings=128)
    spec = decoder(values)
    assert spec.max_positions == 128 and spec.rotation_switches == (32,)
    rope = spec.layers[0].rope
    assert rope is not None and rope.magnitude == pytest.approx(math.sqrt(1 + math.log(4) / math.log(32)))
    for count, factors in ((32, rope.factors), (33, rope.long_factors)):
        module = LlamaRotaryEmbedding(LlamaConfig(**values))
        cos, _ = module(torch.zeros(1), torch.arange(count)[None])
        attrs = {"theta": rope.theta, "dims": 16, "factors": factors, "magnitude": rope.magnitude}
        ours, _ = evaluate("rope_table", np.arange(count, dtype=np.int32), **attrs)
        np.testing.assert_allclose(ours, cos[0, :, :8].numpy(), rtol=0, atol=1e-6)


def test_b07_longer_than_the_context_is_refused(tmp_path: Path) -> None:
    table = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    scaling = {"type": "longrope", "original_max_position_embeddings": 32, **table}
    write_tiny(tmp_path / "model", changes={"rope_scaling": scaling, "max_position_embeddings": 48})
    with pytest.raises(UsageError, match="max_seq is 64, but the model has 48 positions"):
        Runtime(tmp_path / "model", backend="cpu", max_seq=64)
    with (
        Runtime(tmp_path / "model", backend="cpu") as runtime,
        runtime.session() as session,
        pytest.raises(RequestTooLong),
    ):
        session.append([5] * 49)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"short_factor": [1.0] * 7}, "short_factor has 7 numbers; 8 are needed"),
        ({"long_factor": None}, "long_factor is missing"),
        ({"long_factor": [1.0] * 7 + [0.0]}, "'long_factor' must be a list of finite numbers"),
        ({"original_max_position_embeddings": 1}, "'original_max_position_embeddings' must be a whole number from 2"),
    ],
)
def test_b07_tables_that_do_not_fit(changes: dict[str, Any], problem: str) -> None:
    scaling = {"rope_type": "longrope", "original_max_position_embeddings": 32}
    table = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    with pytest.raises(MalformedModelError, match=problem):
        decoder(config({**scaling, **table, **changes}, head_dim=16))


def test_b07_dynamic_stretches_the_context_by_its_factor() -> None:
    fields = Fields(config({"rope_type": "dynamic", "factor": 4.0}, max_position_embeddings=64), "config.json")
    spec = read_config(fields)
    assert spec.max_positions == 256 and spec.rotation_switches == ()
    assert spec.layers[0].rope == RopeSpec(theta=500_000.0, dims=64, original=64, growth=4.0)
    assert any("dynamic" in note and "beyond 64 tokens" in note for note in fields.notes())


@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("factor", [4.0, 8.3])
def test_b07_bases_of_dynamic_are_those_of_transformers(count: int, factor: float) -> None:
    values = config({"rope_type": "dynamic", "factor": factor}, max_position_embeddings=64)
    rope = rope_of(values)
    graph = GraphBuilder("main", default().ops.by_name(), dims=(("T", 1, 512),))
    tables = RotationTables(graph, graph.input("positions", "i32[T]"), 512).of(rope)
    module = Module("", (graph.finish(tables),))
    positions = np.arange(count, dtype=np.int32)
    inputs = {"positions": positions, "sequence_lengths": np.full(count, count, np.int32)}
    ours = interpret(module, default().ops.by_name(), {}, inputs, {}, graph="main")
    theirs = LlamaRotaryEmbedding(LlamaConfig(**values))(torch.zeros(1), torch.arange(count)[None])
    for mine, other in zip(ours, theirs):
        np.testing.assert_allclose(mine, other[0, :, :32].numpy(), rtol=0, atol=2e-5)


def test_b07_a_program_too_short_for_another_rotation_does_not_ask_for_lengths() -> None:
    table = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    for scaling in (
        {"rope_type": "longrope", "original_max_position_embeddings": 32, **table},
        {"rope_type": "dynamic", "factor": 4.0},
    ):
        rope = rope_of(config(scaling, head_dim=16, max_position_embeddings=32))
        for max_seq, ops in ((32, {"rope_table"}), (33, None)):
            graph = GraphBuilder("main", default().ops.by_name(), dims=(("T", 1, 64),))
            made = graph.finish(RotationTables(graph, graph.input("positions", "i32[T]"), max_seq).of(rope))
            assert ("sequence_lengths" in {value.name for value in made.inputs}) is (ops is None)
            assert ops is None or {op.name for op in made.ops} == ops


def test_b07_su_is_a_name_of_phi_3_alone() -> None:
    section = {"type": "su", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
    values = {**tiny_config("phi3", TinyShape()), "original_max_position_embeddings": 64, "rope_scaling": section}
    assert read_phi3(Fields(values, "config.json")).rotation_switches == (64,)
    with pytest.raises(UnsupportedModelError, match="rope_type 'su' is not supported; supported: default, linear"):
        decoder(config({"rope_type": "su"}))


@pytest.mark.parametrize(
    ("scaling", "problem"),
    [
        ({"rope_type": "linear"}, "field 'factor' is missing"),
        ({"rope_type": "linear", "factor": 0.0}, "'factor' must be a finite number"),
        ({**LLAMA3, "low_freq_factor": 4.0}, "low_freq_factor 4.0 must be below high_freq_factor 4.0"),
        ({**LLAMA3, "high_freq_factor": None}, "field 'high_freq_factor' is missing"),
    ],
)
def test_scalings_that_lack_something(scaling: dict[str, Any], problem: str) -> None:
    with pytest.raises(MalformedModelError, match=problem):
        decoder(config(scaling))
