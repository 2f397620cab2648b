"""Why an engine's decode steps take longer than the search's: python engine_steps.py OUT.json [MODEL [ROUNDS]]

One process, one set of weights, pages and kernels; microseconds a step of 32 rows by each way, from an answer of 128
tokens of the engine to graphs as ``rows_times.py`` makes them. Each way is timed in turn as it is and behind a kernel
of many uneven blocks (notes.md: the two speeds of one chain), ROUNDS times; the table has medians, least and most.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from noted_graphs import mark, noting, uneven_blocks
from random_models import write_model
from shape_run import ids, opened

from cacheir.bench.environment import environment
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Job
from cacheir.runtime.open_model import OpenModel
from cacheir.runtime.sampling import SamplingParams
from cacheir_cuda.chain.launches import KernelLaunch
from cacheir_cuda.chain.rows_launches import RowsInputs
from cacheir_cuda.chain.rows_run import RowsChain
from cacheir_cuda.row_stops import NEVER

ROWS, PROMPT, OUTPUT = 32, 128, 128
STEPS = OUTPUT - 1  # of decode; the prompts give the first token
CONTEXTS = range(136, 249, 16)  # as an answer has them; eight steps on, its pages end
ALONE = 3  # replays of a graph at each context
Way = Callable[[], float]  # microseconds a step


def answer(model: OpenModel, sample: int) -> None:
    """``ROWS`` answers through an engine."""
    engine = Engine(model)
    params = SamplingParams(max_tokens=OUTPUT, ignore_eos=True, temperature=0.0)
    jobs = [Job(id=str(n), ids=tuple(ids(PROMPT, 900 * sample + n)), sampling=params, reuse=False) for n in range(ROWS)]
    events = engine.generate(jobs)
    engine.close()
    assert all(sum(len(event.ids) for event in one) == OUTPUT for one in events), "an answer has another length"


def ways_of(model: OpenModel, chain: RowsChain, before: Callable[[], Any], parts: dict[str, Any]) -> dict[str, Way]:
    """Each way by its name; ``before`` comes just before what is timed, the last answer's graphs go to ``parts``."""
    samples = iter(range(1_000_000))
    sizes: list[int] = []

    def engine(each: bool) -> float:
        with noting(chain, ROWS, STEPS, each, before) as found:
            answer(model, next(samples))
        if found.steps != STEPS:
            raise RuntimeError(f"an answer took {found.steps} steps of {ROWS} rows by the kernels of rows, not {STEPS}")
        sizes[:] = [steps for steps, _, _ in found.graphs]
        took = found.us_a_step()
        if each:
            parts.update(found.parts())
        return took

    def again(each: bool) -> float:
        """The graphs of the last answer by themselves, from the same inputs."""
        recorded, stream = chain._recorded[ROWS], torch.cuda.current_stream().cuda_stream
        if not (recorded.inputs.arrays["positions"] == PROMPT).all():
            raise RuntimeError(
                "the engine's last answer was more than one run of steps: its inputs are no longer there"
            )
        recorded.inputs.fill(recorded.inputs.arrays)
        chain._module.launch(recorded.begin, stream)
        with noting(chain, ROWS, STEPS, each, before) as found:
            for steps in sizes:
                chain._module.driver.replay(recorded.graphs[steps], stream)
                if each:
                    torch.cuda.synchronize()
        if not each:
            return found.us_a_step()
        torch.cuda.synchronize()
        return 1e3 * sum(float(begin.elapsed_time(end)) for _, begin, end in found.graphs) / STEPS

    def searched(steps: int, engine_pages: bool, kept: bool, stops: bool) -> float:
        """Graphs as the search has them, at contexts of an answer; ``kept``: keys and values are stored."""
        made = Searched(chain, engine_pages, kept)
        return made.us_a_step(made.launches(steps, stops), steps, before)

    return {
        "engine, events at both ends": lambda: engine(False),
        "engine, events around each graph": lambda: engine(True),
        "its graphs bare, one behind the other": lambda: again(False),
        "its graphs bare, each waited for": lambda: again(True),
        "graphs of 8 anew, its pages": lambda: searched(8, True, True, True),
        "the same, no ends": lambda: searched(8, True, True, False),
        "the same, nothing kept": lambda: searched(8, True, False, False),
        "the same, pages in no order": lambda: searched(8, False, False, False),
        "graphs of 1 (the search)": lambda: searched(1, False, False, False),
    }


class Searched:
    """Inputs of ``ROWS`` rows beside the engine's: its page table or one in no order, slots or none."""

    def __init__(self, chain: RowsChain, engine_pages: bool, kept: bool) -> None:
        self._chain, self._recorded = chain, chain._recorded[ROWS]
        given = self._recorded.inputs.tensors
        table = given["page_table"].clone()
        if not engine_pages:
            width = PROMPT // 16 + OUTPUT // 16 + 1
            drawn = torch.randperm(chain._step._pool.pages, generator=torch.Generator().manual_seed(1))
            table[:, :width] = drawn[: ROWS * width].view(ROWS, width).to(table)
        self._kept, self._produced = kept, torch.zeros_like(given["produced"])
        self._stops = given["stops"].new_tensor([NEVER] * ROWS)
        self.inputs = RowsInputs(*(torch.zeros_like(given[name]) for name in ("tokens", "positions", "slots")), table)

    def launches(self, steps: int, stops: bool) -> list[KernelLaunch]:
        """``steps`` steps as ``RowsChain`` records them."""
        step, made = self._chain._step, list[KernelLaunch]()
        for number in range(steps):
            made += [*step.layers(self.inputs, number), step.head(ROWS)]
            ends = self._stops if stops else None
            made.append(step.advance(self.inputs, self._recorded.tokens, self._produced, number, steps, ends))
        return made

    def _reset(self, context: int) -> None:
        inputs = self.inputs
        inputs.positions.fill_(context)
        self._produced.zero_()
        slots = inputs.page_table[:, context // 16] * 16 + context % 16
        inputs.slots.copy_(slots) if self._kept else inputs.slots.fill_(-1)

    def us_a_step(self, launches: Sequence[KernelLaunch], steps: int, before: Callable[[], Any]) -> float:
        """Mean over contexts of the median of a few replays, each waited for."""
        module, stream = self._chain._module, torch.cuda.current_stream().cuda_stream
        graph, taken = module.record(launches), []
        self._reset(CONTEXTS[0])
        module.driver.replay(graph, stream)
        before()
        for context in CONTEXTS:
            each = []
            for _ in range(ALONE):
                self._reset(context)
                begin = mark()
                module.driver.replay(graph, stream)
                end = mark()
                torch.cuda.synchronize()
                each.append(1e3 * float(begin.elapsed_time(end)) / steps)
            taken.append(statistics.median(each))
        module.driver.destroy([graph])
        return statistics.mean(taken)


def measured(model: OpenModel, chain: RowsChain, uneven: Callable[[], Any], rounds: int) -> dict[str, Any]:
    """Samples by way, plain and behind uneven blocks, and the parts of the last answers."""
    befores: dict[str, Callable[[], Any]] = {"plain": lambda: None, "uneven": uneven}
    parts: dict[str, dict[str, Any]] = {name: {} for name in befores}
    ways = {name: ways_of(model, chain, before, parts[name]) for name, before in befores.items()}
    uneven()  # is compiled
    for _ in range(3):  # engines learn how long a step takes
        answer(model, 1_000_000)
    samples: dict[str, dict[str, list[float]]] = {way: {name: [] for name in befores} for way in ways["plain"]}
    for _ in range(rounds):
        for way, by in samples.items():
            for name, taken in by.items():
                taken.append(round(ways[name][way](), 2))
    return {"us_a_step": samples, "parts": parts}


def table(found: dict[str, Any]) -> str:
    """One line a way."""
    lines = [f"{'us a step, median (least, most)':42s}" + "".join(f"{name:>28s}" for name in ("plain", "uneven"))]
    for way, by in found["us_a_step"].items():
        cells = [f"{statistics.median(each):.1f} ({min(each):.1f}, {max(each):.1f})" for each in by.values()]
        lines.append(f"{way:42s}" + "".join(f"{cell:>28s}" for cell in cells))
    for name, parts in found["parts"].items():
        gaps, graphs = parts["gaps_us"], parts["graphs_us"]
        lines.append(
            f"{name}: between its graphs {sum(gaps) / STEPS:.2f} us a step, most {max(gaps, default=0):.1f}; {graphs}"
        )
    return "\n".join(lines)


def main() -> None:
    """Measures, prints and writes."""
    gc.set_threshold(200_000)  # as the command cacheir sets it
    name, rounds = (*sys.argv[2:4], *("r1-distill-1.5b", "5")[len(sys.argv[2:4]) :])
    place = Path(os.environ.get("CACHEIR_MODELS", tempfile.gettempdir())) / name
    if not place.exists():
        write_model(place, name)
        torch.cuda.empty_cache()
    with opened(place, 4096) as runtime:
        chain = runtime.model.executor._chain.rows._rows
        found = measured(runtime.model, chain, uneven_blocks(), int(rounds))
        found["counters"] = dict(runtime.counters())
    print(table(found), flush=True)
    Path(sys.argv[1]).write_text(json.dumps({**found, "model": name, "environment": environment()}, indent=1) + "\n")


if __name__ == "__main__":
    with torch.no_grad():
        main()
