"""The search for R1-Distill-Qwen-1.5B's kernels of 17 to 32 rows: rows_search.py CUBIN OUT.jsonl SECONDS [WITHOUT...]

CUBIN is the one of the target ``searched`` (cacheir-cuda/cpp). Every candidate is held to float32 and to its own bits,
timed alone and in the layer; then pairs of kernels that may lie beside each other; then, from the base and the best
pairs, one choice is changed at a time, kept where the layer is faster; last the best plans in turn with the base, steps
too. Each figure is a line more of OUT.jsonl as soon as it is there; only the last stage begins after SECONDS. Nothing
runs whose kernels have a name of WITHOUT: ``search_again.py`` gives those that ended or stopped the process.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from rows_bench import DEVICE, Bench
from rows_candidates import KERNELS, LAYER, MODEL, ROWS, Plan, candidates, fits_together, named
from rows_held import Held, planned

from cacheir_cuda.chain.recognise import Chain

CONTEXTS = range(130, 255, 20)
PAIRS = (("output", "gate_up"), ("qkv", "down"), ("attention", "output"))
BASE_EACH, GAIN_US, STARTS, FINALS, TURNS = 8, 0.05, 5, 8, 5
Key = tuple[tuple[str, Any], ...]


class Timer(Protocol):
    """What the search asks a GPU for; microseconds."""

    chain: Chain

    def alone_us(self, plan: Plan, name: str) -> float:
        """The kernel ``name`` of all layers one behind the other, for each layer."""

    def layer_us(self, plan: Plan) -> float:
        """A layer in a graph of all."""

    def step_us(self, plan: Plan) -> float:
        """A step with the head."""

    def held(self, plan: Plan, name: str) -> dict[str, Any]:
        """Its error beside float32, and whether it is ``right``."""

    def chained(self, plan: Plan) -> bool:
        """Whether a graph of all layers has the same bits again and again."""


class GpuTimer:
    """``Timer`` on the GPU."""

    def __init__(self, bench: Bench) -> None:
        self._bench, self._held, self.chain = bench, Held(bench), bench.chain
        self.inputs = bench.inputs([CONTEXTS[-1]] * ROWS)
        self.inputs.slots.fill_(-1)
        self._resets = [partial(self.inputs.positions.fill_, context) for context in CONTEXTS]

    def alone_us(self, plan: Plan, name: str) -> float:
        step = planned(self._bench, plan)
        if name == "head":
            return 1e3 * self._bench.timed([step.head(ROWS)] * 4, repeats=8) / 4
        launches = list(step.layers(self.inputs))[LAYER.index(name) :: len(LAYER)]
        return 1e3 * self._bench.timed(launches, self._resets[3], 8) / self._bench.layers

    def layer_us(self, plan: Plan) -> float:
        launches = list(planned(self._bench, plan).layers(self.inputs))
        return 1e3 * statistics.mean(self._bench.times(launches, self._resets, 3)) / self._bench.layers

    def step_us(self, plan: Plan) -> float:
        step, steps = planned(self._bench, plan), 4
        ring = torch.zeros((steps, ROWS), dtype=torch.int32).pin_memory()
        produced = torch.zeros(ROWS, dtype=torch.int32, device=DEVICE)
        launches = []
        for number in range(steps):
            launches += [*step.layers(self.inputs, number), step.head(ROWS)]
            launches.append(step.advance(self.inputs, ring, produced, number, steps))

        def reset(context: int) -> None:
            self.inputs.positions.fill_(context)
            self.inputs.slots.fill_(-1)
            produced.zero_()

        resets = [partial(reset, context) for context in CONTEXTS]
        return 1e3 * statistics.mean(self._bench.times(launches, resets, 3)) / steps

    def held(self, plan: Plan, name: str) -> dict[str, Any]:
        return self._held.error(plan, name)

    def chained(self, plan: Plan) -> bool:
        return self._held.chained(plan)


class Search:
    """The stages; ``tell`` takes each figure, ``over`` says that the time is."""

    def __init__(
        self,
        timer: Timer,
        tell: Callable[[dict[str, Any]], None],
        over: Callable[[], bool],
        without: Sequence[str] = (),
    ) -> None:
        self._timer, self._tell, self._over = timer, tell, over
        self._choices = {
            name: [plan for plan in plans if not set(named(plan, timer.chain).values()) & set(without)]
            for name, plans in candidates(timer.chain).items()
        }
        self._right: dict[str, list[Plan]] = {name: [] for name in KERNELS}
        self._held: dict[str, dict[str, Any]] = {}  # by kernel
        self._bases: list[float] = []
        self._seen: dict[Key, tuple[float, Plan]] = {}  # gain over the base of its time

    def run(self) -> list[dict[str, Any]]:
        """The best plans in turn with the base, the fastest first."""
        self._base()
        for name in KERNELS:
            alone_us = round(self._timer.alone_us({}, name), 3)
            self._tell({"stage": "base", "name": name, **self._timer.held({}, name), "alone_us": alone_us})
        gains = self._singles()
        for start in ({}, gains):
            self._descend(start)
        for pair in PAIRS:
            self._pairs(*pair)
        for _, start in self._best(STARTS):
            self._descend(start)
        return self._finals()

    def _base(self) -> float:
        self._bases.append(self._timer.layer_us({}))
        self._tell({"stage": "base", "layer_us": round(self._bases[-1], 3)})
        return self._bases[-1]

    def _alone(self, plan: Plan, name: str) -> dict[str, Any]:
        """What is found of the kernel ``name`` in ``plan``, ``right`` where those that it only goes with are so too."""
        kernels = named(plan, self._timer.chain)
        for each, kernel in kernels.items():
            if kernel not in self._held:
                self._tell({"stage": "begins", "kernels": {each: kernel}})
                self._held[kernel] = self._timer.held(plan, each)
        right = all(self._held[kernel]["right"] for kernel in kernels.values())
        self._tell({"stage": "begins", "kernels": {name: kernels[name]}})
        made = {**self._held[kernels[name]], "alone_us": round(self._timer.alone_us(plan, name), 3)}
        return {**made, "right": right and self._timer.chained(plan)}

    def _gain(self, plan: Plan, stage: str, **more: Any) -> float:
        """Microseconds of a layer that ``plan`` takes less than the base of its time; told once for each plan."""
        key = tuple(sorted((name, tile) for name, tile in plan.items()))
        if key not in self._seen:
            if len(self._seen) % BASE_EACH == BASE_EACH - 1:
                self._base()
            layer = self._timer.layer_us(plan)
            gain = statistics.median(self._bases[-3:]) - layer
            self._seen[key] = gain, plan
            kernels = named(plan, self._timer.chain)
            self._tell(
                {"stage": stage, "kernels": kernels, "layer_us": round(layer, 3), "gain_us": round(gain, 3), **more}
            )
        return self._seen[key][0]

    def _best(self, count: int) -> list[tuple[float, Plan]]:
        return sorted(self._seen.values(), key=lambda one: -one[0])[:count]

    def _singles(self) -> Plan:
        """Each candidate alone; what is right of them is kept. All that gain together."""
        gaining: Plan = {}
        for name, plans in self._choices.items():
            most = GAIN_US
            for plan in plans:
                if self._over():
                    return gaining
                try:
                    alone = self._alone(plan, name)
                except Exception as error:  # noqa: BLE001  a kernel that does not run is a line of the report
                    kernels = named(plan, self._timer.chain)
                    self._tell(
                        {"stage": "single", "kernels": kernels, "failed": f"{type(error).__name__}: {error}"[:300]}
                    )
                    continue
                if name == "head" or not alone["right"]:
                    self._tell({"stage": "single", "kernels": named(plan, self._timer.chain), **alone})
                if not alone["right"]:
                    continue
                self._right[name].append(plan)
                gain = 0.0 if name == "head" else self._gain(plan, "single", **alone)
                if gain > most and fits_together(gaining | plan, self._timer.chain):
                    most, gaining = gain, gaining | plan
        return gaining

    def _pairs(self, one: str, other: str) -> None:
        for first in self._right[one]:
            for second in self._right[other]:
                plan = first | second
                if self._over():
                    return
                if fits_together(plan, self._timer.chain):
                    self._gain(plan, f"pair {one} {other}")

    def _changes(self, plan: Plan, name: str) -> Iterator[Plan]:
        """``plan`` with the kernel ``name`` changed, back to the base's too, and what no longer goes with it."""
        for changed in [{}, *self._right[name]]:
            rest = {each: tile for each, tile in plan.items() if each != name}
            for dropped in ([], ["qkv", "attention"]):
                made = {each: tile for each, tile in rest.items() if each not in dropped} | changed
                if fits_together(made, self._timer.chain):
                    if made != plan:
                        yield made
                    break

    def _descend(self, plan: Plan) -> None:
        best, better = self._gain(plan, "start") if plan else 0.0, True
        while better:
            better = False
            for name in LAYER:  # the fastest change of each kernel in turn
                made = []
                for other in self._changes(plan, name):
                    if self._over():
                        return
                    made.append((self._gain(other, "descent"), other) if other else (0.0, other))
                gain, other = max(made, key=lambda one: one[0], default=(best, plan))
                if gain > best + GAIN_US:
                    best, plan, better = gain, other, True

    def _finals(self) -> list[dict[str, Any]]:
        """Whatever the time: the plans that are asked for are few."""
        plans = [plan for gain, plan in self._best(FINALS) if gain > 0]
        heads: list[Plan] = [{}, *self._right["head"]]
        layers: list[list[float]] = [[] for _ in [{}, *plans]]
        for _ in range(TURNS):
            for taken, plan in zip(layers, [{}, *plans]):
                taken.append(self._timer.layer_us(plan))
        made = []
        for taken, plan in zip(layers, [{}, *plans]):
            steps = [(named(head, self._timer.chain), self._timer.step_us(plan | head)) for head in heads]
            row = {
                "stage": "final",
                "kernels": named(plan, self._timer.chain),
                "layer_us": round(statistics.median(taken), 3),
                "layers_us": [round(each, 3) for each in taken],
                "step_us": [[head.get("head", "base"), round(us, 2)] for head, us in steps],
                "chained": self._timer.chained(plan),
            }
            self._tell(row)
            made.append(row)
        return sorted(made, key=lambda row: row["layer_us"])


def main() -> None:
    """Searches, prints and writes."""
    began, until = time.perf_counter(), float(sys.argv[3])
    with Path(sys.argv[2]).open("a", encoding="utf-8") as out:

        def tell(row: dict[str, Any]) -> None:
            out.write(json.dumps({"at_s": round(time.perf_counter() - began, 1), **row}) + "\n")
            out.flush()
            if row["stage"] == "single":
                print(json.dumps(row)[:300], flush=True)

        timer = GpuTimer(Bench(Path(sys.argv[1]), MODEL))
        print(f"ready after {time.perf_counter() - began:.0f} s", flush=True)
        found = Search(timer, tell, lambda: time.perf_counter() - began > until, sys.argv[4:]).run()
    for row in found:
        print(
            f"{row['layer_us']:.2f} us, step {row['step_us']}, bits {row['chained']}: {row['kernels'] or 'base'}",
            flush=True,
        )
    print(f"over after {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        main()
