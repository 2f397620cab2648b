"""Sessions that check the workspace, each in its own virtual environment: `nox -l` lists them.

Siblings are built from this tree into .nox/wheels once in a run for each Python, and installed from there: an index is
never asked for a name that begins with cacheir, and what is tested is what a wheel holds.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
PACKAGES = ("cacheir-core", "cacheir-cpu", "cacheir-importers", "cacheir-native", "cacheir-cuda", "cacheir-server")
EXAMPLES = tuple(sorted(path.name for path in (ROOT / "plugins-example").iterdir() if path.is_dir()))
CONSTRAINTS = ("-c", str(ROOT / "constraints.txt"))
WHEELS: dict[tuple[str, str], str] = {}  # what this run has built: a distribution and a Python to the wheel's path

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["ci"]
nox.options.default_venv_backend = "virtualenv"
nox.options.error_on_missing_interpreters = True


def folder(distribution: str) -> Path:
    """The folder of a package or an example."""
    return ROOT / distribution if distribution in PACKAGES else ROOT / "plugins-example" / distribution


def declared(distribution: str) -> list[str]:
    """What a distribution depends on, by its pyproject.toml, with what its extras add."""
    project = nox.project.load_toml(folder(distribution) / "pyproject.toml")["project"]
    return [*project["dependencies"], *(line for lines in project["optional-dependencies"].values() for line in lines)]


def siblings(distribution: str, *extras: str) -> list[str]:
    """The packages of this tree that a distribution declares, in its extras too; itself left out, core first."""
    project = nox.project.load_toml(folder(distribution) / "pyproject.toml")["project"]
    lines = [*project["dependencies"]]
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    return [name for name in PACKAGES if name != distribution and any(line.startswith(name) for line in lines)]


def wheel(session: nox.Session, distribution: str) -> str:
    """Build the wheel of a package or an example by the session's Python, once in a run; return its path.

    The wheel of cacheir-native holds an extension, which fits the Python that built it and no other.
    """
    python = str(session.python or "default")
    if (distribution, python) not in WHEELS:
        target = ROOT / ".nox" / "wheels" / python / distribution
        shutil.rmtree(target, ignore_errors=True)
        session.run("python", "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(target), str(folder(distribution)))
        (path,) = target.glob("*.whl")
        WHEELS[distribution, python] = str(path)
    return WHEELS[distribution, python]


def install(session: nox.Session, distribution: str, extra: str = "") -> None:
    """Install a distribution from its wheel with the siblings it declares, then run the sibling guard."""
    targets = [wheel(session, name) for name in siblings(distribution)] + [wheel(session, distribution) + extra]
    session.install("-q", *CONSTRAINTS, *targets)
    session.run("python", str(ROOT / ".ci" / "sibling_guard.py"))
    session.run("python", "-m", "pip", "check", silent=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Style and formatting (ruff) of the whole tree."""
    session.install("-q", *CONSTRAINTS, "ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Types (mypy --strict) of every package's src."""
    session.install("-q", *CONSTRAINTS, "mypy", *(wheel(session, name) for name in PACKAGES))
    session.run("mypy", *(f"{name}/src" for name in PACKAGES))


@nox.session
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def tests(session: nox.Session, package: str) -> None:
    """A package's wheel, alone with what it declares: its plugin module loads, and then its own tests pass."""
    install(session, package)
    plugin = "cacheir.builtin" if package == "cacheir-core" else package.replace("-", "_") + ".plugin"
    session.run("python", "-c", f"import {plugin} as plugin; print('loaded:', plugin.__doc__.splitlines()[0])")
    install(session, package, "[testing]" if package == "cacheir-core" else "[test]")
    # pytest ends with 5 when it found no test, which fails the session like any other status but 0.
    session.run("pytest", "-q", "-m", "not slow", f"{package}/tests", *session.posargs)


@nox.session
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def lowest(session: nox.Session, package: str) -> None:
    """A package's own tests with the lowest version of each dependency that it declares, those of its extras too."""
    pins = session.create_tmp() + "/lowest.txt"
    lines = {line for name in ("cacheir-core", package) for line in declared(name) if not line.startswith("cacheir")}
    Path(pins).write_text("".join(line.replace(">=", "==") + "\n" for line in sorted(lines)))
    extra = "[testing]" if package == "cacheir-core" else "[test]"
    targets = [wheel(session, name) for name in siblings(package)] + [wheel(session, package) + extra]
    session.install("-q", "-c", pins, *targets)
    # What an old version says about a newer one of what it depends on in turn is no fault of this tree.
    session.run("pytest", "-q", "-W", "default", "-m", "not slow", f"{package}/tests", *session.posargs)


@nox.session
def metapackage(session: nox.Session) -> None:
    """The metapackage from the root: it brings core, cpu and importers from this tree, and the command answers."""
    session.install("-q", *CONSTRAINTS, ".")
    session.run("python", str(ROOT / ".ci" / "sibling_guard.py"))
    session.run("cacheir", "--help")


@nox.session
@nox.parametrize("example", EXAMPLES, ids=EXAMPLES)
def examples(session: nox.Session, example: str) -> None:
    """An example plugin from its wheel: found, sound, and its tests pass; the pass beside cacheir-core alone."""
    install(session, example)
    if example == "cacheir-drop-reshape":
        session.run("python", str(ROOT / ".ci" / "check_example.py"), example.removeprefix("cacheir-"))
    name = example.removeprefix("cacheir-")
    targets = [*(wheel(session, each) for each in siblings(example, "test")), wheel(session, example) + "[test]"]
    session.install("-q", *CONSTRAINTS, *targets)
    session.run("cacheir", "plugins", "doctor", name)
    session.run("pytest", "-q", "-m", "not slow", str(folder(example) / "tests"), *session.posargs)


@nox.session(python=False)
def ci(session: nox.Session) -> None:
    """Everything above but `lowest`."""
    for name in ("lint", "types", "tests", "metapackage", "examples"):
        session.notify(name)
