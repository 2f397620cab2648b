"""A kernel that ``--kernel`` named is what runs: what stands for several ops stands back."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the backend runs on its tensors")

from cacheir.artifact.card import CompileOptions  # noqa: E402
from cacheir.runtime.executor import ExecutorOptions  # noqa: E402
from cacheir.schedule.flatten import flatten  # noqa: E402
from cacheir.testing.hosts import plugin_host  # noqa: E402
from cacheir.testing.tiny_programs import TinyProgram  # noqa: E402
from cacheir_cuda.block_seat import BlockSeat  # noqa: E402
from cacheir_cuda.chain.plan_step import NOTE, plan_decode_chain  # noqa: E402
from cacheir_cuda.forced import forced_here, forced_ops  # noqa: E402
from cacheir_cuda.options import read_options  # noqa: E402


@pytest.mark.parametrize(
    ("kernels", "ops", "modes"),
    [
        ({}, [], {"prefill", "decode"}),
        ({"linear": "cuda.torch.linear"}, ["linear"], set()),
        ({"paged_attention_decode": "cuda.torch.paged_attention_decode"}, ["paged_attention_decode"], {"prefill"}),
        ({"head_argmax": "cuda.torch.head_argmax"}, [], {"prefill", "decode"}),
    ],
)
def test_blocks_and_chain_stand_back(
    kernels: dict[str, str], ops: list[str], modes: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cpu")
    monkeypatch.setattr("cacheir_cuda.block_seat.why_not_here", lambda: None)
    installation = plugin_host("cacheir_cuda.plugin")
    options = CompileOptions(target="cuda", kernels=kernels)
    program = TinyProgram("interleaved-biased", installation, options).program
    mains = {mode: flatten(program, mode, module.main.name) for mode, module in program.modules.items()}
    assert forced_ops(mains["decode"]) == ops
    chosen = {name: installation.kernels[name] for plan in program.schedules.values() for name in plan.kernels}
    monkeypatch.setattr("cacheir_cuda.block_seat._by_triton", lambda launches, kernels: True)
    seat = BlockSeat(mains, chosen, torch.device("cpu"), read_options({}), ExecutorOptions())
    assert {mode for mode in mains if seat.takes(mode)} == modes
    note = plan_decode_chain(program).plan_notes[NOTE]
    assert isinstance(note, dict)
    if kernels:
        assert note["refused"] == f"--kernel chose how {next(iter(kernels))} runs"
        assert not ops or seat.reason == note["refused"] == forced_here(mains["decode"])
