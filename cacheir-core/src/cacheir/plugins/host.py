"""Finds, loads and isolates plugins, and asks them for contributions one at a time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cacheir import settings
from cacheir.errors import HookApiMismatch, PluginConflictError, PluginError, PluginLoadError, UsageError
from cacheir.plugins.distributions import EntryPoint, entry_points
from cacheir.plugins.fault_text import fault_text
from cacheir.plugins.guard import Interrupts, TookTooLong, clean_stdout, time_limit
from cacheir.plugins.plugin import CORE, Plugin, Problem
from cacheir.plugins.ref import import_target
from cacheir.quick_dataclass import dataclass

if TYPE_CHECKING:
    import pluggy

T = TypeVar("T")

# A plugin that takes longer than this to import is named on stderr; importing nothing heavy, it takes under 1 ms.
SLOW_SECONDS = 1.0

# What a plugin module must not import, because everybody would wait for it.
HEAVY = ("numpy", "torch", "triton", "onnx", "gguf", "fastapi", "rich", "pydantic", "transformers", "jax", "scipy")


@dataclass(frozen=True)
class Contribution(Generic[T]):
    """A record and the plugin that handed it over."""

    spec: T
    plugin: Plugin


@dataclass(frozen=True)
class HostOptions:
    """Which plugins a host takes and how it treats them.

    ``points`` replaces what is installed. ``allow`` None means all. ``keep_stdout_clean`` is for commands: see
    ``guard.clean_stdout``. ``seconds_each`` cuts a plugin's import off, None never.
    """

    allow: tuple[str, ...] | None = None
    block: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    strict: bool = False
    points: Sequence[EntryPoint] | None = None
    keep_stdout_clean: bool = False
    seconds_each: float | None = None

    @classmethod
    def from_environment(cls) -> HostOptions:
        """The options that the CACHEIR_* variables ask for; ``UsageError`` for a bad value."""
        return cls(
            allow=settings.names("CACHEIR_PLUGINS"),
            block=settings.names("CACHEIR_BLOCK_PLUGINS") or (),
            modules=settings.names("CACHEIR_PLUGIN_MODULES") or (),
            strict=settings.flag("CACHEIR_STRICT_PLUGINS"),
        )


class Host:
    """The plugins of one process. Nothing is imported before ``load`` or the first ``collect``.

    ``report(plugin, sentence)`` is called at most once for each plugin, with its first problem.
    """

    def __init__(self, options: HostOptions, report: Callable[[Plugin, str], None] | None = None) -> None:
        self.options = options
        self.report = report or print_report
        self.reported: set[str] = set()
        self._plugins: dict[str, Plugin] | None = None
        self._lock = threading.RLock()
        self._state = "new"
        self._manager: pluggy.PluginManager | None = None

    @property
    def plugins(self) -> list[Plugin]:
        """Every plugin that is known, core first. Finding them imports none of them."""
        with self._lock:
            if self._plugins is None:
                self._plugins = discover(self.options)
            return sorted(self._plugins.values(), key=Plugin.sort_key)

    @property
    def is_loaded(self) -> bool:
        """Whether plugins have been imported."""
        return self._state == "loaded"

    def load(self) -> list[Plugin]:
        """Import every plugin that is not blocked, once. ``PluginLoadError`` in strict mode for the first bad one."""
        with self._lock:
            if self._state == "loading":
                raise PluginError("a plugin asked for what plugins registered while it was being imported itself")
            if self._state == "new":
                self._state = "loading"
                try:
                    for plugin in self.plugins:
                        if plugin.state == "found":
                            self._import(plugin)
                        elif plugin.problems:
                            self._tell(plugin, plugin.problems[0])
                finally:
                    self._state = "loaded"
            return self.plugins

    def collect(self, hook: str) -> list[Contribution[Any]]:
        """The contributions to one register hook, core's first. A plugin that raises keeps what came before."""
        with self._lock:
            self.load()
            found: list[Contribution[Any]] = []
            for plugin in self.implementers(hook):
                found += self._ask(plugin, hook)
            return found

    def implementers(self, hook: str) -> list[Plugin]:
        """The plugins that implement ``hook``, in the order in which they are asked."""
        return [plugin for plugin in self.load() if hook in plugin.implementations]

    def info(self, plugin: Plugin) -> Any:
        """The plugin's ``PluginInfo``, None where it gives none."""
        if "cacheir_plugin_info" not in plugin.implementations:
            return None
        answer = None
        with self._blame(plugin, "cacheir_plugin_info raised"):
            answer = _call(plugin, "cacheir_plugin_info", {})
        return answer

    def observe(self, hook: str, **arguments: Any) -> None:
        """Call every implementation of an observing hook. One that raises is reported and passed over."""
        for plugin in self.implementers(hook):
            with self._blame(plugin, f"{hook} raised", is_passing=True):
                _call(plugin, hook, arguments)

    def select(self, hook: str, **arguments: Any) -> tuple[Any, Plugin] | None:
        """The first answer that is not None, and whose it is. One that raises is reported and passed over."""
        for plugin in self.implementers(hook):
            answer = None
            with self._blame(plugin, f"{hook} raised", is_passing=True):
                answer = _call(plugin, hook, arguments)
            if answer is not None:
                return answer, plugin
        return None

    def blame(self, plugin: Plugin, problem: Problem, state: str = "failed") -> None:
        """Note a problem, report the plugin's first one, and raise ``PluginLoadError`` in strict mode."""
        plugin.state = state if plugin.state in ("found", "loaded") else plugin.state
        self._note(plugin, problem)

    def _note(self, plugin: Plugin, problem: Problem) -> None:
        if problem not in plugin.problems:  # an observer may do the same thing wrong at every request
            plugin.problems.append(problem)
        self._tell(plugin, problem)

    def _tell(self, plugin: Plugin, problem: Problem) -> None:
        if self.options.strict and not problem.is_note:
            kind = PluginConflictError if problem.is_conflict else PluginLoadError
            raise kind(
                f"plugin {plugin.label}: {problem.sentence}",
                hint=problem.hint or f"leave it out with CACHEIR_BLOCK_PLUGINS={plugin.name}",
            ) from problem.error
        if plugin.name not in self.reported:
            self.reported.add(plugin.name)
            self.report(plugin, problem.sentence)

    def _import(self, plugin: Plugin) -> None:
        before = set(sys.modules)
        start = time.perf_counter()
        limit = None if plugin.name == CORE else self.options.seconds_each
        with self._blame(plugin, "", limit=limit):
            # Imported late: pluggy and inspect take a tenth of the time that `cacheir --help` has.
            from cacheir.plugins.check_module import check_hooks, check_version

            module = import_target(plugin.target)
            check_version(module)
            check_hooks(module)
            plugin.implementations = self._register(plugin.name, module)
            plugin.state = "loaded"
        plugin.seconds = time.perf_counter() - start
        plugin.heavy = tuple(name for name in HEAVY if name in sys.modules and name not in before)
        # Core is no plugin that could be left out; where its import takes long, the machine is slow.
        if plugin.seconds > SLOW_SECONDS and not plugin.problems and plugin.name != CORE:
            sentence = f"took {plugin.seconds:.1f} s to import, and every command waits for it"
            # A note, since a machine that is busy with something else makes everyone slow.
            hint = "its module does work, or imports something, that can wait"
            self._note(plugin, Problem(sentence, hint=hint, is_note=True))

    def _register(self, name: str, module: Any) -> dict[str, Any]:
        """Hand a checked module to pluggy; gives its implementations by hook."""
        import pluggy

        from cacheir.plugins import hookspecs

        if self._manager is None:
            self._manager = pluggy.PluginManager("cacheir")
            self._manager.add_hookspecs(hookspecs)
        self._manager.register(module, name=name)
        callers = self._manager.get_hookcallers(module) or []
        return {
            caller.name: implementation
            for caller in callers
            for implementation in caller.get_hookimpls()
            if implementation.plugin is module and caller.spec is not None
        }

    def _ask(self, plugin: Plugin, hook: str) -> list[Contribution[Any]]:
        from cacheir.plugins.kinds import check_contribution

        found: list[Contribution[Any]] = []
        with self._blame(plugin, f"{hook} raised"):
            answer = _call(plugin, hook, {})
            if isinstance(answer, (str, bytes)) or not isinstance(answer, Iterable):
                raise PluginError(f"{hook} gave {type(answer).__name__}; return a list of records, or yield them")
            for spec in answer:
                check_contribution(hook, spec)
                found.append(Contribution(spec, plugin))
        return found

    @contextmanager
    def _blame(
        self, plugin: Plugin, doing: str, limit: float | None = None, is_passing: bool = False
    ) -> Iterator[None]:
        """Run a plugin's code; whatever it does wrong becomes a problem of that plugin."""
        interrupts = Interrupts()
        printed = None
        failure: BaseException | None = None
        # Other threads may be printing while this one calls an observer: only the main thread swaps the stream.
        clean = self.options.keep_stdout_clean and threading.current_thread() is threading.main_thread()
        try:
            with interrupts.watch(), time_limit(limit):
                if clean:
                    with clean_stdout() as printed:
                        yield
                else:
                    yield
        except GeneratorExit:
            raise
        # A plugin may raise anything, SystemExit and KeyboardInterrupt included; only a pressed Ctrl-C is not its own.
        except BaseException as error:
            if interrupts.pressed:
                raise
            failure = error
        if failure is not None:
            problem = replace(_describe(failure, doing), is_passing=is_passing)
            self.blame(plugin, problem, "loaded" if is_passing else _state_after(failure))
        elif printed is not None and printed.text.strip():
            text = printed.text.strip()
            shown = text if len(text) <= 60 else text[:57] + "..."
            hint = "a plugin must not print; use logging"
            problem = Problem(f"printed {shown!r} on standard output", hint=hint, is_passing=is_passing)
            self._note(plugin, problem)


def discover(options: HostOptions) -> dict[str, Plugin]:
    """The plugins by name: core, the installed ones, those of ``options.modules``; imports none of them.

    ``UsageError`` for a name in ``options.allow`` that is not among them.
    """
    from cacheir import __version__

    found = {CORE: Plugin(CORE, "cacheir.builtin", "cacheir-core", __version__)}
    for point in entry_points() if options.points is None else options.points:
        _add(found, Plugin(point.name, point.target, point.distribution, point.version, point.folder))
    for entry in options.modules:
        name, _, target = entry.rpartition("=")
        if any(plugin.target == target for plugin in found.values()):
            continue  # installed as well
        _add(found, Plugin(name or target, target, "CACHEIR_PLUGIN_MODULES"))
    _check_allowed(options, found)
    for plugin in found.values():
        chosen = options.allow is None or plugin.name in options.allow
        if plugin.name != CORE and (not chosen or plugin.name in options.block):
            plugin.state = "blocked"
            plugin.problems.clear()
    return found


def print_report(plugin: Plugin, sentence: str) -> None:
    """The line about a bad plugin on stderr."""
    print(report_line(plugin, sentence), file=sys.stderr, flush=True)


def report_line(plugin: Plugin, sentence: str) -> str:
    """One line: which plugin, what is wrong, who explains it."""
    verb = " left out" if plugin.state in ("failed", "incompatible") and not plugin.implementations else ""
    text = " ".join(sentence.split())
    return f"cacheir: plugin {plugin.label}{verb}: {text}  [cacheir plugins doctor {plugin.name}]"


def _add(found: dict[str, Plugin], plugin: Plugin) -> None:
    first = found.get(plugin.name)
    if first is None:
        found[plugin.name] = plugin
    elif plugin.target == first.target:
        found[plugin.name] = plugin  # core, which is known without being installed, and here with its metadata
    else:
        plugin.state = "failed"
        plugin.problems.append(
            Problem(
                f"the name {plugin.name!r} is taken by {first.distribution} {first.version}".rstrip(),
                hint=f"uninstall one of {first.distribution} and {plugin.distribution}",
            )
        )
        plugin.name = f"{plugin.name}@{plugin.distribution}"
        found[plugin.name] = plugin


def _check_allowed(options: HostOptions, found: dict[str, Plugin]) -> None:
    for name in options.allow or ():
        if name not in found:
            close = get_close_matches(name, found, n=1)
            raise UsageError(
                f"CACHEIR_PLUGINS names {name!r}, and no such plugin is installed"
                + (f"; did you mean {close[0]!r}?" if close else ""),
                hint=f"installed: {', '.join(sorted(found))}",
            )


def _call(plugin: Plugin, hook: str, arguments: dict[str, Any]) -> Any:
    implementation = plugin.implementations[hook]
    return implementation.function(**{name: arguments[name] for name in implementation.argnames})


def _describe(error: BaseException, doing: str) -> Problem:
    """The problem that an exception is; ``doing`` begins the sentence, "" while the plugin was being imported."""
    text = fault_text(error) or "no message"
    if isinstance(error, SystemExit):
        text = f"called sys.exit({error.code!r})"
    elif isinstance(error, TookTooLong):
        text = f"{text} to import"
    elif not isinstance(error, PluginError):
        from cacheir.plugins.requirement import unmet_by

        text = f"{doing} {type(error).__name__}: {text}".strip()
        text += f" ({reason})" if (reason := unmet_by(error)) else ""
    return Problem(text, hint=getattr(error, "hint", None) or "", error=error)


def _state_after(error: BaseException) -> str:
    if isinstance(error, HookApiMismatch):
        return "incompatible"
    return "slow" if isinstance(error, TookTooLong) else "failed"
