"""The server plugin says who it is, and claims no command that it does not have."""

from __future__ import annotations

import subprocess
import sys

from cacheir_server import plugin


def test_the_summary_says_that_there_is_no_command_yet() -> None:
    info = plugin.cacheir_plugin_info()
    assert info.title == "CacheIR server"
    assert "no command" in info.summary
    assert not hasattr(plugin, "cacheir_register_commands")
    assert not hasattr(plugin, "cacheir_register_routes")


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    code = "import sys, cacheir_server.plugin; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "cacheir_server" in loaded
    assert not {"numpy", "fastapi", "pydantic", "typer", "jinja2"} & set(loaded)
