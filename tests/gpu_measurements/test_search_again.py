"""search_again.py beside a search that is stood for: what ends or stops it is left out, and it begins again."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

STOOD = """
import json, os, sys, time
without = sys.argv[4:]
with open(sys.argv[2], "a") as out:
    for kernel in ("good", "ends", "stops", "last"):
        if kernel in without:
            continue
        out.write(json.dumps({"stage": "begins", "kernels": {"down": kernel, "gate_up": "beside"}}) + "\\n")
        out.flush()
        if kernel == "ends":
            os._exit(7)
        if kernel == "stops":
            time.sleep(60)
    out.write(json.dumps({"stage": "final", "seconds": sys.argv[3]}) + "\\n")
"""


def test_what_ends_or_stops_a_search_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = importlib.import_module("search_again")
    monkeypatch.setattr(again, "STOPS_AFTER", 3.0)  # on a busy machine a child takes a while to end
    script, out = tmp_path / "search.py", tmp_path / "out.jsonl"
    script.write_text(STOOD)
    assert again.searched("CUBIN", out, 90, [sys.executable, str(script)]) == ["ends", "stops"]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    left_out = [row for row in rows if row["stage"] == "left out"]
    assert [row["kernels"] for row in left_out] == [["ends"], ["stops"]] and left_out[0]["status"] == 7
    assert rows[-1]["stage"] == "final" and float(rows[-1]["seconds"]) <= 90


def test_a_search_that_ends_before_any_kernel_is_not_begun_again(tmp_path: Path) -> None:
    again = importlib.import_module("search_again")
    script, out = tmp_path / "search.py", tmp_path / "out.jsonl"
    script.write_text("raise SystemExit(3)")
    with pytest.raises(SystemExit, match="ended with 3 before its first kernel"):
        again.searched("CUBIN", out, 90, [sys.executable, str(script)])
    assert [json.loads(line) for line in out.read_text().splitlines()] == [
        {"stage": "left out", "kernels": [], "status": 3}
    ]
