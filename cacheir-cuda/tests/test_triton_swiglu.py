"""SiLU times up as a Triton kernel: right for all shapes and far values, and its record."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the backend's kernels take its tensors")
pytest.importorskip("triton", reason="Triton is not installed")

from cacheir.ir import Op, TensorType, Value  # noqa: E402
from cacheir.plugins import resolve  # noqa: E402
from cacheir.schedule.select_kernels import OfferedKernel, candidates_of  # noqa: E402
from cacheir_cuda import plugin  # noqa: E402
from cacheir_cuda.kernels import triton_rows  # noqa: E402

pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.mark.parametrize("shape", [(1, 1), (3, 40), (2, 5, 511), (2, 1024)])
@pytest.mark.parametrize("place", ["apart", "gate", "up"])
def test_beside_the_formula(shape: tuple[int, ...], place: str) -> None:
    random = np.random.default_rng()
    gate, up = (torch.from_numpy(random.standard_normal(shape).astype(np.float32) * 4) for _ in range(2))
    gate.view(-1)[0] = -200.0  # its exponential is beyond float32
    x = gate.double().numpy()
    with np.errstate(over="ignore"):
        expected = x / (1 + np.exp(-x)) * up.double().numpy()
    out = {"apart": torch.full(shape, torch.nan), "gate": gate, "up": up}[place]
    triton_rows.swiglu(gate, up, out=out)
    np.testing.assert_allclose(out.numpy(), expected, rtol=2e-6, atol=1e-6)


def test_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch's and the CUDA C++ one, where Triton runs; refused where it does not."""
    backend = next(iter(plugin.cacheir_register_backends()))
    offered = [OfferedKernel(spec=spec, plugin="", distribution="") for spec in plugin.cacheir_register_kernels()]
    f32 = TensorType.of("f32", 2, 40)
    gate, up, product = (Value(name, f32) for name in ("gate", "up", "product"))
    op = Op("swiglu", (gate, up), (product,))
    names = [kernel.spec.name for kernel in candidates_of(op, offered, backend.targets)]
    assert names == ["cuda.triton.swiglu", "cuda.torch.swiglu", "cuda.cpp.swiglu"]
    spec = next(kernel.spec for kernel in offered if kernel.spec.name == names[0])
    assert resolve(spec.entry) is triton_rows.swiglu and spec.in_place and spec.row_order == "fixed"
    assert spec.refuses is not None and resolve(spec.refuses)(op) is None
    half = TensorType.of("f16", 2, 40)
    other = Op("swiglu", (Value("gate", half), Value("up", half)), (Value("product", half),))
    assert "f16, not f32" in str(resolve(spec.refuses)(other))
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cpu")
    assert "interpreter" in str(resolve(spec.refuses)(op))
