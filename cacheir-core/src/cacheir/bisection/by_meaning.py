"""Answers by the meaning of ops: the logical module all at once, or the modules of the modes step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cacheir.bisection.probe import PAGE_TOKENS, Evidence, Probe, Where
from cacheir.ir.graph import Graph, Module
from cacheir.models.imported import ImportedModel
from cacheir.pipeline.heads import LOGITS, SAMPLING_INPUTS
from cacheir.pipeline.kv_groups import KVGroups
from cacheir.plugins.installation import Installation

if TYPE_CHECKING:
    import numpy as np

    from cacheir.reference.interpreter import Site

GREEDY = "head.greedy"
SAMPLED = "head.sampled"


class MeaningRunner:
    """Runs any module of one model by the meaning of its ops. What recipes make of weights is kept between runs."""

    def __init__(self, model: ImportedModel, installation: Installation) -> None:
        from cacheir.reference.interpreter import Interpreter
        from cacheir.weights.sources import WeightFiles

        formats = installation.quant_formats.by_name()
        self._files = WeightFiles(model.root, model.sources, formats)
        self._seen: dict[Where, Any] = {}
        self._step = 0
        self._interpreter = Interpreter(
            installation.ops.by_name(),
            self._files.array,
            observe=self._observe,
            formats=formats,
            unpackers=installation.unpackers.by_name(),
        )

    def logical(self, module: Module, probe: Probe) -> Evidence:
        """The answer of a logical module, which sees all ids at once and has no cache."""
        import numpy as np

        count = len(probe.ids)
        given = {
            "tokens": np.array(probe.ids, np.int32),
            "positions": np.arange(count, dtype=np.int32),
            "row_starts": np.array([0, count], np.int32),
            "sequence_lengths": np.array(probe.lengths(), np.int32),
        }
        with self._watched():
            hidden, *_ = self._run(module, module.main, given, {})
            logits = self._head(module, LOGITS, hidden)
            return Evidence(logits=logits, values=_by_step(self._seen, probe))

    def modes(self, modules: Mapping[str, Module], groups: KVGroups, probe: Probe) -> Evidence:
        """The answer of the modules of prefill and decode, one sequence over pages in an order of their own."""
        import numpy as np

        from cacheir.reference.kv_pool import KVPool

        pages = page_table(len(probe.ids))
        pools = [KVPool(kind, layers, len(pages) + 1, PAGE_TOKENS) for kind, layers in zip(groups.types, groups.layers)]
        parts, tokens, sampled = [], {}, {}
        with self._watched():
            for number, (mode, start, stop) in enumerate(probe.steps()):
                module, self._step = modules[mode], number
                given = step_inputs(probe, start, stop, pages, len(pools))
                states = {value.name: pool for value, pool in zip(module.main.states, pools)}
                rows, *_ = self._run(module, module.main, given, states)
                parts.append(self._head(module, LOGITS, rows))
                if any(graph.name == GREEDY for graph in module.heads):
                    tokens[number, stop - 1] = int(self._head(module, GREEDY, rows[-1:])[0])
                draw = probe.draws.get((number, stop - 1))
                if draw and any(graph.name == SAMPLED for graph in module.heads):
                    sampled[number, stop - 1] = self._sampled(module, rows[-1:], draw.inputs(stop - 1))
            return Evidence(logits=np.concatenate(parts), tokens=tokens, sampled=sampled, values=self._seen)

    def close(self) -> None:
        """Close the model's files."""
        self._files.close()

    def _run(self, module: Module, graph: Graph, given: Mapping[str, Any], states: Mapping[str, Any]) -> Sequence[Any]:
        operands = [states[v.name] if v.origin == "state" else given[v.name] for v in graph.params]
        return self._interpreter.run(module, graph, operands)

    def _head(self, module: Module, name: str, rows: np.ndarray) -> np.ndarray:
        """Rows through a head in parts that it takes, [R, ...]."""
        import numpy as np

        graph = module.graph(name)
        most = next(high for size, _, high in graph.dims if size == "R")
        parts = [
            self._interpreter.run(module, graph, [rows[start : start + most]])[0] for start in range(0, len(rows), most)
        ]
        return np.concatenate(parts)

    def _sampled(self, module: Module, row: np.ndarray, given: Mapping[str, Any]) -> int:
        """The token of one row f32 [1, H], its other inputs by the names that the head was made with."""
        graph = module.graph(SAMPLED)
        names = [name for name, _ in SAMPLING_INPUTS] + ["mask"]
        return int(self._interpreter.run(module, graph, [row, *(given[name] for name in names)])[0][0])

    @contextmanager
    def _watched(self) -> Iterator[None]:
        import numpy as np

        self._seen, self._step = {}, 0
        # Infinities and NaN are an answer too, which the distance tells of.
        with np.errstate(all="ignore"):
            yield

    def _observe(self, site: Site, results: tuple[Any, ...]) -> None:
        import numpy as np

        for value, result in zip(site.op.results, results):
            # A head takes its rows in parts, and a wrong call may run a layer twice: the first time counts.
            where = (self._step, site.graph, site.layer, value.name)
            if isinstance(result, np.ndarray) and result.ndim and where not in self._seen:
                self._seen[where] = result.copy()


def _by_step(seen: Mapping[Where, Any], probe: Probe) -> dict[Where, Any]:
    """Values of all ids at once, cut into those of each step."""
    return {
        (number, graph, layer, node): value[start:stop]
        for number, (_, start, stop) in enumerate(probe.steps())
        for (_, graph, layer, node), value in seen.items()
        if len(value) == len(probe.ids)
    }


def page_table(tokens: int) -> tuple[int, ...]:
    """The pages of a sequence of ``tokens`` tokens: the last first, so that an order taken for granted shows."""
    count = -(-tokens // PAGE_TOKENS)
    return tuple(range(count, 0, -1))


def step_inputs(probe: Probe, start: int, stop: int, pages: Sequence[int], groups: int) -> dict[str, Any]:
    """What main takes for the positions from ``start`` to ``stop`` of one row, by the names of docs/architecture.md."""
    import numpy as np

    positions = np.arange(start, stop, dtype=np.int32)
    table = np.array([pages], np.int32)
    given: dict[str, Any] = {
        "tokens": np.array(probe.ids[start:stop], np.int32),
        "positions": positions,
        "row_starts": np.array([0, stop - start], np.int32),
        "sequence_lengths": np.full(stop - start, stop, np.int32),
        "head_rows": np.arange(stop - start, dtype=np.int32),
    }
    for group in range(groups):
        suffix = f".{group}" if group else ""
        given[f"slots{suffix}"] = table[0, positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS
        given[f"page_table{suffix}"] = table
        given[f"lengths{suffix}"] = np.array([stop], np.int32)
    return given
