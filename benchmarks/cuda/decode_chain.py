"""The decode chain on a GPU: parity, repeats, times. python decode_chain.py OUT.json MODEL [PART...].

PART is any of parity, repeats, wall, host, device (all by default).
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from eager_reference import EagerDecoder
from random_models import SHAPES, write_model
from trace_chain import trace

from cacheir import Runtime
from cacheir.runtime.executor import Row, RowOutput, Step
from cacheir.runtime.sampling import SamplingParams
from cacheir.schedule.flatten import flatten
from cacheir_cuda.chain.cubins import FOLDER
from cacheir_cuda.chain.launches import STATE_WORDS
from cacheir_cuda.chain.recognise import Chain, recognise
from cacheir_cuda.chain.run import DecodeChain
from cacheir_cuda.row_stops import NEVER

PAGE_TOKENS, MAX_SEQ = 16, 2304
CONTEXTS = (16, 512, 2048)
SPREAD = 2.0  # of the head's rows, so that few positions are too close to call
TRACED = FOLDER / "trace" / "decode_chain.cubin"  # nvcc -DTRACE, beside the package's own


class Sequence:
    """One sequence on the executor of ``runtime``, its pages in no order."""

    def __init__(self, runtime: Runtime, length: int, seed: int) -> None:
        self.executor: Any = runtime._model.executor
        drawn = torch.Generator().manual_seed(seed)
        pages = torch.randperm(MAX_SEQ // PAGE_TOKENS, generator=drawn)
        self.pages = (tuple(pages.tolist()),)
        self.prompt = tuple(torch.randint(3, 120000, (length,), generator=drawn).tolist())
        self.length = length
        for start in range(0, length, 512):
            part = self.prompt[start : start + 512]
            made = self.executor.wait(self.executor.submit(Step(mode="prefill", rows=(self._row(part, start),))))
        self.first = made.rows[0].token

    def ahead(self, token: int, position: int, n: int) -> list[int]:
        """The ``n`` tokens after ``token`` at ``position``."""
        found: list[int] = []

        def sink(outputs: Any) -> None:
            output: RowOutput = outputs[0]
            assert output.error is None, output.error
            found.append(int(output.token or 0))

        self.executor.run_ahead(Step(mode="decode", rows=(self._row((token,), position),)), n, sink)
        return found

    def keys_and_values(self, layers: int) -> tuple[torch.Tensor, torch.Tensor]:
        """bf16 [layers, kv heads, positions, head] each, by position."""
        pages = self.executor._pools[0].storage[:layers, list(self.pages[0])]
        both = pages.permute(2, 0, 3, 1, 4, 5)
        return tuple(part.reshape(*part.shape[:2], -1, part.shape[-1]).contiguous() for part in both)  # type: ignore[return-value]

    def _row(self, tokens: tuple[int, ...], position: int) -> Row:
        greedy = SamplingParams(max_tokens=4096, ignore_eos=True)
        return Row(slot=0, tokens=tokens, position=position, pages=self.pages, sampling=greedy)


def parity(runtime: Runtime, tensors: dict[str, torch.Tensor], name: str) -> list[dict[str, Any]]:
    """Forced by random tokens: the largest logit of each block of the head, and the token; then the free answer.

    Random ones, since a head with rows of many lengths soon repeats a token where it also embeds it. Errors and margins
    are parts of the largest logit of their step; a step is left out where its margin is within four times the largest
    error of any.
    """
    shape = SHAPES[name][1]
    chain: DecodeChain = runtime._model.executor._chain._chain
    rows = []
    for context, steps in ((16, 48), (500, 48), (2040, 48)):
        sequence = Sequence(runtime, context, context)
        eager = EagerDecoder(tensors, shape, chain._chain.eps, *sequence.keys_and_values(shape.layers))
        errors, margins = [], []
        drawn = torch.randint(3, 120000, (steps,), generator=torch.Generator().manual_seed(context)).tolist()
        for step, token in enumerate(drawn):
            logits = eager.step(token, context + step)
            (found,) = sequence.ahead(token, context + step, 1)
            ids, best = chain._buffers.best_id.long(), chain._buffers.best
            largest, top = float(logits.abs().max()), logits.topk(2).values
            errors.append(float((logits[ids] - best).abs().max()) / largest)
            margins.append((float(top[0] - top[1]) / largest, found == int(logits.argmax())))
        worst, equal = max(errors), sum(same for _, same in margins)
        clear_wrong = sum(not same and margin > 4 * worst for margin, same in margins)
        left_out = sum(margin <= 4 * worst for margin, _ in margins)
        expected = [sequence.first]
        for step in range(steps):
            expected.append(int(eager.step(expected[-1], context + step).argmax()))
        free = sequence.ahead(sequence.first, context, steps)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(free, expected[1:])))
        rows.append({
            "context": context, "steps": steps, "relative_error": worst, "tokens_equal": equal,
            "wrong_clear_positions": clear_wrong, "share_left_out": left_out / steps, "free_equal_first": same,
        })  # fmt: skip
        print(name, "parity", json.dumps(rows[-1]), flush=True)
        del eager
        torch.cuda.empty_cache()
    return rows


def repeats(runtime: Runtime, times: int = 50) -> dict[str, Any]:
    """The same 32 steps over and over: tokens, candidates of the head and pages must not differ in a bit."""
    chain: DecodeChain = runtime._model.executor._chain._chain
    made = {}
    for context in (16, 512):
        sequence = Sequence(runtime, context, 99)
        seen, differing = None, 0
        for _ in range(times):
            tokens = sequence.ahead(sequence.first, context, 32)
            torch.cuda.synchronize()
            state = (tokens, chain._buffers.best.clone(), runtime._model.executor._pools[0].storage.clone())
            if seen is None:
                seen = state
            bits = [[part.view(torch.int16) for part in one[1:]] for one in (state, seen)]
            same = state[0] == seen[0] and all(torch.equal(a, b) for a, b in zip(*bits))
            differing += not same
        made[str(context)] = {"times": times, "differing": differing}
    return made


def wall(runtime: Runtime, samples: int = 20) -> dict[str, Any]:
    """TTFT and TPOT in milliseconds through ``Runtime``: wall clock, ids visible to the host, 129 tokens."""
    made: dict[str, Any] = {}
    executor: Any = runtime._model.executor
    taken, calls = executor.run_ahead, []

    def timed_run(step: Step, n: int, sink: Any) -> int:
        began = time.perf_counter()
        done: int = taken(step, n, sink)
        calls.append((n, began, time.perf_counter()))
        return done

    executor.run_ahead = timed_run
    for length in CONTEXTS:
        first, each = [], []
        for sample in range(samples + 2):
            prompt = [3 + (i * 7919 + sample * 104729 + length) % 120000 for i in range(length)]
            stamps = [time.perf_counter()]
            for _ in runtime.generate_ids(prompt, 129, ignore_eos=True, temperature=0.0):
                stamps.append(time.perf_counter())
            first.append(1e3 * (stamps[1] - stamps[0]))
            each.append(1e3 * (stamps[-1] - stamps[1]) / 128)
        made[str(length)] = {
            "ttft_ms": statistics.median(first[2:]), "tpot_ms": statistics.median(each[2:]),
            "ttft_samples": first, "tpot_samples": each,
        }  # fmt: skip
        last = calls[-6:]
        made[f"runs {length}"] = [
            (n, round(1e6 * (end - begin)), round(1e6 * (begin - before[2])))
            for before, (n, begin, end) in itertools.pairwise(last)
        ]
        print("wall runs: n, us, us before it", made[f"runs {length}"], flush=True)
        print(
            "wall",
            length,
            f"ttft {made[str(length)]['ttft_ms']:.3f} tpot {made[str(length)]['tpot_ms']:.4f}",
            flush=True,
        )
    made["counters"] = dict(runtime.counters())
    return made


def device(runtime: Runtime) -> dict[str, Any]:
    """Milliseconds of the device for one token, graphs of 16 steps, with the choices of tiles.py."""
    chain = _chain(runtime)
    row: dict[str, Any] = {"kernels": list(chain._chain.kernels)}
    for context in CONTEXTS:
        row[str(context)] = _replayed(chain, context, lambda kernel: True)
        row[f"without attention {context}"] = _replayed(chain, context, lambda kernel: "attention" not in kernel)
    if TRACED.exists():
        row["traces"] = {str(at): trace(chain, TRACED, at) for at in CONTEXTS}
    chain.close()
    return row


def host(runtime: Runtime) -> dict[str, Any]:
    """Where the wall clock goes beside the device: microseconds of a graph's launch and of a run of 32 steps."""
    chain: DecodeChain = runtime._model.executor._chain._chain
    sequence = Sequence(runtime, 512, 3)
    sequence.ahead(sequence.first, 512, 32)
    made: dict[str, Any] = {}
    stream = torch.cuda.current_stream()
    for steps, count in itertools.product((16, 8, 1), (1, 4)):
        graph = chain.graph(steps)
        walls, hosts = [], []
        for _ in range(8):
            chain._buffers.state[:STATE_WORDS] = torch.tensor([512, 0, 0, 0, *NEVER], dtype=torch.int32)
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(count):
                chain._driver.replay(graph, stream.cuda_stream)
            hosts.append(1e6 * (time.perf_counter() - began))
            torch.cuda.synchronize()
            walls.append(1e6 * (time.perf_counter() - began))
        made[f"{count} graphs of {steps}"] = {"wall": statistics.median(walls), "host": statistics.median(hosts)}
    runs = []
    for _ in range(8):
        torch.cuda.synchronize()
        began = time.perf_counter()
        sequence.ahead(sequence.first, 512, 32)
        runs.append(1e6 * (time.perf_counter() - began))
    made["a run of 32"] = statistics.median(runs)
    print("host", json.dumps(made), flush=True)
    return made


def _recognised(runtime: Runtime) -> Chain:
    program = runtime.artifact.program
    main, head = (flatten(program, "decode", graph) for graph in (program.modules["decode"].main.name, "head.greedy"))
    return recognise(program, main, head)


def _chain(runtime: Runtime) -> DecodeChain:
    """A second chain on the executor's weights and pages, with the choices as they stand now."""
    executor: Any = runtime._model.executor
    chain = DecodeChain(_recognised(runtime), executor._residents, executor._device)
    chain.open(executor._pools[0], MAX_SEQ)
    return chain


def _replayed(
    chain: DecodeChain, context: int, keep: Callable[[str], bool], steps: int = 16, samples: int = 15
) -> dict[str, Any]:
    driver, step = chain._driver, chain._step
    stream = torch.cuda.Stream()
    launches = [launch for number in range(steps) for launch in step.step(number, 0) if keep(launch.kernel)]
    for launch in launches:
        chain._function(launch)
    driver.begin_capture(stream.cuda_stream)
    for launch in launches:
        chain._launch(launch, stream.cuda_stream)
    graph = driver.end_capture(stream.cuda_stream)
    chain._buffers.state[:STATE_WORDS] = torch.tensor([context, 0, 0, 0, *NEVER], dtype=torch.int32)
    chain._buffers.state[STATE_WORDS:] = torch.randperm(len(chain._buffers.state) - STATE_WORDS, dtype=torch.int32)
    torch.cuda.synchronize()
    times = []
    for number in range(3 + samples):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(stream)
        driver.replay(graph, stream.cuda_stream)
        end.record(stream)
        end.synchronize()
        if number >= 3:
            times.append(begin.elapsed_time(end) / steps)
    driver.destroy([graph])
    return {
        "ms": statistics.median(times), "least": min(times), "most": max(times), "nodes": graph.nodes,
        "programmatic_edges": graph.programmatic_edges, "edges": graph.edges,
    }  # fmt: skip


def main() -> None:
    """Write every part as soon as it is there."""
    out, name, wanted = Path(sys.argv[1]), sys.argv[2], sys.argv[3:] or ["parity", "repeats", "wall", "host", "device"]
    made: dict[str, Any] = {
        "model": name, "torch": torch.__version__, "device": torch.cuda.get_device_name(0), "head_spread": SPREAD,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        began = time.perf_counter()
        tensors = write_model(Path(place) / name, name, spread=SPREAD)
        print(name, "written", round(time.perf_counter() - began, 1), "s", flush=True)
        with _opened(Path(place) / name) as runtime:
            made["open_s"] = time.perf_counter() - began
            print("open", round(made["open_s"], 1), dict(runtime.counters()), flush=True)
            parts: dict[str, Callable[[], Any]] = {
                "parity": lambda: parity(runtime, tensors, name), "repeats": lambda: repeats(runtime),
                "wall": lambda: wall(runtime), "host": lambda: host(runtime), "device": lambda: device(runtime),
            }  # fmt: skip
            for part in wanted:
                try:
                    made[part] = parts[part]()
                except Exception as error:  # noqa: BLE001  a part that failed is a part of the report
                    made[part] = {"failed": f"{type(error).__name__}: {error}"[:1500]}
                    print(part, made[part], flush=True)
                made["measured"] = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
                out.write_text(json.dumps(made, indent=1) + "\n")
                print(name, part, json.dumps(made[part])[:1500], flush=True)


def _opened(model: Path) -> Runtime:
    return Runtime(model, backend="cuda", max_seq=MAX_SEQ, chunk_tokens=2048, kv_dtype="bf16")


if __name__ == "__main__":
    main()
