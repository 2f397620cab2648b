"""The schedule as data: which kernel runs each op for each row class, over which buffers."""

from __future__ import annotations

from collections.abc import Mapping

from cacheir.quick_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """Where the value ``name`` lies: ``kind`` is ``arena``, ``param``, ``weight``, ``state`` or ``output``.

    ``output`` is a result that the graph yields: its place is the caller's. ``arena`` places are in the memory plan.
    """

    kind: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One kernel that was considered. ``refusal`` is the reason it was not taken, ``""`` for the chosen one.

    ``bytes`` and ``operations`` are what it would move and compute in a launch of the choice's ``at_rows`` rows.
    """

    kernel: str
    target: str
    plugin: str
    refusal: str = ""
    bytes: int = 0
    operations: int = 0


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The kernel for one row class (``rows_up_to`` rows, 0 for the last, unbounded class) and why.

    ``bytes`` and ``operations`` are those of a launch of ``at_rows`` rows (``add_costs.py``): they depend on the
    program alone, so an artifact may hold them. Times are made of them by ``cacheir explain`` when it is asked.
    """

    rows_up_to: int
    kernel: str  # "" where the op runs by its decomposition, "call" for a call of a layer graph
    reason: str
    candidates: tuple[Candidate, ...] = ()
    at_rows: int = 0
    bytes: int = 0
    operations: int = 0


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One launch. ``node`` is the op's first result name, unique in its graph; ``op`` its index in the graph."""

    node: str
    op: int
    op_name: str
    choices: tuple[Choice, ...]
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]


@dataclass(frozen=True, kw_only=True)
class GraphSchedule:
    """The launches of one graph, in order."""

    graph: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """All graphs of one mode."""

    mode: str
    target: str
    row_classes: tuple[int, ...]
    graphs: tuple[GraphSchedule, ...]
    kernels: Mapping[str, str]  # kernel name -> distribution that provides it

    def graph(self, name: str) -> GraphSchedule:
        """The schedule of graph ``name``; KeyError where there is none."""
        for graph in self.graphs:
            if graph.graph == name:
                return graph
        raise KeyError(name)
