"""``cacheir plan``: what a model will take, whether it fits, and which options make it fit; nothing is loaded."""

from __future__ import annotations

from typing import Any

import typer

from cacheir import settings
from cacheir.artifact import layout
from cacheir.artifact.card import CompileOptions
from cacheir.artifact.read import read_card
from cacheir.bench.environment import memory as machine_memory
from cacheir.bench.environment import resident_memory_bytes
from cacheir.bench.memory_fit import Demand, MemoryPlan, MemoryPlanner
from cacheir.cli import model_options
from cacheir.cli.output import memory_text, print_json, say, table
from cacheir.cli.sizes import parse_size
from cacheir.errors import UsageError
from cacheir.models.find_model import find_path
from cacheir.plugins.installation import default
from cacheir.plugins.ref import resolve
from cacheir.runtime.backend_choice import choose_backend
from cacheir.runtime.usable_cores import usable_cores

app = typer.Typer(help="Say what a model will take, before it is loaded.", add_completion=False, rich_markup_mode=None)

_PARTS = ("WEIGHTS", "KV", "ARENA", "WORKSPACE", "TOTAL")


@app.command()
def plan(
    model: str = model_options.MODEL,
    memory: str = typer.Option("", help="What there is: 2GiB, 1.5GB, 800MB; without it, what this machine has free."),
    context: int = typer.Option(0, min=0, help="Positions of each sequence; 0: the model's own limit, at most 8192."),
    concurrency: int = typer.Option(0, min=0, max=65536, help="Sequences at once; 0: 8, or an artifact's own limit."),
    max_tokens: int = typer.Option(0, min=0, help="Tokens of a step; 0: 512, or an artifact's own limit."),
    backend: str = model_options.BACKEND,
    threads: int = model_options.THREADS,
    kv_window: int = model_options.KV_WINDOW,
    kv_sinks: int = model_options.KV_SINKS,
    kv_dtype: str = typer.Option("", help="The storage format of keys and values; the program's without it."),
    quant: str = typer.Option("", help="Quantise the weights: the name of a quantiser."),
    page_tokens: int = typer.Option(16, min=1, help="Tokens of a page."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Say what a model will take: weights, keys and values, buffers; whether it fits, and what would make it fit."""
    path = find_path(model, default())
    card = read_card(path) if layout.is_artifact(path) else None
    choice = choose_backend(default(), backend, demanded=card.backend if card else "", to_run=False)
    if choice.refusal and not memory:
        raise UsageError(
            f"the backend {choice.name} cannot work here ({choice.refusal}), so what is free here says nothing of it",
            hint="give --memory: what the other machine has",
        )
    if choice.refusal:
        say(f"the backend {choice.name} cannot work here ({choice.refusal}): this is a plan for another machine")
    spec = default().backends[choice.name]
    available = parse_size(memory, "--memory") if memory else _free()
    resolve(spec.executor)  # its imports are part of what the process takes before it opens anything
    planner = MemoryPlanner(
        model=model,
        backend=spec,
        installation=default(),
        options=CompileOptions(kv_window=kv_window, kv_sinks=kv_sinks),
        threads=threads or settings.count("CACHEIR_THREADS") or usable_cores(),
        imports=resident_memory_bytes() or 0,
    )
    demand = Demand(
        context=context or (card.max_seq if card else planner.longest_context()),
        concurrency=concurrency or (card.max_rows if card else CompileOptions.max_rows),
        max_tokens=max_tokens or (card.max_tokens if card else CompileOptions.max_tokens),
        kv_dtype=kv_dtype,
        quant=quant,
        page_tokens=page_tokens,
    )
    found = planner.plan(demand)
    fits = found.total <= available
    ways = [] if fits else planner.ways_to_fit(demand, available)
    if as_json:
        print_json(
            {"format": 1, "backend": choice.name, **_json(found), "memory": available, "fits": fits}
            | {"ways_to_fit": [{"flags": demand.flags(way.demand), **_json(way)} for way in ways]}
        )
        return
    print(_text(found, model, choice.name))
    print()
    print(_verdict(found, available, ways))


def _free() -> int:
    """What this machine can give: the control group's limit, or what is free."""
    found = machine_memory()
    sizes = [size for size in (found["limit_bytes"], found["available_bytes"]) if size is not None]
    if not sizes:
        raise UsageError("this system does not say how much memory is free", hint="give --memory")
    return int(min(sizes))


def _text(plan: MemoryPlan, model: str, backend: str) -> str:
    demand, forecast = plan.demand, plan.forecast
    rows = [(mode, *_sizes(use)) for mode, use in plan.modes.items()]
    rows.append(("together", *_sizes(forecast.use)))
    kv = f", keys and values as {demand.kv_dtype}" if demand.kv_dtype else ""
    more = [
        ("imports", plan.imports, "Python and its libraries, before anything is opened"),
        ("host", plan.host + forecast.host, "program, tokenizer, the executor's own objects"),
        ("while loading", forecast.loading, "the model's files, beside the weights; gone before pages are written"),
        ("in a step", forecast.step, "arrays under no plan"),
        ("never touched", -forecast.untouched, "buffers for more rows with a head than such steps have"),
    ]
    return "\n\n".join(
        (
            f"{model} on {backend}: {demand.concurrency} sequences of {demand.context} positions, steps of "
            f"{demand.max_tokens} tokens{kv}",
            table(("MODE", *_PARTS), rows, right=_PARTS),
            table(
                ("BESIDE", "SIZE", "WHAT"),
                [(name, _signed(size), what) for name, size, what in more if size],
                right=("SIZE",),
            ),
            f"most at once: {memory_text(plan.total)}, {memory_text(plan.resident)} of it beyond the imports",
        )
    )


def _verdict(plan: MemoryPlan, available: int, ways: list[MemoryPlan]) -> str:
    spare = available - plan.total
    if spare >= 0:
        return f"fits into {memory_text(available)}: {memory_text(spare)} to spare"
    lines = [f"does not fit into {memory_text(available)}: {memory_text(-spare)} too much"]
    if ways:
        lines.append("what would fit:")
        lines += [f"  {plan.demand.flags(way.demand)}  ({memory_text(way.total)})" for way in ways]
    else:
        lines.append(f"no setting makes it fit: its weights alone take {memory_text(plan.forecast.use.weights)}")
    return "\n".join(lines)


def _sizes(use: Any) -> tuple[str, ...]:
    return tuple(memory_text(size) for size in (use.weights, use.kv, use.arena, use.workspace, use.total))


def _signed(size: int) -> str:
    return f"-{memory_text(-size)}" if size < 0 else memory_text(size)


def _json(plan: MemoryPlan) -> dict[str, Any]:
    forecast = plan.forecast
    return {
        "demand": vars(plan.demand),
        "owned": {**vars(forecast.use), "total": forecast.use.total},
        "modes": {mode: {**vars(use), "total": use.total} for mode, use in plan.modes.items()},
        "loading": forecast.loading,
        "step": forecast.step,
        "host": plan.host + forecast.host,
        "untouched": forecast.untouched,
        "imports": plan.imports,
        "resident_peak": plan.resident,
        "total": plan.total,
    }
