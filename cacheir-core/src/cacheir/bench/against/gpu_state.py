"""What the first GPU says of itself beside a sample: clock, power, temperature, memory in use."""

from __future__ import annotations

import shutil
import subprocess

FIELDS = {
    "clock_mhz": "clocks.sm",
    "power_w": "power.draw",
    "temperature_c": "temperature.gpu",
    "memory_mib": "memory.used",
}
_LONGEST_SECONDS = 10.0


def gpu_state() -> dict[str, float] | None:
    """None where there is no nvidia-smi, or it says nothing."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    words = [program, f"--query-gpu={','.join(FIELDS.values())}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, timeout=_LONGEST_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return read_state(found.stdout)


def read_state(line: str) -> dict[str, float] | None:
    """The numbers of one line of nvidia-smi; fields that this GPU does not have are left out, None where all are."""
    state = {}
    for name, text in zip(FIELDS, line.partition("\n")[0].split(",")):
        try:
            state[name] = float(text)
        except ValueError:
            continue  # "[N/A]"
    return state or None
