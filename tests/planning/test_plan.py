"""``cacheir plan``: settings that make a model fit, each lowered no more than needed, and what the command says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import cacheir
from cacheir.artifact.card import CompileOptions
from cacheir.bench.memory_fit import Demand, MemoryPlanner
from cacheir.cli.plan import app
from cacheir.cli.sizes import parse_size
from cacheir.compile import compile_model
from cacheir.errors import BackendError, UsageError
from cacheir.plugins.installation import default
from cacheir_importers.tiny import write_tiny

WANTED = Demand(context=256, concurrency=4, max_tokens=64)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CACHEIR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny(path, family="llama")
    return path


def planner(model: Path, backend: str = "cpu", **more: Any) -> MemoryPlanner:
    return MemoryPlanner(
        model=str(model),
        backend=default().backends[backend],
        installation=default(),
        options=CompileOptions(),
        threads=1,
        **more,
    )


@pytest.mark.parametrize("backend", ["cpu", "native"])
def test_pages_grow_with_what_is_asked_for(tiny: Path, backend: str) -> None:
    plans = planner(tiny, backend)
    one, two = plans.plan(WANTED), plans.plan(replace(WANTED, concurrency=8))
    assert two.forecast.use.kv == 2 * one.forecast.use.kv > 0
    half, whole = (plans.plan(replace(WANTED, kv_dtype=name)).forecast.use.kv for name in ("f16", "f32"))
    assert half * 2 == whole
    assert set(one.modes) == {"prefill", "decode"}
    assert max(use.arena for use in one.modes.values()) <= one.forecast.use.arena
    assert one.total == one.resident == one.forecast.peak + one.host
    assert replace(one, imports=5).total == one.total + 5


def test_each_way_to_fit_fits_and_a_little_more_does_not(tiny: Path) -> None:
    plans = planner(tiny, "native")
    wanted = replace(WANTED, context=512, concurrency=64, kv_dtype="f32")
    full = plans.plan(wanted)
    memory = full.total - full.forecast.use.kv // 3
    ways = plans.ways_to_fit(wanted, memory)
    flags = [wanted.flags(way.demand) for way in ways]
    assert all(way.total <= memory for way in ways)
    assert any(flag.startswith("--context") for flag in flags)
    assert "--kv-dtype f16" in flags
    (fewer,) = (way.demand for way in ways if way.demand.concurrency < wanted.concurrency)
    assert plans.plan(replace(fewer, concurrency=fewer.concurrency + 1)).total > memory
    assert all(len(flag.split()) == 2 for flag in flags)  # one setting each


def test_where_one_setting_is_not_enough_several_are_named(tiny: Path) -> None:
    plans = planner(tiny, "native")
    wanted = Demand(context=2048, concurrency=32, max_tokens=512)
    least = plans.plan(Demand(context=256, concurrency=1, max_tokens=32)).total
    (way,) = plans.ways_to_fit(wanted, least + 1000)
    assert way.total <= least + 1000
    assert "--concurrency 1 --max-tokens 32" in wanted.flags(way.demand)
    assert plans.ways_to_fit(wanted, 1000) == []


def test_the_command(tiny: Path) -> None:
    words = [str(tiny), "--backend", "native", "--context", "256", "--concurrency", "4"]
    shown = CliRunner().invoke(app, [*words, "--memory", "2GiB"])
    assert shown.exit_code == 0, shown.output
    assert "4 sequences of 256 positions" in shown.stdout and "fits into 2.0GiB: " in shown.stdout
    sizes = re.findall(r"[\d.]+ ?(?:[kMGKT]i?B|B)\b", shown.stdout)
    assert len(sizes) > 10 and all(size == "0B" or (size.endswith("iB") and parse_size(size, "-")) for size in sizes)
    answer = json.loads(CliRunner().invoke(app, [*words, "--memory", "1MB", "--json"]).stdout)
    assert answer["fits"] is False and answer["ways_to_fit"] == []
    assert answer["owned"]["total"] == sum(answer["owned"][part] for part in ("weights", "kv", "arena", "workspace"))
    assert answer["total"] == answer["imports"] + answer["resident_peak"]
    assert CliRunner().invoke(app, words).exit_code == 0  # without --memory: what the machine has free


def test_an_artifact_keeps_its_limits(tiny: Path, tmp_path: Path) -> None:
    compile_model(tiny, target="cpu", output=tmp_path / "artifact", max_seq=128, max_rows=2, max_tokens=32)
    answer = json.loads(CliRunner().invoke(app, [str(tmp_path / "artifact"), "--memory", "1GB", "--json"]).stdout)
    assert (answer["demand"]["context"], answer["demand"]["concurrency"], answer["demand"]["max_tokens"]) == (
        128,
        2,
        32,
    )
    with pytest.raises(UsageError, match="compiled for concurrency up to 2, not 3"):
        planner(tmp_path / "artifact").plan(Demand(context=128, concurrency=3, max_tokens=32))
    with pytest.raises(UsageError, match="weights are what they are"):
        planner(tmp_path / "artifact").plan(Demand(context=128, concurrency=2, max_tokens=32, quant="int8"))


@pytest.mark.parametrize("quant", ["int4", "fp8-e4m3"])
def test_weights_in_our_own_formats_are_foretold_to_the_byte(tiny: Path, quant: str) -> None:
    plan = planner(tiny, "native").plan(replace(WANTED, quant=quant))
    with cacheir.Runtime(tiny, backend="native", compile_options=cacheir.CompileOptions(quant=quant)) as runtime:
        assert plan.forecast.use.weights == runtime.model.executor.memory().weights


def test_what_cannot_be_planned(tiny: Path) -> None:
    with pytest.raises(UsageError, match="keeps KV as"):
        planner(tiny).plan(replace(WANTED, kv_dtype="f8"))
    silent = replace(planner(tiny), backend=replace(default().backends["cpu"], memory=None))
    with pytest.raises(BackendError, match="does not say what it will need"):
        silent.plan(WANTED)
