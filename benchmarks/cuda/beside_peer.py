"""The other engine's process, and what the GPU says of itself meanwhile."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any


class Peer:
    """The other engine: one line of JSON to it, one back."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.said: dict[str, Any] = {}

    def wait_until_ready(self) -> None:
        """Read lines up to the first that is JSON."""
        self.said = self._answer()

    def run(self, prompts: list[list[int]], output: int) -> tuple[float, list[list[int]]]:
        """Seconds and tokens."""
        answer = self._ask({"prompts": prompts, "output": output})
        return float(answer["seconds"]), answer["tokens"]

    def busy(self, prompts: list[list[int]], output: int) -> dict[str, float] | None:
        """Seconds in which its kernels ran, by its profiler; None where it cannot tell."""
        answer = self._ask({"prompts": prompts, "output": output, "busy": True})
        found: dict[str, float] | None = answer.get("busy")
        return found

    def stand_still(self) -> None:
        """Stop its process, threads and all, while another engine is measured."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Undo ``stand_still``."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it by closing its input, then wait."""
        assert self._process.stdin is not None
        self.go_on()
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                made: dict[str, Any] = json.loads(line)
                return made
        raise RuntimeError(f"the other engine ended with status {self._process.wait()}")


def telemetry() -> dict[str, int]:
    """Clock of the multiprocessors in MHz, power in watts, degrees, free memory in GiB; {} where NVML is not there."""
    try:
        import pynvml
    except ImportError:
        return {}
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    return {
        "clock_mhz": int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
        "power_w": int(pynvml.nvmlDeviceGetPowerUsage(handle)) // 1000,
        "temperature_c": int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
        "free_gib": int(pynvml.nvmlDeviceGetMemoryInfo(handle).free) >> 30,
    }
