"""Launch files, with a stand-in for `launch`, which only a ROS 2 installation has."""

from __future__ import annotations

import runpy
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from realsimloop_ros.nodes.graph import GRAPHS, NodeSpecification, build_graph
from realsimloop_ros.nodes.launching import PROFILES_VARIABLE, graph_settings, node_keywords
from realsimloop_ros.resources import share_directory


@dataclass
class Action:
    """What an action was made with."""

    positional: tuple[Any, ...]
    keywords: dict[str, Any]


class LaunchDescription(Action):
    def __init__(self, entities: list[Any]) -> None:
        super().__init__((entities,), {})
        self.entities = entities


def action_type(name: str) -> type[Action]:
    return type(name, (Action,), {"__init__": lambda self, *p, **k: Action.__init__(self, p, k)})


@dataclass
class Context:
    launch_configurations: dict[str, str] = field(default_factory=dict)


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {
        name: types.ModuleType(name) for name in ("launch", "launch.actions", "launch_ros", "launch_ros.actions")
    }
    modules["launch"].LaunchDescription = LaunchDescription  # type: ignore[attr-defined]
    for name in ("DeclareLaunchArgument", "OpaqueFunction", "SetEnvironmentVariable", "Shutdown"):
        setattr(modules["launch.actions"], name, action_type(name))
    modules["launch_ros.actions"].Node = action_type("Node")  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


def described(name: str) -> list[Any]:
    module = runpy.run_path(str(share_directory() / "launch" / f"{name}.launch.py"))
    return module["generate_launch_description"]().entities  # type: ignore[no-any-return]


def kind(action: Any) -> str:
    return type(action).__name__


def launched_nodes(entities: list[Any], configurations: dict[str, str]) -> list[Any]:
    (opaque,) = [action for action in entities if kind(action) == "OpaqueFunction"]
    return opaque.keywords["function"](Context(configurations))  # type: ignore[no-any-return]


@pytest.mark.usefixtures("launch")
@pytest.mark.parametrize("name", list(GRAPHS))
def test_a_launch_file_declares_the_arguments_of_its_graph(name: str) -> None:
    declared = {
        action.positional[0]: action.keywords.get("default_value")
        for action in described(name)
        if kind(action) == "DeclareLaunchArgument"
    }
    expected = {a.name: None if a.required else a.default_text for a in GRAPHS[name].arguments}
    assert declared == expected


@pytest.mark.usefixtures("launch")
def test_a_launch_starts_the_nodes_of_the_graph() -> None:
    settings = {argument.name: argument.default_text for argument in GRAPHS["dual_arm"].arguments}
    settings |= {"seed": "5", "estimator.window": "9", "record": "no_bag_yet"}
    nodes = launched_nodes(described("dual_arm"), settings)
    graph = build_graph("dual_arm", settings)
    assert [kind(action) for action in nodes] == ["Node"] * len(graph.nodes)
    for action, specification in zip(nodes, graph.nodes, strict=True):
        for key, value in node_keywords(specification).items():
            assert action.keywords[key] == value
    assert nodes[0].keywords["parameters"][0]["seed"] == 5


@pytest.mark.usefixtures("launch")
def test_the_end_of_any_required_node_shuts_the_launch_down(tmp_path: Path) -> None:
    for action in launched_nodes(described("replay"), {"bag": str(tmp_path)}):
        assert kind(action.keywords["on_exit"]) == "Shutdown"


@pytest.mark.usefixtures("launch")
def test_the_transport_profile_is_set_unless_the_user_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROFILES_VARIABLE, raising=False)
    (setting,) = [action for action in described("dual_arm") if kind(action) == "SetEnvironmentVariable"]
    assert setting.positional[0] == PROFILES_VARIABLE
    assert Path(setting.positional[1]).is_file()
    monkeypatch.setenv(PROFILES_VARIABLE, "of_the_user.xml")
    assert not [action for action in described("dual_arm") if kind(action) == "SetEnvironmentVariable"]


def test_a_namespace_is_absolute_and_an_empty_one_is_left_to_the_launch() -> None:
    assert node_keywords(NodeSpecification("a", "a", namespace="cell"))["namespace"] == "/cell"
    assert node_keywords(NodeSpecification("a", "a"))["namespace"] == ""


def test_only_arguments_of_the_graph_are_taken_from_a_launch() -> None:
    configurations = {"seed": "3", "stress.rate": "5.0", "of_an_outer_launch": "1"}
    assert graph_settings("dual_arm", configurations) == {"seed": "3", "stress.rate": "5.0"}
