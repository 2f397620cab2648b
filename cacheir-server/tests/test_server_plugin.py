"""The server plugin says who it is, and listing its command imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

from cacheir_server import plugin


def test_it_brings_the_command_serve() -> None:
    assert plugin.cacheir_plugin_info().title == "CacheIR server"
    (command,) = plugin.cacheir_register_commands()
    assert (command.name, command.app) == ("serve", "cacheir_server.command:app")


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    code = (
        "import sys, cacheir_server.plugin as plugin; list(plugin.cacheir_register_commands()); "
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "cacheir_server" in loaded
    assert not {"numpy", "fastapi", "pydantic", "typer", "jinja2", "uvicorn"} & set(loaded)
