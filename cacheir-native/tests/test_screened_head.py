"""A screened head gives the tokens of the whole one, on every instruction set; it can be switched, and is counted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cacheir.errors import UsageError
from cacheir.runtime.executor import Step
from cacheir_native.options import SCREEN_VARIABLE, NativeOptions, read_options
from cacheir_native.probe import why_unavailable

TOKENS = Path(__file__).with_name("tokens_of_heads.py")
ISAS = ("scalar", "avx2", "avx512", "avx512_vnni")


@pytest.mark.parametrize("isa", ISAS)
def test_tokens_are_those_of_the_whole_head(isa: str) -> None:
    if (reason := why_unavailable()) is not None:
        pytest.skip(reason)
    from cacheir_native import _cacheir_native as native

    if isa not in native.supported_isas():
        pytest.skip(f"this CPU or operating system has no {isa}")
    seed = int(np.random.default_rng().integers(1 << 30))
    ran = subprocess.run(
        [sys.executable, str(TOKENS), str(seed)],
        env={**os.environ, "CACHEIR_NATIVE_ISA": isa},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [isa, "screened True"], f"seed {seed}"


@pytest.mark.parametrize(("name", "precise"), [("grouped", True), ("quantised", False), ("quantised", True)])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_decoder_goes_the_same_way(make_tiny: Any, step: Any, name: str, precise: bool, threads: int) -> None:
    tiny = make_tiny(name, precise=precise)
    made = {}
    for screen in ("off", "always"):
        executor = tiny.open(threads=threads, extra={"screen": screen})
        (first,) = step(executor, "prefill", tiny.row(0, [5, 9, 2]))
        made[screen] = [first.token]
        go_on(executor, tiny.row(0, [], 3), made[screen])
        counts = executor.counters()
        screens = executor._runner.screening()
        assert counts["screened_steps"] == (21 if screens else 0) and counts["screens_given_up"] == 0
        assert counts["screen_saved_bytes"] == sum(screen["saved_bytes"] for screen in screens)
        assert bool(screens) == (screen == "always")
        executor.close()
    assert made["off"] == made["always"] and len(made["off"]) == 21


def go_on(executor: Any, row: Any, tokens: list[int]) -> None:
    executor.run_ahead(Step(mode="decode", rows=(row,)), 20, lambda rows: tokens.append(rows[0].token))


def test_a_small_head_is_left_alone(make_tiny: Any) -> None:
    executor = make_tiny("grouped").open()
    assert executor._runner.screening() == []
    executor.close()


def test_the_option() -> None:
    assert read_options({}, {}) == NativeOptions(screen="auto")
    assert read_options({}, {SCREEN_VARIABLE: "off"}).screen == "off"
    assert read_options({"screen": "always"}, {SCREEN_VARIABLE: "off"}).screen == "always"
    with pytest.raises(UsageError, match="screen is 'on', which is none of auto, off, always"):
        read_options({"screen": "on"}, {})
    with pytest.raises(UsageError, match=f"{SCREEN_VARIABLE} is 'on', which is none of auto, off, always"):
        read_options({}, {SCREEN_VARIABLE: "on"})
