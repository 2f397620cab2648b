"""How fast bytes go to the GPU and back, measured through the driver alone: for ``cacheir profile --calibrate``."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from cacheir_cuda.driver import LIBRARY, DriverProblem, ask_driver

SAMPLE_BYTES = 256 << 20
REPEATS = 5


def transfer_rates(library: str = LIBRARY) -> Mapping[str, float]:
    """Bytes a second from host to device and back, over pinned and ordinary host memory; {} where there is no GPU.

    Each is the best of a few copies. Takes ``SAMPLE_BYTES`` of device memory and twice as many of the host's for a
    moment. DriverProblem where the driver refuses.
    """
    try:
        found = ask_driver(library)
    except DriverProblem as problem:
        if problem.missing:
            return {}
        raise
    if found.device_count == 0:
        return {}
    driver = _Driver(library)
    with driver.context(), driver.device_memory(SAMPLE_BYTES) as device, driver.pinned_memory(SAMPLE_BYTES) as pinned:
        plain = ctypes.create_string_buffer(SAMPLE_BYTES)
        ordinary = ctypes.addressof(plain)
        return {
            "h2d_bytes_per_s": _best(lambda: driver.to_device(device, pinned, SAMPLE_BYTES)),
            "d2h_bytes_per_s": _best(lambda: driver.to_host(pinned, device, SAMPLE_BYTES)),
            "h2d_unpinned_bytes_per_s": _best(lambda: driver.to_device(device, ordinary, SAMPLE_BYTES)),
            "d2h_unpinned_bytes_per_s": _best(lambda: driver.to_host(ordinary, device, SAMPLE_BYTES)),
        }


def _best(copy: Callable[[], None]) -> float:
    """Bytes a second of the fastest of ``REPEATS`` copies, after one that does not count."""
    copy()
    fastest = float("inf")
    for _ in range(REPEATS):
        began = time.perf_counter()
        copy()
        fastest = min(fastest, time.perf_counter() - began)
    return SAMPLE_BYTES / fastest


class _Driver:
    """The few functions of the driver that a copy takes. Copies are synchronous."""

    def __init__(self, library: str) -> None:
        self._driver = ctypes.CDLL(library)
        self._library = library

    @contextmanager
    def context(self) -> Iterator[None]:
        """The first device's primary context, current in this thread."""
        device, context = ctypes.c_int(0), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        try:
            self._call("cuCtxSetCurrent", context)
            yield
        finally:
            self._call("cuCtxSetCurrent", ctypes.c_void_p())
            self._call("cuDevicePrimaryCtxRelease_v2", device)

    @contextmanager
    def device_memory(self, nbytes: int) -> Iterator[int]:
        """The address of ``nbytes`` on the device."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        try:
            yield address.value
        finally:
            self._call("cuMemFree_v2", address)

    @contextmanager
    def pinned_memory(self, nbytes: int) -> Iterator[int]:
        """The address of ``nbytes`` of host memory that stays where it is."""
        address = ctypes.c_void_p()
        self._call("cuMemAllocHost_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        try:
            assert address.value is not None
            yield address.value
        finally:
            self._call("cuMemFreeHost", address)

    def to_device(self, device: int, host: int, nbytes: int) -> None:
        """Copy from the host address ``host``."""
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(device), ctypes.c_void_p(host), ctypes.c_size_t(nbytes))

    def to_host(self, host: int, device: int, nbytes: int) -> None:
        """Copy to the host address ``host``."""
        self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(host), ctypes.c_uint64(device), ctypes.c_size_t(nbytes))

    def _call(self, name: str, *arguments: object) -> None:
        status: int = getattr(self._driver, name)(*arguments)
        if status:
            raise DriverProblem(f"{self._library}: {name} failed with CUDA error {status}", missing=False)
