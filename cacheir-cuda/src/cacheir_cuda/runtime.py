"""``CudaRuntime``: a ``Runtime`` on the CUDA backend, with its options by name."""

from __future__ import annotations

from typing import Any

from cacheir.runtime.runtime import Runtime


class CudaRuntime(Runtime):
    """``Runtime(model, "cuda")``. ``device``, ``cuda_dtype`` and the switches are those of ``CudaOptions``.

        with CudaRuntime("smollm2", cuda_dtype="float16") as runtime:
            print("".join(runtime.generate("The capital of France is", max_new_tokens=16)))

    What is None is taken from the environment, else it is the default. ``model`` and
    ``others`` are ``Runtime``'s.
    """

    def __init__(
        self,
        model: Any,
        *,
        device: str | None = None,
        cuda_dtype: str | None = None,
        use_cuda_graph: bool | None = None,
        decode_chain: bool | None = None,
        blocks: bool | None = None,
        programmatic_launch: bool | None = None,
        jit_after_warmup: str | None = None,
        **others: Any,
    ) -> None:
        given = {
            "device": device,
            "cuda_dtype": cuda_dtype,
            "use_cuda_graph": use_cuda_graph,
            "decode_chain": decode_chain,
            "blocks": blocks,
            "programmatic_launch": programmatic_launch,
            "jit_after_warmup": jit_after_warmup,
        }
        options = {name: value for name, value in given.items() if value is not None}
        super().__init__(model, "cuda", backend_options=options, **others)
