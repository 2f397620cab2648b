"""A cubin that is loaded on a GPU: its kernels by name, launched apart or recorded as a graph."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_void_p

import torch

from cacheir_cuda.chain.cubins import FOLDER, load_cubin, other_folders
from cacheir_cuda.chain.driver_calls import Driver, Graph
from cacheir_cuda.chain.launches import KernelLaunch
from cacheir_cuda.main_inputs import Copy


class KernelModule:
    """The kernels of ``source``.cu for the GPU ``device``.

    Raises BackendUnavailable where they are not built or not for this GPU, BackendError where the driver fails.
    """

    def __init__(self, device: torch.device, source: str) -> None:
        major, minor = torch.cuda.get_device_capability(device)
        image = load_cubin((major, minor), FOLDER, other_folders(), source)
        torch.zeros(1, device=device)  # makes the context current in this thread
        self._device = device
        self.driver = Driver()
        self._module = self.driver.load(image)
        self._functions: dict[str, c_void_p] = {}

    def launch(self, launches: Sequence[KernelLaunch], stream: int | None = None) -> None:
        """Launch in order on ``stream``, torch's current one where it is not given."""
        on = torch.cuda.current_stream(self._device).cuda_stream if stream is None else stream
        for one in launches:
            self._launch(one, on)

    def record(self, launches: Sequence[KernelLaunch], copy: Copy | None = None) -> Graph:
        """A graph of ``launches``, which begins with ``copy`` where one is given."""
        stream = torch.cuda.Stream(self._device).cuda_stream  # type: ignore[no-untyped-call]
        for one in launches:
            self._function(one)
        self.driver.begin_capture(stream)
        if copy is not None:
            self.driver.copy_to_device(*copy, stream)
        for number, one in enumerate(launches):
            self._launch(one, stream, programmatic=number > 0 or copy is None)
        return self.driver.end_capture(stream)

    def close(self) -> None:
        """Let go of the kernels."""
        self.driver.unload(self._module)

    def _launch(self, one: KernelLaunch, stream: int, programmatic: bool = True) -> None:
        function = self._function(one)
        self.driver.launch(
            function, one.blocks, one.threads, one.shared_bytes, stream, one.arguments, programmatic=programmatic
        )

    def _function(self, launch: KernelLaunch) -> c_void_p:
        if launch.kernel not in self._functions:
            self._functions[launch.kernel] = self.driver.function(self._module, launch.kernel, launch.shared_bytes)
        return self._functions[launch.kernel]
