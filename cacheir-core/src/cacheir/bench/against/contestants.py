"""Who takes part in a comparison: our engine, each peer in each of its settings, and the memory probe."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cacheir.errors import BackendError, PluginError, UsageError
from cacheir.plugins.installation import Installation
from cacheir.plugins.ref import resolve
from cacheir.plugins.specs import PeerSpec

OURS = "cacheir"
_CHILDREN = Path(__file__).with_name("children")


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A command that serves one engine in one setting, and what is added to its environment."""

    engine: str
    setting: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """``llama.cpp, flash attention``, or the engine alone where it has one setting."""
        return f"{self.engine}, {self.setting}" if self.setting else self.engine


def child_command(module: str, options: Mapping[str, Any], python: str = "") -> list[str]:
    """The command that serves ``module`` of the folder ``children``, in the environment of ``python``."""
    return [python or sys.executable, "-u", str(_CHILDREN / "serve.py"), module, json.dumps(dict(options))]


def ours(model: Path, *, backend: str, threads: int, precise: bool = False) -> Contestant:
    """Our engine on ``model``."""
    options = {"model": str(model), "backend": backend, "threads": threads, "precise": precise}
    return Contestant(engine=OURS, setting="", command=tuple(child_command("timed_cacheir", options)))


def our_answers(model: Path, *, backend: str, threads: int, precise: bool = False, kv_dtype: str = "") -> Contestant:
    """Our engine on ``model``, for cells of whole answers."""
    options = {"model": str(model), "backend": backend, "threads": threads, "precise": precise, "kv_dtype": kv_dtype}
    return Contestant(engine=OURS, setting="", command=tuple(child_command("timed_answers", options)))


def memory_probe(threads: int) -> Contestant:
    """What reads memory beside the engines."""
    return Contestant(engine="memory", setting="", command=tuple(child_command("timed_memory", {"threads": threads})))


def peer_contestants(
    installation: Installation,
    names: Sequence[str],
    *,
    model: Path,
    threads: int,
    pythons: Mapping[str, str],
    models: Mapping[str, str],
    settings: Mapping[str, str] | None = None,
) -> tuple[list[Contestant], dict[str, str]]:
    """The settings of each peer of ``names``, and for those that cannot run the reason why.

    ``pythons`` names the interpreter of the environment that a peer is installed in, ``models`` what it opens instead
    of ``model``, ``settings`` the one setting that it runs in. UsageError for a name that no plugin registers, and for
    a setting that its peer has not.
    """
    settings = settings or {}
    options_of = (("--peer-python", pythons), ("--peer-model", models), ("--peer-setting", settings))
    for option, given in options_of:
        for name in given:
            if name not in names:
                raise UsageError(f"{option} names {name!r}, which is not compared with", hint=f"--against {name}")
    found: list[Contestant] = []
    missing: dict[str, str] = {}
    for name in dict.fromkeys(names):
        spec = installation.peers[name]
        # What is in another environment cannot be looked for from this one: the child says what is wrong.
        reason = None if name in pythons else resolve(spec.probe)()
        if reason is not None:
            missing[name] = str(reason)
            continue
        options = {
            "model": models.get(name, str(model)),
            "threads": threads,
            "python": pythons.get(name, ""),
        }
        try:
            found += _chosen(_settings(spec, options), name, settings.get(name))
        except BackendError as error:
            missing[name] = f"{error}{f' ({error.hint})' if error.hint else ''}"
    return found, missing


def _chosen(found: list[Contestant], name: str, setting: str | None) -> list[Contestant]:
    """Those in the setting that was asked for, all where none was."""
    if setting is None:
        return found
    chosen = [one for one in found if one.setting == setting]
    if not chosen:
        named = ", ".join(one.setting for one in found if one.setting)
        raise UsageError(
            f"{name} has no setting {setting!r}",
            hint=f"it has {named}" if named else "it runs in one way alone: leave --peer-setting out",
        )
    return chosen


def _settings(spec: PeerSpec, options: Mapping[str, Any]) -> list[Contestant]:
    try:
        return [
            Contestant(
                engine=spec.name,
                setting=str(given["setting"]),
                command=tuple(map(str, given["command"])),
                environment={str(key): str(value) for key, value in given.get("environment", {}).items()},
            )
            for given in resolve(spec.run)(dict(options))
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise PluginError(
            f"peer {spec.name!r}: run(options) must give mappings with setting and command: {error}"
        ) from error
