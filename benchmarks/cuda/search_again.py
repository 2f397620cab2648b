"""``rows_search.py`` to its end, whatever a kernel does: python search_again.py CUBIN OUT.jsonl SECONDS

A kernel that ends the process, or that stops it for ``STOPS_AFTER`` seconds, is left out, and the search begins again
with the seconds that are left. Its name is a line of OUT.jsonl.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

SEARCH = [sys.executable, str(Path(__file__).with_name("rows_search.py"))]
STOPS_AFTER, OPENS_IN = 15.0, 60.0  # seconds without a line; until the first
LEAST = 25.0  # seconds that a search is begun with
LAST_STAGE = 20.0  # seconds that the last stage may take, which begins in any case


def searched(cubin: str, out: Path, seconds: float, search: Sequence[str] = SEARCH) -> list[str]:
    """Search until it ends or the time is over; returns what was left out."""
    began, without = time.monotonic(), list[str]()
    out.touch()
    while (left := seconds - (time.monotonic() - began)) > 0 and (not without or left > LEAST):
        before = out.stat().st_size
        child = subprocess.Popen([*search, cubin, str(out), f"{left:.0f}", *without])
        if _ended(child, out, before, left + LAST_STAGE):
            break
        bad = _last_begun(out, before)
        row = {"stage": "left out", "kernels": bad, "status": child.returncode}
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
        if not bad:
            raise SystemExit(f"the search ended with {child.returncode} before its first kernel")
        without += bad
    return without


def _ended(child: subprocess.Popen[bytes], out: Path, before: int, most: float) -> bool:
    """Whether the search came to its end; it is killed where it tells nothing more."""
    began = changed = time.monotonic()
    size = before
    while child.poll() is None:
        time.sleep(0.1)
        now, found = time.monotonic(), out.stat().st_size
        if found != size:
            size, changed = found, now
        if now - changed > (STOPS_AFTER if size > before else OPENS_IN) or now - began > most:
            child.kill()
            child.wait()
            return False
    return child.returncode == 0


def _last_begun(out: Path, before: int) -> list[str]:
    """The kernels of the candidate that began last, the one that the search is about first; none where none did."""
    lines = out.read_bytes()[before:].decode().splitlines()
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    begun = [row for row in rows if row["stage"] == "begins"]
    return list(begun[-1]["kernels"].values())[:1] if begun else []


if __name__ == "__main__":
    searched(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
