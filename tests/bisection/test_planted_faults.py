"""Faults planted at random in a pass, a rewrite or a kernel are named, in as few runs as halving needs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from planted import KINDS, PASS_KINDS, in_kernel, in_pass, in_rewrite, is_head, only_in_layer, spoilable

from cacheir.artifact.card import CompileOptions
from cacheir.artifact.program_key import header_facts
from cacheir.bisection import Bisection, bisect_model
from cacheir.bisection.on_backend import LaunchName, launches_by_kernel
from cacheir.compile_work import Compiled, CompileWork
from cacheir.ir.graph import Module
from cacheir.pipeline.counted_rewrite import RewriteSite
from cacheir.plugins.installation import Installation
from cacheir.plugins.specs import Stage

LAYERS = 4


@dataclass(frozen=True, repr=False)  # a program is too long to be shown with each failure
class Clean:
    """The model without a fault: where one can be planted."""

    folder: Path
    installation: Installation
    compiled: Compiled
    options: CompileOptions = field(default_factory=CompileOptions)

    @property
    def launches(self) -> list[LaunchName]:
        return launches_by_kernel(self.compiled.program)

    def bisect(self) -> Bisection:
        return bisect_model(self.folder, backend="cpu", options=self.options, installation=self.installation)

    def modules_after(self, name: str) -> dict[str, Any]:
        """The modules after the pass ``name``, "" for the logical one."""
        work, model = self._work()
        limits = work.limits(model)
        result = work.run_passes(work.build(model, limits), model, limits, until=name)
        return dict(result.modules) or {"": result.logical}

    def _work(self) -> Any:
        work = CompileWork.begin(self.options, self.installation, None)
        return work, work.open(self.folder)


def made_clean(folder: Path, installation: Installation, options: CompileOptions) -> Clean:
    work = CompileWork.begin(options, installation, None)
    model = work.open(folder)
    return Clean(folder, installation, work.compile(model, header_facts(model)), options)


@pytest.fixture(scope="module")
def clean(tiny: Path, installation: Installation) -> Clean:
    return made_clean(tiny, installation, CompileOptions())


@pytest.fixture(scope="module")
def split(tiny: Path, installation: Installation) -> Clean:
    """The model whose layer 2 has a graph of its own, with rewrites that no other layer has."""
    return made_clean(tiny, installation, CompileOptions(passes=("split-layer{layer=2}",)))


def check_runs(found: Bisection) -> None:
    """The bound of the issue: halving passes, sites and kernels, and three runs more."""
    most = sum(math.ceil(math.log2(max(1, count))) for count in (found.passes, found.sites, found.kernels)) + 3
    assert found.runs <= most, [trial.what for trial in found.trials]


few = settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
many = settings(few, max_examples=60)


def test_nothing_is_wrong_without_a_fault(clean: Clean) -> None:
    found = clean.bisect()
    assert found.finding is None
    assert found.runs == 1
    assert found.distance < found.tolerance / 10


def kernel_fault(clean: Clean, draw: random.Random) -> None:
    launch = draw.choice(sorted({(x.kernels, x.op) for x in clean.launches}))
    (name,), op = launch
    # The norm after the last rows were gathered takes any factor away again.
    kinds = [kind for kind in KINDS if (kind != "epsilon" or "norm" in op) and (kind, op) != ("factor", "gather_rows")]
    kind = draw.choice(kinds)
    weighted = op in ("linear", "fused_rmsnorm_qkv_rope", "fused_swiglu", "add_rms_norm", "kv_append")
    inside = weighted or op.startswith("paged_attention")
    layer = draw.choice((None, *range(LAYERS))) if inside else None
    applies = {} if layer is None else {"applies": only_in_layer(clean.folder, layer)}
    note(f"{name}: {kind} in {'all layers' if layer is None else layer}")
    with in_kernel(clean.installation.kernels[name].entry, kind, **applies):
        found = clean.bisect()
    assert found.finding is not None
    assert found.finding.kind == "kernel"
    # add_rms_norm calls rms_norm's function, and runs first.
    assert found.finding.name in (name, "cpu.numpy.add_rms_norm" if op == "rms_norm" else name)
    assert found.finding.plugin == "cacheir_cpu.plugin"
    if layer is not None:
        assert (found.finding.layer, found.finding.layers) == (layer, (layer,))
    check_runs(found)


def rewrite_fault(clean: Clean, draw: random.Random) -> None:
    site = draw.choice(clean.compiled.result.sites)
    kind = draw.choice(kinds_at(clean, site))
    note(f"{site}: {kind}")
    with in_rewrite(clean.installation.passes[site.pass_name].run, site, kind):
        found = clean.bisect()
    assert found.finding is not None
    assert (found.finding.kind, found.finding.name, found.finding.graph) == ("rewrite", site.pass_name, site.graph)
    assert found.finding.site == site.number
    layers = layers_of(clean.modules_after(site.pass_name)[site.mode], site.graph)
    if layers:
        assert (found.finding.layer, found.finding.layers) == (layers[0], layers)
    check_runs(found)


def kinds_at(clean: Clean, site: RewriteSite) -> tuple[str, ...]:
    """The faults that show when they are planted at ``site``."""
    if is_head(site.graph):
        return ("sign",)  # the token of the lowest logit; a small change may leave the highest where it is
    module = clean.modules_after(site.pass_name)[site.mode]
    made = module.graph(site.graph).producers()
    kinds = ["sign", "index"]
    if any(name in made and made[name].attr("eps") is not None for name in site.made):
        kinds.append("epsilon")
    # The norm after the last rows were gathered takes any factor away again.
    return (*kinds, "factor") if site.pass_name != "gather-last-rows" else tuple(kinds)


def layers_of(module: Module, graph: str) -> tuple[int, ...]:
    """The layers that ``graph`` is called for."""
    calls = module.main.ops_named("call")
    return tuple([number for op in calls if op.callee == graph and isinstance(number := op.attr("layer"), int)])


def pass_fault(clean: Clean, draw: random.Random) -> None:
    passes = [p for p in clean.compiled.result.order if p.chosen is not None]
    place = draw.choice(passes)
    modules = clean.modules_after(place.name)
    kind = draw.choice(PASS_KINDS if place.stage is not Stage.LOGICAL else KINDS)
    where = [
        (mode, graph.name, node)
        for mode, module in modules.items()
        for graph in module.graphs
        if graph.name not in ("head.sampled", "head.hidden")
        for node in spoilable(graph, kind)
    ]
    mode, graph, node = draw.choice(where)
    note(f"{place.name}: {kind} at {node} of {graph}, {mode}")
    with in_pass(place.chosen.spec.run, mode, graph, node, kind):  # type: ignore[union-attr]
        found = clean.bisect()
    assert found.finding is not None
    # What is spoilt may be what a rewrite of the pass has made: without the rewrite it is not there to be spoilt.
    sites = clean.compiled.result.sites
    made = {name for site in sites if (site.pass_name, site.graph) == (place.name, graph) for name in site.made}
    assert found.finding.kind in ("pass", "rewrite" if kind == "epsilon" or node in made else "pass")
    assert (found.finding.name, found.finding.graph) == (place.name, graph)
    if kind == "layer":
        layer = next(op.attr("layer") for op in modules[mode].main.ops if op.results[0].name == node)
        assert (found.finding.layer, found.finding.layers) == (layer, (layer,))
    elif graph == "decoder_layer":
        assert (found.finding.layer, found.finding.layers) == (0, tuple(range(LAYERS)))
    check_runs(found)


PLANTS: dict[str, Callable[[Clean, random.Random], None]] = {
    "kernel": kernel_fault,
    "rewrite": rewrite_fault,
    "pass": pass_fault,
}


def test_a_head_that_samples_is_compared_too(clean: Clean) -> None:
    name = "final-dead-code"
    head = clean.modules_after(name)["decode"].graph("head.sampled")
    node = next(op.results[0].name for op in head.ops if op.name == "linear")
    with in_pass(clean.installation.passes[name].run, "decode", head.name, node, "sign"):
        found = clean.bisect()
    assert found.finding is not None
    assert (found.finding.name, found.finding.mode, found.finding.graph) == (name, "decode", "head.sampled")
    check_runs(found)


@pytest.mark.parametrize("place", ["main", "decoder_layer"])
def test_the_last_value_of_a_graph_is_told_from_what_reads_it(place: str, clean: Clean) -> None:
    # Both passes change main or a head besides, and the spoilt value goes on under a new name.
    name, graph, kind = {
        "decoder_layer": ("gather-last-rows", "decoder_layer", "index"),
        "main": ("fuse-head-argmax", "main", "factor"),
    }[place]
    module = clean.modules_after(name)["prefill"]
    node = next(found for found in module.graphs if found.name == graph).outputs[0].name
    with in_pass(clean.installation.passes[name].run, "prefill", graph, node, kind):
        found = clean.bisect()
    assert found.finding is not None
    assert (found.finding.name, found.finding.mode, found.finding.graph) == (name, "prefill", graph)
    check_runs(found)


@pytest.mark.parametrize(("mode", "kind"), [("prefill", "sign"), ("decode", "epsilon")])
def test_a_rewrite_that_is_wrong_in_one_layer_alone_is_named(mode: str, kind: str, split: Clean) -> None:
    def is_alone(site: RewriteSite) -> bool:
        return site.mode == mode and layers_of(split.compiled.result.modules[mode], site.graph) == (2,)

    (site,) = filter(is_alone, split.compiled.result.sites)
    with in_rewrite(split.installation.passes[site.pass_name].run, site, kind):
        found = split.bisect()
    assert found.finding is not None
    assert (found.finding.kind, found.finding.name, found.finding.site) == ("rewrite", "fuse-add-norm", site.number)
    assert (found.finding.mode, found.finding.layer, found.finding.layers) == (mode, 2, (2,))
    check_runs(found)


def test_a_rewrite_of_a_head_that_gives_another_token_is_named(clean: Clean) -> None:
    for site in [site for site in clean.compiled.result.sites if is_head(site.graph)]:
        with in_rewrite(clean.installation.passes[site.pass_name].run, site, "sign"):
            found = clean.bisect()
        assert found.finding is not None
        assert (found.finding.kind, found.finding.name, found.finding.site) == ("rewrite", site.pass_name, site.number)
        assert (found.finding.mode, found.finding.graph, found.finding.op) == (site.mode, site.graph, "head_argmax")
        check_runs(found)


@pytest.mark.parametrize("place", PLANTS)
@given(seed=st.integers(0, 2**32 - 1))
@few
def test_a_planted_fault_is_named(place: str, clean: Clean, seed: int) -> None:
    PLANTS[place](clean, random.Random(seed))


@pytest.mark.slow
@pytest.mark.parametrize("place", PLANTS)
@given(seed=st.integers(0, 2**32 - 1))
@many
def test_many_planted_faults_are_named(place: str, clean: Clean, seed: int) -> None:
    PLANTS[place](clean, random.Random(seed))


@pytest.mark.slow
@given(seed=st.integers(0, 2**32 - 1))
@many
def test_many_faulty_rewrites_of_a_model_with_a_split_layer_are_named(split: Clean, seed: int) -> None:
    rewrite_fault(split, random.Random(seed))
