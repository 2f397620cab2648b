"""``--batch-invariant`` in Triton's interpreter: a row has the same bits alone, in company, and in chunks."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the backend runs on it")
pytest.importorskip("triton", reason="Triton is not installed")

from cacheir.artifact.card import CompileOptions  # noqa: E402
from cacheir.testing import BackendTests  # noqa: E402
from cacheir.testing.hosts import plugin_host  # noqa: E402
from cacheir.testing.opened_backend import OpenedBackend  # noqa: E402
from cacheir.testing.tiny_programs import TinyProgram  # noqa: E402
from cacheir_cuda.chain.seat import ChainSeat  # noqa: E402
from cacheir_cuda.kernels import triton_fixed  # noqa: E402
from cacheir_cuda.options import read_options  # noqa: E402

IDS = [7, 3, 11, 2]
pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.fixture(autouse=True)
def on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cpu")


def opened(dtype: str = "float16") -> OpenedBackend:
    options = CompileOptions(target="cuda", batch_invariant=True)
    tiny = TinyProgram("grouped", plugin_host("cacheir_cuda.plugin"), options)
    return OpenedBackend(tiny, page_tokens=4, batch_invariant=True, extra={"cuda_dtype": dtype})


def test_every_kernel_keeps_the_order_of_its_sums() -> None:
    with opened() as backend:
        program, kernels = backend.tiny.program, backend.executor._kernels
        assert {spec.row_order for spec in kernels.values()} == {"fixed"}
        assert {"cuda.fixed.linear", "cuda.fixed.head_argmax"} & set(kernels)
        assert all(name for schedule in program.schedules.values() for name in schedule.kernels)
        assert backend.executor.capabilities().determinism == "bit"
        assert not backend.executor._blocks.takes("prefill")


@pytest.mark.parametrize("dtype", ["float16", pytest.param("float32", marks=pytest.mark.slow)])
def test_a_row_s_bits(dtype: str) -> None:
    """Beside ragged neighbours, in chunks, by single tokens, behind stored keys: all as the whole prompt alone."""
    with opened(dtype) as backend:
        whole = backend.prefill(0, IDS)
        near(whole, backend.tiny.logits(IDS))
        wanted = tuple(range(len(IDS)))
        rows = [backend.row(1, IDS, want="logits", want_at=wanted), backend.row(2, [4, 4, 4]), backend.row(3, [9])]
        same(backend.step("prefill", *rows)[0].logits, whole)
        same(backend.prefill(4, IDS[:2]), whole[:2])
        same(backend.prefill(4, IDS[2:3], 2), whole[2:3])
        together = backend.step(
            "decode", backend.row(4, IDS[3:], 3, want="logits"), backend.row(2, [6], 3), backend.row(3, [6], 1)
        )
        same(together[0].logits, whole[3:])
        backend.prefill(5, IDS[:1])
        for position, token in enumerate(IDS[1:3], 1):
            same(backend.decode(5, token, position), whole[position : position + 1])


def same(found: Any, expected: Any) -> None:
    assert np.array_equal(found, expected)


def near(found: Any, expected: Any) -> None:
    assert np.abs(found - expected).max() < 1e-2 * np.abs(expected).max()


@pytest.mark.parametrize("rows", [5, 70])
def test_a_product_s_row(rows: int) -> None:
    random = np.random.default_rng(rows)
    x = torch.from_numpy(random.standard_normal((rows, 300)).astype(np.float32))
    weight = torch.from_numpy(random.standard_normal((70, 300)).astype(np.float32))
    together = triton_fixed.product(x, weight)
    expected = x.double().numpy() @ weight.double().numpy().T
    assert np.abs(together.numpy() - expected).max() < 1e-5 * np.abs(expected).max()
    for row in (0, rows - 1):
        assert torch.equal(triton_fixed.product(x[row : row + 1], weight)[0], together[row])


def test_the_decode_chain_stays_away() -> None:
    seat = ChainSeat()
    with opened() as backend:
        program = backend.tiny.program
    seat.load(program, None, torch.device("cuda"), read_options({}, {}), invariant=True)  # type: ignore[arg-type]
    assert "--batch-invariant" in seat.refusal


@pytest.mark.slow
class TestBatchInvariantBackend(BackendTests):
    """The kit, which holds a backend that states ``bit`` to equal bits."""

    plugin = "cacheir_cuda.plugin"
    backend = "cuda"
    options: ClassVar[dict[str, Any]] = {"batch_invariant": True}
    executor_options: ClassVar[dict[str, Any]] = {"batch_invariant": True, "extra": {"cuda_dtype": "float32"}}
