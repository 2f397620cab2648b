"""Checks that every plugin must pass. Subclass ``PluginTests`` and set ``plugin``::

class TestPlugin(PluginTests):
    plugin = "cacheir_drop_reshape"
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, ClassVar

from cacheir.plugins import hookspecs
from cacheir.plugins.check_module import check_hooks, check_version, hook_specs
from cacheir.plugins.doctor import references
from cacheir.plugins.host import HEAVY
from cacheir.plugins.kinds import KINDS, check_contribution
from cacheir.plugins.ref import import_target
from cacheir.testing.hosts import plugin_host

# CPU time that importing a plugin module may take, milliseconds. One that imports only cacheir.plugins takes under 2.
IMPORT_MS = 50.0

# Runs in a fresh interpreter; what cacheir.plugins needs itself is imported first and not counted.
_PROBE = """
import json, sys, time
import cacheir.plugins, cacheir.plugins.hookspecs
before = set(sys.modules)
start = time.process_time()
import importlib
importlib.import_module(sys.argv[1])
spent = (time.process_time() - start) * 1000
print("\\n" + json.dumps({"ms": spent, "new": sorted(set(sys.modules) - before)}))
"""


class PluginTests:
    """What holds for every plugin. ``plugin`` is its entry point's target: a module, or ``module:attribute``."""

    plugin: ClassVar[str]

    def test_imports_cheaply(self) -> None:
        """A plugin module is imported by every command of every user."""
        fastest = min((self._import_alone() for _ in range(3)), key=lambda report: float(report["ms"]))
        heavy = sorted(set(fastest["new"]) & set(HEAVY))
        assert not heavy, (
            f"importing {self._module} imports {', '.join(heavy)}: move what needs them to another module and name it"
            ' by a "package.module:attribute" string'
        )
        assert fastest["ms"] <= IMPORT_MS, (
            f"importing {self._module} takes {fastest['ms']:.0f} ms of CPU time, and may take {IMPORT_MS:.0f}:"
            " do the work in a function that is called when it is needed"
        )

    def test_prints_nothing(self) -> None:
        """Standard output belongs to the command that runs."""
        printed = str(self._import_alone()["printed"]).strip()
        assert not printed, f"importing {self._module} prints {printed[:60]!r}: use logging, or stderr in a command"

    def test_works_with_this_hook_api(self) -> None:
        """Every hook exists, is marked, and asks for arguments that it is given."""
        module = import_target(self.plugin)
        check_version(module)
        check_hooks(module)
        assert self._hooks(), f"{self.plugin} implements no hook: mark its functions with @cacheir.plugins.hookimpl"

    def test_hooks_give_records(self) -> None:
        """Every register hook gives the records that it is asked for; records check themselves when they are made."""
        for hook in self._register_hooks():
            for spec in self._records(hook):
                check_contribution(hook, spec)

    def test_hooks_give_the_same_twice(self) -> None:
        """A register hook is data; calling it must not change anything, itself included."""
        for hook in self._register_hooks():
            first, second = self._records(hook), self._records(hook)
            assert first == second, (
                f"{hook} gave other records at its second call: make them from constants, and name functions that are"
                " defined at the top of a module"
            )

    def test_every_reference_resolves(self) -> None:
        """What a record names by string is there. Needs the plugin's extras, if it has any, to be installed."""
        missing = []
        for hook in self._register_hooks():
            for spec in self._records(hook):
                for field, reference in references(spec):
                    try:
                        import_target(reference)
                    # Importing runs whatever the module holds; all faults are listed together.
                    except Exception as error:  # noqa: BLE001
                        missing.append(f"{spec.name}.{field}: {reference}: {type(error).__name__}: {error}")
        assert not missing, "references that do not resolve; correct the string or what it names:\n" + "\n".join(
            missing
        )

    def test_clashes_with_nothing_in_core(self) -> None:
        """Every name is its own: the host is strict and raises where core has it already."""
        installation = plugin_host(self.plugin)
        for registry in installation.registries():
            registry.contributions  # noqa: B018  asks the plugins
        loaded = {plugin.target for plugin in installation.plugins if plugin.state == "loaded"}
        assert self.plugin in loaded, f"{self.plugin} was not loaded"

    @property
    def _module(self) -> str:
        return self.plugin.partition(":")[0]

    def _import_alone(self) -> dict[str, Any]:
        """Import the module in a fresh interpreter: CPU milliseconds, new modules, what it printed."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-c", _PROBE, self._module]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{self._module} cannot be imported in a fresh interpreter:\n{done.stderr}"
        printed, _, report = done.stdout.rstrip("\n").rpartition("\n")
        return {**json.loads(report), "printed": printed}

    def _hooks(self) -> list[str]:
        module = import_target(self.plugin)
        names = []
        for name in dir(module):
            marks = getattr(getattr(module, name, None), "cacheir_impl", None)
            if isinstance(marks, dict) and (marks.get("specname") or name) in hook_specs():
                names.append(name)
        return names

    def _register_hooks(self) -> list[str]:
        known = {kind.hook_name for kind in KINDS if hasattr(hookspecs, kind.hook_name)}
        return [name for name in self._hooks() if name in known]

    def _records(self, hook: str) -> list[Any]:
        return list(getattr(import_target(self.plugin), hook)())
