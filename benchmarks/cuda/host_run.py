"""What the host does for an answer beside a GPU that is stood for: python host_run.py [OUT.json]

Needs no GPU. Engine, sessions and ``CudaExecutor`` are the real ones; stand-ins are the weights (none), a prompt's
step (gives token 5 at once) and the GPU, which takes the time that a step took on an H200 and works off its queue.
Counted: calls of Python functions and of built-in ones, among them torch's, by ``sys.setprofile``. Timed: how long the
GPU stands still between its first and last step; an H200's host is faster than most machines that run this.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from cacheir.artifact.card import CompileOptions
from cacheir.bench.environment import environment
from cacheir.ir.types import TensorType
from cacheir.models.decoder_spec import DecoderSpec, LayerSpec, RopeSpec
from cacheir.models.weight_shapes import weight_shapes
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Job
from cacheir.runtime.executor import ExecutorOptions, RowOutput, Step, StepOutput
from cacheir.runtime.open_model import OpenModel, open_model
from cacheir.runtime.request import admit
from cacheir.runtime.sampling import SamplingParams
from cacheir.runtime.sequence import Sequence as TokenSequence
from cacheir.runtime.session import Session
from cacheir.testing import tiny_programs
from cacheir.testing.fake_model import ByteTokenizer
from cacheir.testing.hosts import plugin_host
from cacheir.testing.tiny_decoders import TinyDecoder
from cacheir_cuda import executor
from cacheir_cuda.chain import launches, rows_run, seat
from cacheir_cuda.chain import run as row_run
from cacheir_cuda.chain.rows_tiles import ADVANCE

LAYERS, PROMPT, OUTPUT, ROUNDS = 28, 128, 128, 7
STEP_MS = {1: 0.43, 8: 0.495, 32: 1.05}  # of Qwen3-0.6B on an H200 (notes.md)


class Device:
    """A GPU that takes ``step_s`` seconds a step, one graph after another, and gives each row token 5."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.rings: dict[int, np.ndarray] = {}  # by address
        self.forget()

    def forget(self) -> None:
        """No time has passed."""
        self._free_at = self.idle_s = self.busy_s = 0.0
        self.begin()

    def begin(self) -> None:
        """The tokens of what is launched from now on go to the beginning of its ring."""
        self._queued: list[tuple[float, np.ndarray]] = []
        self._told = 0

    def replay(self, graph: tuple[int, int], stream: Any = None) -> None:
        """Queue a graph: the number of its steps and its ring's address."""
        now = time.perf_counter()
        if self._free_at:
            self.idle_s += max(0.0, now - self._free_at)
        start, ring, first = max(now, self._free_at), self.rings[graph[1]], len(self._queued)
        self._queued += [(start + self.step_s * (number + 1), ring[first + number]) for number in range(graph[0])]
        self._free_at = self._queued[-1][0]
        self.busy_s += self.step_s * graph[0]

    def query(self) -> bool:
        """Whether it is through; the tokens of steps that have ended are there after this."""
        now = time.perf_counter()
        while self._told < len(self._queued) and self._queued[self._told][0] <= now:
            self._queued[self._told][1][...] = 5
            self._told += 1
        return self._told == len(self._queued)


class Kernels:
    """``KernelModule`` and ``Driver`` whose graphs are numbers of steps."""

    def __init__(self, device: Device) -> None:
        self.driver, self._device, self._captured = self, device, list[Any]()
        self.replay = device.replay

    def record(self, launches: Any) -> tuple[int, int]:
        advances = [one.arguments.ring for one in launches if one.kernel == ADVANCE]
        return len(advances), advances[0]

    def launch(self, *given: Any, **_: Any) -> None:
        """A kernel of a graph that is captured, or the one that begins a run."""
        if self._captured:
            self._captured.append(given[-1])
        else:
            self._device.begin()

    def begin_capture(self, stream: Any) -> None:
        self._captured = [None]

    def end_capture(self, stream: Any) -> tuple[int, int]:
        rings = [one.ring for one in self._captured if hasattr(one, "ring")]
        self._captured = []
        return len(rings), rings[0]

    def load(self, image: bytes) -> int:
        return 0

    def function(self, *_: Any) -> int:
        return 0

    def destroy(self, graphs: Any) -> None: ...

    def close(self) -> None: ...


class NoWeights:
    """Residents without a tensor."""

    nbytes = 0

    def __init__(self, *_: Any) -> None: ...

    def get(self, layout: str, recipes: Any) -> Any:
        return torch.zeros(1)

    def make_all(self, wanted: Any) -> None: ...

    def clear(self) -> None: ...


def stand_ins(device: Device) -> ExitStack:
    """What is not there is stood for until the stack is left."""

    class Over:
        def record(self, stream: Any = None) -> None: ...

        def query(self) -> bool:
            return device.query()

        def synchronize(self) -> None:
            while not device.query():
                time.sleep(0)

    def remembered(ring: torch.Tensor) -> None:
        device.rings[ring.data_ptr()] = ring.numpy().reshape(len(ring), -1)

    class Buffers(launches.ChainBuffers):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            remembered(self.ring)

    class Recorded(rows_run._Recorded):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            remembered(self.tokens)

    stack, stream = ExitStack(), SimpleNamespace(cuda_stream=0)
    for owner, name, made in (
        (torch.Tensor, "pin_memory", lambda tensor: tensor), (torch.cuda, "Event", Over),
        (torch.cuda, "current_stream", lambda _=None: stream), (torch.cuda, "Stream", lambda _=None: stream),
        (torch.cuda, "get_device_capability", lambda _=None: (9, 0)), (row_run, "load_cubin", lambda *_: b""),
        (row_run, "Driver", lambda: Kernels(device)), (rows_run, "KernelModule", lambda *_: Kernels(device)),
        (row_run, "ChainBuffers", Buffers), (rows_run, "_Recorded", Recorded),
        (seat, "why_no_chain", lambda *_: ""), (executor, "Residents", NoWeights),
    ):  # fmt: skip
        stack.enter_context(patch.object(owner, name, made))
    stack.enter_context(patch.dict(os.environ, {"CACHEIR_CUDA_DEVICE": "cpu"}))
    return stack


def opened(rows: int) -> OpenModel:
    """Qwen3-0.6B's layers without weights, for ``rows`` rows; a prompt's step gives token 5 at once."""
    rope = RopeSpec(theta=1e6, dims=128)
    layer = LayerSpec(heads=16, kv_heads=8, head_dim=128, feed_forward=3072, rope=rope, qk_norm=True)
    spec = DecoderSpec(
        family="llama", label="shape", vocab_size=1024, hidden=1024, max_positions=512, norm_eps=1e-6,
        layers=(layer,) * LAYERS, tied_head=True,
    )  # fmt: skip
    types = {
        key: TensorType.of("bf16", *shape) for key, shape in weight_shapes(spec).items() if key in spec.weight_keys()
    }
    sizes = {"max_seq": 512, "max_rows": max(rows, 2), "max_tokens": 4096}
    with (
        patch.object(tiny_programs, "tiny_decoders", lambda: {"shape": TinyDecoder(spec=spec, weights=types)}),
        patch.object(tiny_programs, "LIMITS", replace(tiny_programs.LIMITS, **sizes)),
    ):
        options = CompileOptions(target="cuda", **sizes)
        tiny = tiny_programs.TinyProgram("shape", plugin_host("cacheir_cuda.plugin"), options)
    made = executor.CudaExecutor(ExecutorOptions(threads=1, installation=tiny.installation, kv_dtype="bf16"))
    made.load(tiny.program, tiny.weights)
    decode = made.submit

    def submit(step: Step) -> Any:
        if step.mode == "decode":
            return decode(step)
        tokens = [None if row.want == "nothing" else 5 for row in step.rows]
        return StepOutput(rows=tuple(RowOutput(slot=row.slot, token=token) for row, token in zip(step.rows, tokens)))

    made.submit = submit  # type: ignore[method-assign]
    return open_model(tiny.program, made, ByteTokenizer(), kv_tokens=16384, chunk_tokens=4096)


def batch(model: OpenModel, rows: int, output: int = OUTPUT) -> None:
    """``rows`` answers through an engine."""
    engine = Engine(model)
    params = SamplingParams(max_tokens=output, ignore_eos=True, temperature=0.0)
    jobs = [
        Job(id=str(n), ids=(n + 3, *range(5, 4 + PROMPT)), sampling=admit(PROMPT, params, model.limits), reuse=False)
        for n in range(rows)
    ]
    events = engine.generate(jobs)
    assert all(one[-1].usage is not None and one[-1].usage.sampled_tokens == output for one in events)
    engine.close()


def answer(model: OpenModel, rows: int = 1, output: int = OUTPUT + 1) -> None:
    """One answer of a session."""
    with Session(model, TokenSequence(tables=model.runner.kv.empty())) as session:
        session.append(range(5, 5 + PROMPT))
        params = SamplingParams(max_tokens=output, ignore_eos=True, temperature=0.0)
        assert sum(len(piece.ids) for piece in session.generate(params)) == output


def counted(run: Callable[[], None]) -> dict[str, int]:
    """Calls of Python functions and of built-in ones while ``run`` runs, but for those that wait for the device."""
    found: Counter[str] = Counter()
    own = Path(__file__).name

    def note(frame: Any, event: str, argument: Any) -> None:
        if Path(frame.f_code.co_filename).name == own:
            return
        if event == "call":
            found["python"] += 1
        elif event == "c_call":
            name = getattr(argument, "__name__", "")
            if name in ("sleep", "any"):
                return
            found["built in"] += 1
            found["torch"] += (
                "torch" in f"{getattr(argument, '__module__', '')}{type(getattr(argument, '__self__', 0))}"
            )

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return dict(found)


def measure(rows: int) -> dict[str, Any]:
    """Counts of one answer (or batch of them), and microseconds a step that the device stood still."""
    device = Device(0.0)
    with stand_ins(device):
        model = opened(rows)
        run = batch if rows > 1 else answer
        for count in (2, 4, 8, 16, 32, 64, 128, 128, 128):  # until every graph is recorded
            run(model, rows, output=count + 1)
        calls: list[int] = []
        ahead = model.executor.run_ahead

        def noted(step: Step, n: int, sink: Any) -> int:
            done = ahead(step, n, sink)
            calls.append(done)
            return done

        model.executor.run_ahead = noted  # type: ignore[method-assign]
        counts = counted(lambda: run(model, rows))
        device.step_s, idle, cpu, ahead_of = 1e-3 * STEP_MS[rows], [], [], []
        run(model, rows)
        for _ in range(ROUNDS):
            device.forget()
            calls.clear()
            began = time.process_time()
            run(model, rows)
            cpu.append(1e3 * (time.process_time() - began))
            idle.append(1e6 * device.idle_s / OUTPUT)
            ahead_of.append(list(calls))
    return {
        "calls_of_an_answer": counts, "idle_us_a_step": statistics.median(idle), "samples_us": idle,
        "steps_of_run_ahead": ahead_of[-1], "cpu_ms": statistics.median(cpu),
    }  # fmt: skip


def main() -> None:
    """Measures, prints and writes."""
    made = {str(rows): measure(rows) for rows in STEP_MS}
    for rows, found in made.items():
        counts = ", ".join(f"{kind} {count}" for kind, count in found["calls_of_an_answer"].items())
        print(f"{rows:>3} rows: {counts}; idle {found['idle_us_a_step']:.1f} us a step; {found['steps_of_run_ahead']}")
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps({"rows": made, "environment": environment()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
