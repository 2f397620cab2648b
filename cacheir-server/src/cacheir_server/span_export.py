"""What the ``OTEL_*`` variables may say, checked before anything is loaded, and an exporter that complains once."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Mapping
from urllib.parse import urlsplit

from cacheir.errors import UsageError

_COUNTS = (
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_BSP_EXPORT_TIMEOUT",
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
)
_SECONDS = ("OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_SAMPLERS = tuple(
    f"{parent}{name}" for parent in ("", "parentbased_") for name in ("always_on", "always_off", "traceidratio")
)
_DEFAULT_QUEUE, _DEFAULT_BATCH = 2048, 512  # the library's
_MOST = 2**31 - 1


def check_variables(variables: Mapping[str, str] | None = None) -> None:
    """``UsageError`` for the first ``OTEL_*`` variable whose value the library could not follow.

    Left to itself it takes a default with a traceback on stderr. Empty values count as absent, as the standard says.
    """
    found = {name: value for name, value in (os.environ if variables is None else variables).items() if value}
    for name in _COUNTS:
        if name in found and not (found[name].isascii() and found[name].isdigit() and 0 < int(found[name]) <= _MOST):
            raise _wrong(name, found[name], f"a whole number from 1 to {_MOST}")
    queue = int(found.get("OTEL_BSP_MAX_QUEUE_SIZE", _DEFAULT_QUEUE))
    if int(found.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", min(queue, _DEFAULT_BATCH))) > queue:
        most = f"at most the {queue} of OTEL_BSP_MAX_QUEUE_SIZE"
        raise _wrong("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", found["OTEL_BSP_MAX_EXPORT_BATCH_SIZE"], most)
    for name in _SECONDS:
        if name in found and not 0 < _number(found[name]) < math.inf:
            raise _wrong(name, found[name], "a number of seconds above 0")
    for name in _ENDPOINTS:
        if name in found and not _is_endpoint(found[name]):
            raise _wrong(name, found[name], "an address, as http://127.0.0.1:4318")
    sampler = found.get("OTEL_TRACES_SAMPLER", "")
    if sampler and sampler.lower().strip() not in _SAMPLERS:
        raise _wrong("OTEL_TRACES_SAMPLER", sampler, f"one of {', '.join(_SAMPLERS)}")
    share = found.get("OTEL_TRACES_SAMPLER_ARG", "")
    if share and sampler.lower().strip().endswith("traceidratio") and not 0 <= _number(share) <= 1:
        raise _wrong("OTEL_TRACES_SAMPLER_ARG", share, "a number from 0 to 1")


class OnceEach(logging.Handler):
    """Says each kind of complaint of the library once, in one line: a collector that is away is not news each time."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """The record's message, the first time that its place in the library complains."""
        kind = f"{record.name} {record.lineno}"
        if kind in self._said:
            return
        self._said.add(kind)
        why = f": {record.exc_info[1]}" if record.exc_info and record.exc_info[1] else ""
        print(f"note: spans: {record.getMessage()}{why} (said once)", file=sys.stderr)


def complain_once() -> None:
    """From now on what the library logs is said by ``OnceEach``."""
    logger = logging.getLogger("opentelemetry")
    if not any(isinstance(handler, OnceEach) for handler in logger.handlers):
        logger.addHandler(OnceEach())
        logger.propagate = False


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _is_endpoint(text: str) -> bool:
    try:
        place = urlsplit(text)
        return (
            place.scheme in ("http", "https")
            and bool(place.hostname)
            and place.port != 0
            and not set(text) & set(" \t\n")
        )
    except ValueError:
        return False


def _wrong(name: str, value: str, wanted: str) -> UsageError:
    return UsageError(f"the variable {name} is {value[:60]!r}", hint=f"set it to {wanted}, or unset it")
