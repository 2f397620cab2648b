"""Every distribution of the tree is whole, and the root holds the metapackage that the specification asks for."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import Any

import yaml

PACKAGES = {"cacheir-core", "cacheir-cpu", "cacheir-cuda", "cacheir-importers", "cacheir-native", "cacheir-server"}
EXTRAS = {"dev", "server", "importers", "benchmark", "native", "gpu", "accelerators", "upstream"}


def test_the_packages_are_these(packages: dict[str, dict[str, Any]]) -> None:
    assert set(packages) == PACKAGES


def test_every_package_is_whole(packages: dict[str, dict[str, Any]], root: Path) -> None:
    licence = (root / "LICENSE").read_bytes()
    for name, data in packages.items():
        project = data["project"]
        assert project["name"] == name
        assert project["requires-python"] == ">=3.10"
        assert project["license"] == "Apache-2.0"
        assert project["license-files"] == ["LICENSE"]
        assert (root / name / "LICENSE").read_bytes() == licence, f"{name}/LICENSE differs from the one at the root"
        assert (root / name / project["readme"]).read_text(encoding="utf-8").startswith(f"# {name}\n")
        assert list((root / name / "tests").rglob("test_*.py")), f"{name} has no tests"
        tool = data["tool"]
        (module,) = (tool.get("scikit-build") or tool["hatch"]["build"]["targets"])["wheel"]["packages"]
        assert (root / name / module / "py.typed").is_file(), f"{name} does not say that it is typed"


def test_every_package_is_a_plugin(packages: dict[str, dict[str, Any]], root: Path) -> None:
    for name, data in packages.items():
        short = name.removeprefix("cacheir-")
        ((plugin, module),) = data["project"]["entry-points"]["cacheir"].items()
        assert plugin == short
        assert module == ("cacheir.builtin" if short == "core" else f"cacheir_{short}.plugin")
        assert (root / name / "src" / (module.replace(".", "/") + ".py")).is_file()


def test_core_brings_the_command(packages: dict[str, dict[str, Any]]) -> None:
    assert packages["cacheir-core"]["project"]["scripts"] == {"cacheir": "cacheir.cli.main:main"}


def test_the_metapackage_has_the_extras_and_no_modules(metapackage: dict[str, Any], root: Path) -> None:
    project = metapackage["project"]
    assert project["name"] == "cacheir"
    assert set(project["optional-dependencies"]) == EXTRAS
    assert metapackage["tool"]["hatch"]["build"]["targets"]["wheel"] == {"bypass-selection": True}
    assert not (root / "src").exists()


def test_the_metapackage_takes_its_siblings_from_the_tree(metapackage: dict[str, Any], root: Path) -> None:
    project = metapackage["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    siblings = {line for group in groups for line in group if line.startswith("cacheir")}
    assert len(siblings) >= len(PACKAGES)
    for line in siblings:
        name, _, place = line.partition(" @ ")
        folder = name.partition("[")[0]
        assert place == f"{{root:uri}}/{folder}", f"{line} could be taken from an index"
        assert (root / folder / "pyproject.toml").is_file()


def test_one_configuration_of_the_tools(packages: dict[str, dict[str, Any]], root: Path) -> None:
    for name, data in packages.items():
        assert not {"ruff", "mypy", "pytest"} & set(data["tool"]), f"{name} configures a tool for itself"
    stray = [str(path) for path in root.glob("cacheir-*/**/pytest.ini")] + [str(p) for p in root.glob("*/ruff.toml")]
    assert not stray


def test_dev_extra_is_what_make_dev_installs(metapackage: dict[str, Any], root: Path) -> None:
    lines = (root / "tests" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    wanted = {line for line in lines if line and not line.startswith("#")}
    extra = {line for line in metapackage["project"]["optional-dependencies"]["dev"] if not line.startswith("cacheir")}
    # The oracles that the extra leaves out are large; the pin keeps an installer from taking a build for GPUs.
    oracles = {"accelerate", "safetensors", "tokenizers", "torch", "transformers", "triton"}
    assert {re.split("[=>]", line)[0] for line in wanted - extra} == oracles
    assert "torch==2.13.0" in wanted
    assert extra <= wanted


def test_every_package_has_a_job(root: Path) -> None:
    workflow = yaml.safe_load((root / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    job = workflow["jobs"]["package"]
    assert set(job["strategy"]["matrix"]["package"]) == PACKAGES
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert any("tests(${{ matrix.package }})" in command for command in commands)
    for name, each in workflow["jobs"].items():
        assert "timeout-minutes" in each, f"job {name} has no limit"
        assert each["steps"], f"job {name} does nothing"


def test_ci_ends_with_the_command_that_the_readme_gives(root: Path) -> None:
    script = (root / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    steps = [line for line in script if line.startswith("step ")]
    assert steps[-1].endswith(" make test")
    assert "make test" in (root / "README.md").read_text(encoding="utf-8")
    assert (root / ".ci" / "run").stat().st_mode & 0o111, ".ci/run is not executable"


def test_editor_settings_parse(root: Path) -> None:
    text = "[top]\n" + (root / ".editorconfig").read_text(encoding="utf-8")
    settings = configparser.ConfigParser()
    settings.read_string(text)
    assert settings["*"]["max_line_length"] == "120"
