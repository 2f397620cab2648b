"""Records of the surfaces: plugin info, commands, routes, checks, benchmarks and peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cacheir.plugins.markers import PROVISIONAL, STABLE
from cacheir.plugins.record import check_choice, check_fields, record
from cacheir.plugins.ref import Lazy

# Spelt apart from Lazy: these fields are never the object itself, so that listing them imports nothing.
Reference = str


@record(level=STABLE)
class PluginInfo:
    """What ``cacheir plugins list`` shows; without it, the distribution's own metadata."""

    title: str
    summary: str
    homepage: str = ""

    def __post_init__(self) -> None:
        check_fields(self)


@record(level=STABLE)
class CommandSpec:
    """A subcommand. ``help`` is given here so that ``cacheir --help`` never imports ``app``.

    ``app`` names a ``typer.Typer`` or a function. ``group`` is the heading it is listed under, "" for its package.
    """

    name: str
    help: str
    app: Reference
    group: str = ""

    def __post_init__(self) -> None:
        check_fields(self)


@record(level=PROVISIONAL)
class RouteSpec:
    """An HTTP route of ``cacheir serve``. ``handler`` names an ``async (request, engine) -> ApiResponse``."""

    method: str
    path: str
    handler: Reference
    summary: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        check_choice(self, "method", ("GET", "POST", "PUT", "PATCH", "DELETE"))
        if not self.path.startswith("/"):
            raise ValueError(f"route path {self.path!r} must begin with '/'")

    @property
    def name(self) -> str:
        """What the route is registered under: ``GET /health``."""
        return f"{self.method} {self.path}"


@record(level=STABLE)
class CheckSpec:
    """One line of ``cacheir plugins doctor``. ``run`` has five seconds."""

    name: str
    run: Lazy[Callable[[], CheckResult]]

    def __post_init__(self) -> None:
        check_fields(self)


@record(level=STABLE)
class CheckResult:
    """What a check found. ``hint`` is what to do where it is not ``ok``.

    ``idle`` is for what is not there and need not be: nothing is at fault, and the line does not begin with ``ok``.
    """

    ok: bool
    detail: str
    hint: str = ""
    idle: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.idle and not self.ok:
            raise ValueError(f"CheckResult: idle is for what is not at fault, and ok is False: {self.detail!r}")


@record(level=PROVISIONAL)
class BenchmarkSpec:
    """A suite of ``cacheir benchmark --suite NAME``. ``run(options)`` gives a JSON value with raw samples."""

    name: str
    summary: str
    run: Lazy[Callable[..., Any]]

    def __post_init__(self) -> None:
        check_fields(self)


@record(level=PROVISIONAL)
class PeerSpec:
    """A system to compare with (vLLM, llama.cpp). ``probe()`` is as a backend's.

    ``run(options)`` gives a list of mappings, one for each setting in which it is to be timed: ``setting`` (its name),
    ``command`` (words of a process that answers as docs/benchmarks.md says) and ``environment``. ``options`` has
    ``model`` (a path), ``threads``, ``python`` ("" for this one's). It may raise BackendError where it cannot run on
    that model: the message is the reason in the report. Where ``{"ready": facts}`` of the process has ``weights``, that
    is their precision, and the engine does not read the model's own file.
    """

    name: str
    summary: str
    probe: Lazy[Callable[[], str | None]]
    run: Lazy[Callable[..., Any]]

    def __post_init__(self) -> None:
        check_fields(self)
