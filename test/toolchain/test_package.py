"""The package's files agree with each other, and the tools say clearly what is missing."""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

import realsimloop_ros
from realsimloop_ros.cli import COMMANDS, main

ROOT = Path(__file__).parents[2]


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    package = ElementTree.parse(ROOT / "package.xml").getroot()
    assert project["version"] == package.findtext("version") == realsimloop_ros.__version__


def test_every_message_is_generated() -> None:
    listed = set(re.findall(r'"msg/(\w+)\.msg"', (ROOT / "CMakeLists.txt").read_text()))
    assert listed == {path.stem for path in (ROOT / "msg").glob("*.msg")}


def test_every_requirement_is_pinned() -> None:
    def names(path: Path) -> set[str]:
        lines = [line.split("#")[0].strip() for line in path.read_text().splitlines()]
        return {re.split(r"[<>=!\[ ]", line)[0].lower().replace("_", "-") for line in lines if line}

    pinned = names(ROOT / "constraints.txt") | {"setuptools"}
    for path in ROOT.glob("requirements*.txt"):
        assert names(path) <= pinned, path.name


def test_ros_packages_that_the_code_imports_are_dependencies() -> None:
    declared = {
        element.text for element in ElementTree.parse(ROOT / "package.xml").getroot() if "depend" in element.tag
    }
    known = {"rclpy", "launch", "launch_ros", "ament_index_python"}
    pattern = re.compile(r"^\s*(?:from|import) (\w+)", re.MULTILINE)
    for path in (ROOT / "src").rglob("*.py"):
        for name in pattern.findall(path.read_text()):
            if name.endswith(("_msgs", "_interfaces")) or name in known:
                assert name in declared, f"{path.name} imports {name}"


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_exists_and_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = COMMANDS[name]
    assert callable(getattr(importlib.import_module(command.module), command.function))
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert name in capsys.readouterr().out


def test_the_list_of_commands_imports_nothing_heavy() -> None:
    program = (
        "import sys; from realsimloop_ros.cli import main\ntry: main(['--help'])\nfinally: print(*sys.modules)"
    )
    output = run(sys.executable, "-c", program).stdout
    assert "up " in output
    assert not {"jax", "numba", "rclpy", "cv2"} & set(output.split())


def test_an_error_that_the_user_can_mend_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["up", "no_such_graph"]))
    assert ended.value.code == 1
    assert capsys.readouterr().err == "error: there is no graph 'no_such_graph'; there is dual_arm, replay\n"


def test_a_missing_python_is_named_with_the_remedy() -> None:
    result = run("cmake/find_python.sh", PYTHON="no_such_python")
    assert result.returncode == 1
    assert "no Python from 3.11 to 3.13 found (tried: no_such_python)" in result.stderr
    assert "apt-get install python3" in result.stderr


def test_missing_tools_are_named_with_the_remedy(tmp_path: Path) -> None:
    for tool in ("sh", "uname", "sed"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "")
    result = run("cmake/check_tools.sh", PATH=str(tmp_path))
    assert result.returncode == 1
    for package in ("gcc", "g++", "cmake"):
        assert f"apt-get install {package}" in result.stderr


def test_an_old_cmake_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "cmake"
    old.write_text("#!/bin/sh\necho cmake version 3.16.3\n")
    old.chmod(0o755)
    result = run("cmake/check_tools.sh", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert result.returncode == 1
    assert "cmake 3.16 is too old, 3.21 or newer is needed" in result.stderr


def test_make_alone_shows_the_targets() -> None:
    output = run("make").stdout
    for target in ("setup", "demo", "test", "bench", "lint", "clean"):
        assert f"make {target} " in output


def test_the_continuous_integration_runs_lint_and_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert run("bash", "-n", str(script)).returncode == 0
    assert {"make lint", "make test"} <= set(script.read_text().splitlines())
