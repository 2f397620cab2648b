"""MLIR's own parser (wheel iree-base-compiler) takes what ``cacheir export`` writes as MLIR, and gives it back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from cacheir.compile import open_program
from cacheir.exporters.mlir import print_mlir
from cacheir.exporters.mlir_reader import parse_mlir
from cacheir.ir import Graph, Module, verify_module
from cacheir.ops.table import core_ops
from cacheir.testing.strategies import modules
from cacheir.testing.tiny_decoders import tiny_decoders

mlir = pytest.importorskip("iree.compiler.ir", reason="iree-base-compiler is not installed: make exports-check does it")

pytestmark = pytest.mark.slow  # `make exports-check` runs it

# A failure is not shrunk: each attempt starts MLIR anew, and the error names the line.
RELAXED = settings(
    deadline=None,
    max_examples=30,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def through_mlir(text: str, *, generic: bool) -> str:
    """``text`` as MLIR prints what it parsed; raises where it is no MLIR."""
    with mlir.Context() as context:
        context.allow_unregistered_dialects = True
        parsed = mlir.Module.parse(text)
        assert parsed.operation.verify()
        return str(parsed.operation.get_asm(print_generic_op_form=generic, enable_debug_info=False))


def assert_same(module: Module, read: Module) -> None:
    """Equal but for the names of results, which MLIR numbers: in graphs' hashes, parameters, weights and order."""
    assert (read.mode, [graph.name for graph in read.graphs]) == (module.mode, [graph.name for graph in module.graphs])
    for graph, other in zip(module.graphs, read.graphs):
        assert other.hash == graph.hash
        assert (other.params, other.weights, other.dims) == (graph.params, graph.weights, graph.dims)


@RELAXED
@given(modules())
def test_random_modules_go_through_mlir(module: Module) -> None:
    for generic in (True, False):
        assert_same(module, parse_mlir(through_mlir(print_mlir(module), generic=generic)))


@pytest.mark.parametrize("name", sorted(tiny_decoders()))
def test_decoders_go_through_mlir_and_keep_the_rules(name: str) -> None:
    module = tiny_decoders()[name].logical(core_ops())
    read = parse_mlir(through_mlir(print_mlir(module), generic=True))
    assert_same(module, read)
    verify_module(read, core_ops(), stage="logical")


def test_smollm2_goes_through_mlir(smollm2_path: Path) -> None:
    program = open_program(smollm2_path).program
    for module in program.modules.values():
        read = parse_mlir(through_mlir(print_mlir(module), generic=True))
        assert_same(module, read)
        verify_module(read, core_ops(), stage="target")


def test_a_parser_that_checks_would_refuse_nonsense() -> None:
    """The oracle is awake: what is no MLIR is refused, and so is a use before its definition."""
    graph = Graph("g", (), (), (), (), ())
    good = print_mlir(Module("m", (graph,)))
    for broken in (
        good.replace("({", "(", 1),
        good.replace('yield"()', 'yield"(%no)').replace(": () -> ()", ": (i1) -> ()", 1),
    ):
        with pytest.raises(mlir.MLIRError):
            through_mlir(broken, generic=True)
