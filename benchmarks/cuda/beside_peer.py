"""The other engine's process, whose turn it is on the GPU, and what the GPU says of itself meanwhile."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
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

    def close(self) -> None:
        """End it by closing its input, then wait."""
        assert self._process.stdin is not None
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


class Turn:
    """One of several measurements that open their engines together and run one after the other.

    ``text`` is FOLDER:NUMBER:COUNT, "" for one alone. All wait until each is ready, or for ``seconds``.
    """

    def __init__(self, text: str, seconds: float = 240.0) -> None:
        self._folder: Path | None = None
        self._seconds = seconds
        if text:
            folder, number, count = text.rsplit(":", 2)
            self._folder, self._number, self._count = Path(folder), int(number), int(count)
            self._folder.mkdir(parents=True, exist_ok=True)

    def wait(self) -> None:
        """Say that this one is ready; go on when those before it are done."""
        if self._folder is None:
            return
        (self._folder / f"ready.{self._number}").touch()
        until = time.monotonic() + self._seconds
        while len(list(self._folder.glob("ready.*"))) < self._count and time.monotonic() < until:
            time.sleep(0.2)
        while self._number and not (self._folder / f"done.{self._number - 1}").exists():
            time.sleep(0.2)

    def wait_for_all(self) -> None:
        """Go on when nobody measures any more."""
        until = time.monotonic() + self._seconds
        while self._folder is not None and time.monotonic() < until:
            if len(list(self._folder.glob("done.*"))) >= self._count:
                return
            time.sleep(0.2)

    def done(self) -> None:
        """Let the next one go on."""
        if self._folder is not None:
            (self._folder / f"ready.{self._number}").touch()
            (self._folder / f"done.{self._number}").touch()


def telemetry() -> dict[str, int]:
    """Clock of the multiprocessors in MHz, power in watts, temperature in degrees; {} where NVML is not there."""
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
    }
