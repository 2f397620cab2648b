"""Variables: every one declared, a bad value an error that names the variable and what it is for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cacheir import settings
from cacheir.errors import UsageError


@pytest.mark.parametrize(
    "text, on", [("1", True), ("true", True), ("Yes", True), ("0", False), ("", False), ("off", False)]
)
def test_flags(text: str, on: bool) -> None:
    assert settings.flag("CACHEIR_STRICT_PLUGINS", {"CACHEIR_STRICT_PLUGINS": text}) is on
    assert settings.flag("CACHEIR_STRICT_PLUGINS", {}) is False


def test_a_bad_flag() -> None:
    with pytest.raises(UsageError, match="CACHEIR_STRICT_PLUGINS must be 1 or 0, not 'maybe'") as caught:
        settings.flag("CACHEIR_STRICT_PLUGINS", {"CACHEIR_STRICT_PLUGINS": "maybe"})
    assert "any problem with a plugin is an error" in str(caught.value.hint)


def test_names() -> None:
    assert settings.names("CACHEIR_PLUGINS", {}) is None
    assert settings.names("CACHEIR_PLUGINS", {"CACHEIR_PLUGINS": ""}) == ()
    assert settings.names("CACHEIR_PLUGINS", {"CACHEIR_PLUGINS": " a, b,,c "}) == ("a", "b", "c")


def test_a_name() -> None:
    assert settings.name("CACHEIR_BACKEND", {}) == settings.name("CACHEIR_BACKEND", {"CACHEIR_BACKEND": " "}) == "auto"
    assert settings.name("CACHEIR_BACKEND", {"CACHEIR_BACKEND": " cuda "}) == "cuda"


@pytest.mark.parametrize("text", ["-1", "two", "1.5", "", "٣"])
def test_a_bad_count(text: str) -> None:
    assert settings.count("CACHEIR_THREADS", {"CACHEIR_THREADS": "12"}) == 12
    with pytest.raises(UsageError, match="CACHEIR_THREADS must be a whole number"):
        settings.count("CACHEIR_THREADS", {"CACHEIR_THREADS": text})


@pytest.mark.parametrize("text", ["0", "-3", "nan", "inf", "big"])
def test_bad_gigabytes(text: str) -> None:
    assert settings.gigabytes("CACHEIR_CACHE_LIMIT_GB", {}) == 20
    with pytest.raises(UsageError, match="CACHEIR_CACHE_LIMIT_GB must be a number of gigabytes"):
        settings.gigabytes("CACHEIR_CACHE_LIMIT_GB", {"CACHEIR_CACHE_LIMIT_GB": text})


def test_the_cache_folder() -> None:
    def at(platform: str, **environ: str) -> str:
        return settings.cache_dir(environ, platform).as_posix()

    assert at("linux", HOME="/h") == "/h/.cache/cacheir"
    assert at("linux", HOME="/h", XDG_CACHE_HOME="/x") == "/x/cacheir"
    assert at("linux", HOME="/h", XDG_CACHE_HOME="relative") == "/h/.cache/cacheir"
    assert at("darwin", HOME="/h") == "/h/Library/Caches/cacheir"
    assert at("win32", USERPROFILE="/u", LOCALAPPDATA="/u/local") == "/u/local/cacheir/Cache"
    assert at("linux", HOME="/h", CACHEIR_CACHE_DIR="/c") == "/c"
    for bad in ("", "relative/path"):
        with pytest.raises(UsageError, match="CACHEIR_CACHE_DIR must be an absolute path"):
            at("linux", HOME="/h", CACHEIR_CACHE_DIR=bad)


def test_a_variable_that_is_not_declared() -> None:
    with pytest.raises(KeyError, match="CACHEIR_NOT_THERE"):
        settings.flag("CACHEIR_NOT_THERE", {})


def test_every_variable_in_the_code_is_declared() -> None:
    declared = {setting.name for setting in settings.SETTINGS}
    source = Path(settings.__file__).parent
    for path in source.rglob("*.py"):
        for name in re.findall(r"\"(CACHEIR_[A-Z_]+)\"", path.read_text(encoding="utf-8")):
            assert name in declared | {"CACHEIR_HOOK_API", "CACHEIR_"}, (
                f"{path.name} reads {name}, which is not declared"
            )
