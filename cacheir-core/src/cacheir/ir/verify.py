"""The verifier: every rule that a graph breaks, each with the line of text that it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from cacheir.errors import VerifyError
from cacheir.ir.graph import Graph, Module
from cacheir.ir.opdef import OpDef
from cacheir.ir.printer import graph_lines, line_of_op
from cacheir.ir.rules.calls import calls
from cacheir.ir.rules.finding import Finding, Setting
from cacheir.ir.rules.operations import operations
from cacheir.ir.rules.stages import stages
from cacheir.ir.rules.states import states
from cacheir.ir.rules.structure import structure
from cacheir.ir.rules.weights import weights
from cacheir.ir.spelling import is_encodable
from cacheir.quick_dataclass import dataclass

_RULES: tuple[Callable[[Graph, Setting], Iterator[Finding]], ...] = (
    structure,
    operations,
    states,
    weights,
    calls,
    stages,
)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One broken rule.

    ``rule`` is its name in docs/ir.md; ``line`` counts the lines of the graph's text from 1; ``op_index`` is None for
    what is not about an op; ``source`` is the text of the line, ``context`` it with the lines before and after it.
    """

    graph: str
    rule: str
    message: str
    line: int
    op_index: int | None
    source: str
    context: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"@{self.graph}, line {self.line}: {self.message} [{self.rule}]", *self.context])


def problems(
    graph: Graph,
    ops: Mapping[str, OpDef],
    *,
    module: Module | None = None,
    stage: str | None = None,
) -> list[Problem]:
    """Everything that is wrong with ``graph``, in the order of its lines; empty where it is valid.

    ``ops`` are the known ops by name. With ``module`` its calls are checked too, and whether it is called itself;
    ``graph`` may be a new version of the module's graph of the same name. ``stage`` is ``logical``, ``mode`` or
    ``target``; None asks for no stage's rules.
    """
    if module is None:
        return graph_problems(graph, ops, stage=stage)
    callees = {other.name: other for other in reversed(module.graphs)} | {graph.name: graph}
    is_called = graph.name != module.main.name and not graph.name.startswith("head.")
    return graph_problems(graph, ops, callees=callees, is_called=is_called, stage=stage)


def verify(
    graph: Graph,
    ops: Mapping[str, OpDef],
    *,
    module: Module | None = None,
    stage: str | None = None,
) -> None:
    """Raise VerifyError, which holds all ``problems``, unless there are none."""
    found = problems(graph, ops, module=module, stage=stage)
    if found:
        raise _error(f"graph @{graph.name}", found)


def module_problems(module: Module, ops: Mapping[str, OpDef], *, stage: str | None = None) -> list[Problem]:
    """Everything that is wrong with the graphs of ``module``, and with their being one module."""
    found: list[Problem] = []
    names: set[str] = set()
    for graph in module.graphs:
        if graph.name in names:
            found += _shown(graph, [Finding(1, "defined-twice", f"there are two graphs @{graph.name}")])
        if graph is module.main and not is_encodable(module.mode):
            found += _shown(graph, [Finding(1, "bad-name", "the module's mode has half of a surrogate pair")])
        names.add(graph.name)
        found += problems(graph, ops, module=module, stage=stage)
    return found


def verify_module(module: Module, ops: Mapping[str, OpDef], *, stage: str | None = None) -> None:
    """Raise VerifyError, which holds all ``module_problems``, unless there are none."""
    found = module_problems(module, ops, stage=stage)
    if found:
        raise _error(f"the module {module.mode!r}", found)


def graph_problems(
    graph: Graph,
    ops: Mapping[str, OpDef],
    *,
    callees: Mapping[str, Graph] | None = None,
    is_called: bool = True,
    stage: str | None = None,
) -> list[Problem]:
    """``problems`` for a caller that knows the graphs which may be called, and no module."""
    setting = Setting(ops=ops, callees=callees, is_called=is_called, stage=stage or "")
    return _shown(graph, [finding for rule in _RULES for finding in rule(graph, setting)])


def _shown(graph: Graph, findings: Iterable[Finding]) -> list[Problem]:
    ordered = sorted(findings, key=lambda finding: finding.line)
    lines = graph_lines(graph) if ordered else []
    first_op = line_of_op(graph, 0)
    found = []
    for line, rule, message in ordered:
        numbers = range(max(1, line - 1), min(len(lines), line + 1) + 1)
        context = tuple(f"{'>' if n == line else ' '} {n:4} | {lines[n - 1]}" for n in numbers)
        op_index = line - first_op if 0 <= line - first_op < len(graph.ops) else None
        found.append(
            Problem(
                graph=graph.name,
                rule=rule,
                message=message,
                line=line,
                op_index=op_index,
                source=lines[line - 1].strip(),
                context=context,
            )
        )
    return found


def _error(what: str, found: list[Problem]) -> VerifyError:
    count = "one rule" if len(found) == 1 else f"{len(found)} rules"
    return VerifyError("\n".join([f"{what} breaks {count}:", *map(str, found)]), problems=tuple(found))
