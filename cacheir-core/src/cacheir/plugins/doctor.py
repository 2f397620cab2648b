"""``cacheir plugins doctor``: what is right and what is wrong with each plugin, as data."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from cacheir import settings
from cacheir.errors import CacheIRError
from cacheir.plugins.distributions import Distribution, installed, requirements
from cacheir.plugins.fault_text import fault_text
from cacheir.plugins.guard import TookTooLong, time_limit
from cacheir.plugins.host import Contribution
from cacheir.plugins.installation import Installation
from cacheir.plugins.inventory import idle_backends
from cacheir.plugins.plugin import Plugin, Problem
from cacheir.plugins.ref import import_target, is_reference, resolve
from cacheir.plugins.requirement import how_to_install, install_command, parse_requirement, unmet, unmet_requirements
from cacheir.plugins.specs import CheckResult, KernelSpec

CHECK_SECONDS = 5.0


@dataclass(frozen=True)
class Finding:
    """One line. ``status`` is ``ok``, ``note``, ``idle`` or ``FAIL``; ``detail`` holds a traceback."""

    status: str
    text: str
    hint: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Section:
    """The findings about one plugin, or about the installation as a whole."""

    title: str
    findings: tuple[Finding, ...]


def examine(installation: Installation, name: str | None = None) -> list[Section]:
    """Look at everything, or at the plugin ``name`` (``UsageError`` where there is none).

    Imports what every reference names and runs every check, each at most ``CHECK_SECONDS``.
    """
    for registry in installation.registries():
        registry.contributions  # noqa: B018  asks the plugins, so that clashes and raising hooks are known
    chosen = [plugin for plugin in installation.plugins if name is None or name in _names(plugin)]
    if not chosen:
        raise _unknown_plugin(installation, str(name))
    sections = [_about_plugin(installation, plugin, name is not None) for plugin in chosen]
    if name is None:
        sections.append(Section("environment", tuple(_environment(installation))))
    return sections


def failures(sections: list[Section]) -> int:
    """How many findings are faults."""
    return sum(finding.status == "FAIL" for section in sections for finding in section.findings)


def references(spec: Any) -> Iterator[tuple[str, str]]:
    """(field, reference) for every reference that a record holds."""
    for item in fields(spec):
        held = getattr(spec, item.name)
        annotation = str(item.type)
        if annotation.startswith(("Lazy[", "Reference")) and isinstance(held, str):
            yield item.name, held
        elif annotation.startswith("tuple[Lazy["):
            yield from ((item.name, each) for each in held if isinstance(each, str))


def _about_plugin(installation: Installation, plugin: Plugin, closely: bool) -> Section:
    title = f"{plugin.name} {plugin.version}".strip()
    if plugin.state == "blocked":
        return Section(title, (Finding("note", "left out by CACHEIR_PLUGINS or CACHEIR_BLOCK_PLUGINS"),))
    findings = [_problem(plugin, problem, closely) for problem in plugin.problems]
    if plugin.implementations:
        findings[:0] = [_loaded(plugin)]
        findings += _requirements(plugin)
        findings += _references(installation, plugin, closely)
        findings += _backends(installation, plugin)
        findings += _pass_targets(installation, plugin)
        findings += _checks(installation, plugin)
    return Section(title, tuple(findings))


def _loaded(plugin: Plugin) -> Finding:
    text = f"loaded in {plugin.seconds * 1000:.1f} ms"
    if plugin.heavy:
        hint = 'name what needs them by a "package.module:attribute" string'
        return Finding("FAIL", f"{text}, and imports {', '.join(plugin.heavy)} for everybody", hint)
    return Finding("ok", f"{text}, imports nothing heavy")


def _problem(plugin: Plugin, problem: Problem, closely: bool) -> Finding:
    where = _place(problem.error) if problem.error else ""
    text = problem.sentence + (f"\nat {where}" if where else "")
    hint = problem.hint or f"update it, or leave it out with CACHEIR_BLOCK_PLUGINS={plugin.name}"
    detail = "".join(traceback.format_exception(problem.error)) if closely and problem.error else ""
    return Finding("note" if problem.is_note else "FAIL", text, hint, detail)


def _place(error: BaseException) -> str:
    """File and line of the innermost frame that is no machinery; files are named from their package on."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    for frame in reversed(frames):
        parts = frame.filename.replace(os.sep, "/").split("/")
        if "cacheir/plugins" not in frame.filename.replace(os.sep, "/"):
            return f"{'/'.join(parts[-2:])}:{frame.lineno}"
    return ""


def _requirements(plugin: Plugin) -> Iterator[Finding]:
    if not plugin.folder:
        return
    found = installed()
    for line in requirements(Distribution(plugin.distribution, plugin.version, plugin.folder)):
        requirement = parse_requirement(line)
        sentence = unmet(requirement, found) if requirement else ""
        if requirement is None or not sentence:
            continue
        install = install_command([requirement])
        if not requirement.extra:
            yield Finding("FAIL", sentence, install)
        elif "found" in sentence:
            yield Finding("note", f"extra {requirement.extra!r} {sentence}", install)


def _references(installation: Installation, plugin: Plugin, closely: bool) -> Iterator[Finding]:
    idle = idle_backends(installation, plugin)
    resolved = 0
    waiting: dict[str, int] = {}
    for label, contribution, reference in _all_references(installation, plugin):
        try:
            import_target(reference)
            resolved += 1
        # Importing runs whatever the module holds; each fault is a finding.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            reason = _waits_for(installation, contribution, error, idle)
            if reason:
                waiting[reason] = waiting.get(reason, 0) + 1
                continue
            missing = unmet_requirements(error)
            text = f"{label}: {reference} cannot be loaded: "
            text += "; ".join(map(unmet, missing)) if missing else f"{type(error).__name__}: {fault_text(error)}"
            detail = "".join(traceback.format_exception(error)) if closely else ""
            yield Finding("FAIL", text, how_to_install(error), detail)
    for reason, count in waiting.items():
        yield Finding("idle", f"{count} {'reference' if count == 1 else 'references'}: {reason}")
    if resolved:
        yield Finding("ok", f"{resolved} {'reference resolves' if resolved == 1 else 'references resolve'}")


def _waits_for(
    installation: Installation, contribution: Contribution[Any], error: BaseException, idle: Mapping[str, str]
) -> str:
    """Why a reference need not resolve here: its backend cannot run, or it needs an extra; "" where it must."""
    if isinstance(contribution.spec, KernelSpec):
        for name, reason in idle.items():
            if contribution.spec.target in installation.backends[name].targets:
                return reason
    missing = unmet_requirements(error)
    if missing and all(requirement.extra for requirement in missing):
        return "; ".join(map(unmet, missing)) + f"; {how_to_install(error)}"
    return ""


def _all_references(installation: Installation, plugin: Plugin) -> Iterator[tuple[str, Contribution[Any], str]]:
    for registry in installation.registries():
        for contribution in registry.contributions:
            if contribution.plugin is plugin:
                for field_name, reference in references(contribution.spec):
                    if is_reference(reference):
                        yield f"{registry.kind.name} {contribution.spec.name!r} {field_name}", contribution, reference


def _backends(installation: Installation, plugin: Plugin) -> Iterator[Finding]:
    idle = idle_backends(installation, plugin)
    for contribution in installation.backends.contributions:
        if contribution.plugin is plugin:
            name = contribution.spec.name
            yield Finding("idle", f"backend {name}: {idle[name]}") if name in idle else Finding("ok", f"backend {name}")


def _pass_targets(installation: Installation, plugin: Plugin) -> Iterator[Finding]:
    """Passes that never run: they are for a target that no backend has, nor anything under it."""
    known = sorted({name for spec in installation.backends for name in (spec.name, *spec.targets)})
    for contribution in installation.passes.contributions:
        if contribution.plugin is not plugin:
            continue
        for target in contribution.spec.targets:
            if not any(name == target or name.startswith(f"{target}.") for name in known):
                close = get_close_matches(target, known, n=1, cutoff=0.7)
                hint = f"did you mean {close[0]!r}?" if close else f"targets: {', '.join(known) or 'none'}"
                yield Finding("note", f"pass {contribution.spec.name!r} is for {target!r}, and no backend has it", hint)


def _checks(installation: Installation, plugin: Plugin) -> Iterator[Finding]:
    for contribution in installation.checks.contributions:
        if contribution.plugin is plugin:
            yield _check(contribution.spec)


def _check(spec: Any) -> Finding:
    try:
        with time_limit(CHECK_SECONDS):
            result = resolve(spec.run)()
    except CacheIRError as error:
        return Finding("FAIL", f"check {spec.name}: {error}", error.hint or "")
    # A check is a plugin's code; whatever it does is a finding.
    except (Exception, SystemExit, TookTooLong) as error:  # noqa: BLE001
        return Finding(
            "FAIL",
            f"check {spec.name} raised {type(error).__name__}: {fault_text(error)}",
            "the check itself is at fault",
        )
    if not isinstance(result, CheckResult):
        return Finding("FAIL", f"check {spec.name} gave {type(result).__name__}, not a CheckResult")
    status = "FAIL" if not result.ok else "idle" if result.idle else "ok"
    return Finding(status, f"{spec.name}: {result.detail}", "" if status == "ok" else result.hint)


def _environment(installation: Installation) -> Iterator[Finding]:
    clashes = [
        problem for plugin in installation.plugins for problem in plugin.problems if "is left out" in problem.sentence
    ]
    if not clashes:
        yield Finding("ok", "no name is registered twice")
    known = [setting.name for setting in settings.SETTINGS]
    for variable in sorted(name for name in os.environ if name.startswith("CACHEIR_") and name not in known):
        close = get_close_matches(variable, known, n=1, cutoff=0.85)
        if close:
            yield Finding("FAIL", f"{variable} is set and no such variable is read", f"did you mean {close[0]}?")
    names = {plugin.name for plugin in installation.plugins}
    for name in installation.host.options.block:
        if name not in names:
            yield Finding("note", f"CACHEIR_BLOCK_PLUGINS names {name!r}, and no such plugin is installed")
    yield _cache_folder()


def _cache_folder() -> Finding:
    folder = settings.cache_dir()
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if there.is_dir() and os.access(there, os.W_OK):
        return Finding("ok", f"the cache folder can be written: {folder}")
    return Finding("FAIL", f"the cache folder cannot be written: {folder}", "set CACHEIR_CACHE_DIR to one that can")


def _names(plugin: Plugin) -> tuple[str, str]:
    return plugin.name, plugin.distribution


def _unknown_plugin(installation: Installation, name: str) -> CacheIRError:
    from cacheir.errors import UsageError

    names = [plugin.name for plugin in installation.plugins]
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names)}"
    return UsageError(f"there is no plugin {name!r}", hint=hint)
