"""``cacheir benchmark --suite serve --url URL``: its options, checked, and the run."""

from __future__ import annotations

import http.client
import json
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from cacheir.errors import UsageError
from cacheir_server.bench.load import Load, place_of, run_load
from cacheir_server.bench.plots import check_plots, draw_plots
from cacheir_server.bench.report import serve_report

_DEFAULT_DEADLINE_S = 10.0
_ASKED_TIMEOUT_S = 10.0
# Prompts are made before the run, and each request has a thread; a day is long enough for any run.
_MOST = {"requests": 100_000, "prompt_words": 100_000, "max_tokens": 1 << 20}
_MOST_WORDS = 10_000_000
_LONGEST_S = 86_400.0


def run(options: Mapping[str, Any]) -> dict[str, Any]:
    """The report of one run. ``options``: ``url``, ``set`` (texts by name), ``warmup`` and ``progress``."""
    given = dict(options.get("set") or {})
    deadline_s = _number("deadline_s", given.pop("deadline_s", _DEFAULT_DEADLINE_S), float)
    plots = Path(given.pop("plots")) if "plots" in given else None
    if plots is not None:
        check_plots(plots)
    if not options.get("url"):
        raise UsageError("there is no server to load", hint="--url http://127.0.0.1:8000/v1")
    load = make_load(str(options["url"]), given, options.get("model"), int(options.get("warmup") or 0))
    progress: Callable[[str], None] = options["progress"]
    report = serve_report(load, run_load(load, progress), deadline_s)
    for cause in report["causes"]:
        progress(f"no figures: {cause}")
    if plots is not None and report["valid"]:
        draw_plots(report, plots)
        progress(f"distributions are drawn in {plots}")
    return report


def make_load(url: str, given: Mapping[str, Any], model: str | None, warmup: int) -> Load:
    """The load that ``given`` options describe; ``UsageError`` for an unknown name or a value that cannot be."""
    kinds = {"requests": int, "rate": float, "prompt_words": int, "max_tokens": int, "seed": int, "api_key": str}
    assert set(kinds) < {field.name for field in fields(Load)}
    unknown = sorted(set(given) - set(kinds))
    if unknown:
        names = ", ".join([*kinds, "deadline_s", "plots"])
        raise UsageError(f"the suite serve has no option {unknown[0]!r}", hint=f"it has {names}")
    values = {name: _number(name, value, kinds[name]) for name, value in given.items()}
    for name, most in _MOST.items():
        if values.get(name, 0) > most:
            raise UsageError(f"{name} can be at most {most}, not {values[name]}")
    if values.get("requests", Load.requests) * values.get("prompt_words", Load.prompt_words) > _MOST_WORDS:
        raise UsageError(f"requests times prompt_words can be at most {_MOST_WORDS}", hint="fewer, or shorter ones")
    seconds = values.get("requests", Load.requests) / values.get("rate", Load.rate)
    if seconds > _LONGEST_S:
        raise UsageError(
            f"the requests would take {seconds:.3g} s to send, and a run has at most {_LONGEST_S:g}",
            hint="a higher rate, or fewer requests",
        )
    place_of(url)
    if not url.rstrip("/").endswith("/v1"):
        url = f"{url.rstrip('/')}/v1"
    return Load(url=url, model=model or _served(url, values.get("api_key", "")), warmup=warmup, **values)


def _served(url: str, api_key: str) -> str:
    """The name of the model that the server has."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        request = urllib.request.Request(f"{url}/models", headers=headers)
        with urllib.request.urlopen(request, timeout=_ASKED_TIMEOUT_S) as answer:
            return str(json.load(answer)["data"][0]["id"])
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException) as error:
        raise UsageError(
            f"{url} does not say which model it serves: {error}", hint="give MODEL, or another --url"
        ) from None


def _number(name: str, value: Any, kind: Callable[[Any], Any]) -> Any:
    try:
        number = kind(value)
    except ValueError:
        raise UsageError(f"{name} cannot be {value!r}") from None
    if kind is not str and name != "seed" and not 0 < number < float("inf"):
        raise UsageError(f"{name} must be above 0, not {value!r}")
    return number
