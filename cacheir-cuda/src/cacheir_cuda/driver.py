"""The NVIDIA driver, asked through its C interface: its version and how many GPUs it shows."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from cacheir.errors import BackendUnavailable
from cacheir.plugins import CheckResult

LIBRARY = "libcuda.so.1"
CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, .._MINOR
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE: how cuInit answers where there is no GPU, or CUDA_VISIBLE_DEVICES hides all


@dataclass(frozen=True)
class Driver:
    """An answering driver. ``version`` is the newest CUDA version it serves, as (major, minor)."""

    version: tuple[int, int]
    device_count: int


class DriverProblem(BackendUnavailable):
    """The driver is missing or does not answer; the message is the reason. ``missing`` tells the two apart."""

    def __init__(self, message: str, *, missing: bool) -> None:
        super().__init__(message)
        self.missing = missing


def ask_driver(library: str = LIBRARY) -> Driver:
    """Load the driver's library and ask it. Raises DriverProblem. Creates no context and holds no device memory."""
    try:
        driver = ctypes.CDLL(library)
    except OSError as error:
        raise DriverProblem(f"{library} cannot be loaded ({error})", missing=True) from error
    status = _call(driver, library, "cuInit", ctypes.c_uint(0), allowed=(0, NO_DEVICE))
    version, count = ctypes.c_int(0), ctypes.c_int(0)
    _call(driver, library, "cuDriverGetVersion", ctypes.byref(version))
    if status != NO_DEVICE:
        _call(driver, library, "cuDeviceGetCount", ctypes.byref(count))
    # The driver spells 13.1 as 13010.
    return Driver(version=(version.value // 1000, version.value % 1000 // 10), device_count=count.value)


def ask_capability(number: int = 0, library: str = LIBRARY) -> tuple[int, int]:
    """The compute capability of GPU ``number``, asked without PyTorch and without a context. Raises DriverProblem."""
    if ask_driver(library).device_count <= number:
        raise DriverProblem(f"the NVIDIA driver shows no GPU {number}", missing=False)
    driver, device, found = ctypes.CDLL(library), ctypes.c_int(0), ctypes.c_int(0)
    _call(driver, library, "cuDeviceGet", ctypes.byref(device), ctypes.c_int(number))
    parts = []
    for attribute in CAPABILITY:
        _call(driver, library, "cuDeviceGetAttribute", ctypes.byref(found), ctypes.c_int(attribute), device)
        parts.append(found.value)
    return parts[0], parts[1]


def check_driver() -> CheckResult:
    """Report the driver for ``cacheir plugins doctor``. A machine without one is in order; a broken one is not."""
    try:
        driver = ask_driver()
    except DriverProblem as problem:
        if problem.missing:
            return CheckResult(ok=True, idle=True, detail=f"no NVIDIA driver on this machine: {problem}")
        return CheckResult(
            ok=False, detail=str(problem), hint="nvidia-smi shows whether the kernel module and the library agree"
        )
    major, minor = driver.version
    return CheckResult(ok=True, detail=f"driver for CUDA {major}.{minor} with {driver.device_count} GPU(s)")


def _call(driver: ctypes.CDLL, library: str, name: str, *arguments: object, allowed: tuple[int, ...] = (0,)) -> int:
    """Call one function of the driver and return its status; raise DriverProblem for one that is not allowed."""
    try:
        function = getattr(driver, name)
    except AttributeError as error:
        raise DriverProblem(
            f"{library} has no function {name}, so it is not the NVIDIA driver", missing=False
        ) from error
    status: int = function(*arguments)
    if status not in allowed:
        raise DriverProblem(f"the NVIDIA driver's {name} failed with CUDA error {status}", missing=False)
    return status
