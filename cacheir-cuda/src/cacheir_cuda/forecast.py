"""What the CUDA executor will own of the device, from the program alone: no weight is read and no device opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

import torch

from cacheir.errors import UsageError
from cacheir.ir.dtypes import dtype_bytes
from cacheir.ir.types import KVType, TensorType
from cacheir.plugins import KernelSpec
from cacheir.plugins.installation import default
from cacheir.runtime.executor import ExecutorOptions, MemoryForecast, MemoryUse
from cacheir.schedule.flatten import Launch, flatten
from cacheir.schedule.joined_operands import Weights, wanted_weights
from cacheir.schedule.program import Program
from cacheir_cuda.block_seat import BlockSeat
from cacheir_cuda.chain.launches import layout_of
from cacheir_cuda.chain.plan_step import GREEDY
from cacheir_cuda.chain.recognise import recognise
from cacheir_cuda.chain.seat import why_no_chain
from cacheir_cuda.options import CudaOptions, read_options
from cacheir_cuda.pool import DTYPES
from cacheir_cuda.residents import resident_key


def forecast(program: Program, options: ExecutorOptions, pages: Sequence[int]) -> MemoryForecast:
    """As ``BackendSpec.memory`` promises, of the device's memory; what a CUDA context takes is not in it.

    ``step`` is what the largest step's launches make in fresh tensors. The decode chain's packed copies count where
    the program has one and the options allow it, whether or not its kernels are built. UsageError for a KV format that
    the backend has not.
    """
    if options.kv_dtype and options.kv_dtype not in DTYPES:
        raise UsageError(f"the CUDA backend keeps KV as {', '.join(DTYPES)}, not {options.kv_dtype!r}")
    own = read_options(options.extra)
    kernels = (options.installation or default()).kernels.by_name()
    launches = {
        (mode, graph.name): flatten(program, mode, graph.name)
        for mode, module in program.modules.items()
        for graph in (module.main, *module.heads)
    }
    wanted = {resident_key(*weights) for weights in _wanted(program, launches, kernels, own, options) if weights[0]}
    sizes = {weights: _bytes(program, *weights, own) for weights in wanted}
    use = MemoryUse(
        weights=sum(sizes.values()),
        kv=sum(_pool_bytes(kind, count, options) for kind, count in zip(program.groups, pages)),
        arena=max(plan.arena_bytes for plan in program.plans.values()),
    )
    return MemoryForecast(
        use=use,
        # A matrix is moved as it is stored, cast, and joined to its neighbours.
        loading=2 * max(sizes.values(), default=0),
        step=max((_largest(program, mode, graph, each) for (mode, graph), each in launches.items()), default=0),
    )


def _wanted(
    program: Program,
    launches: Mapping[tuple[str, str], Sequence[Launch]],
    kernels: Mapping[str, KernelSpec],
    own: CudaOptions,
    options: ExecutorOptions,
) -> Iterator[Weights]:
    """The resident weights of launches, of blocks and of the decode chain."""
    mains = {mode: launches[mode, module.main.name] for mode, module in program.modules.items()}
    for (mode, graph), each in launches.items():
        main = graph == program.modules[mode].main.name
        for rows in (1, _most_rows(program, mode) if main else program.max_rows):
            yield from wanted_weights(each, rows, kernels)
    device = torch.device(own.device)
    yield from BlockSeat(mains, kernels, device, own, options).wanted_weights()
    if not options.batch_invariant and not why_no_chain(program, device, own):
        chain = recognise(program, mains["decode"], launches["decode", GREEDY])
        tile = chain.products
        for layer in chain.layers:
            yield layout_of(tile["qkv"]), layer.qkv
            yield layout_of(tile["output"]), (layer.output,)
            yield layout_of(tile["gate_up"]), layer.gate_up
            yield layout_of(tile["down"]), (layer.down,)


def _most_rows(program: Program, mode: str) -> int:
    return program.max_rows if mode == "decode" else program.max_tokens


def _bytes(program: Program, layout: str, recipes: tuple[str, ...], own: CudaOptions) -> int:
    size = 4 if layout == "f32" or own.cuda_dtype == "float32" else 2
    return sum(size * program.weights[recipe].elements for recipe in recipes)


def _pool_bytes(kind: KVType, pages: int, options: ExecutorOptions) -> int:
    """Every page, and that of nobody."""
    stored = replace(kind, dtype=options.kv_dtype or kind.dtype)
    return stored.layers * (pages + 1) * options.page_tokens * stored.token_bytes


def _largest(program: Program, mode: str, graph: str, launches: Sequence[Launch]) -> int:
    """The bytes of the results of the launch that has the most, in the largest step."""
    module = program.modules[mode]
    main = graph == module.main.name
    sizes = {name: upper for name, _, upper in (module.main if main else module.graph(graph)).dims}
    if "R" in sizes:
        sizes["R"] = min(sizes["R"], program.max_rows)
    return max(
        (
            sum(
                prod(place.type.sizes({name: size.evaluate(sizes) for name, size in launch.sizes.items()}))
                * dtype_bytes(place.type.dtype)
                for place in launch.writes
                if isinstance(place.type, TensorType)
            )
            for launch in launches
        ),
        default=0,
    )
