"""The graphs as data."""

import configparser
import importlib.util
import re
from pathlib import Path

import pytest

from realsimloop_ros.evaluation.experiments import ExperimentError
from realsimloop_ros.nodes.discovery import topic_matches
from realsimloop_ros.nodes.graph import (
    GRAPHS,
    Graph,
    GraphArgument,
    GraphError,
    NodeSpecification,
    build_graph,
    dual_arm_graph,
)
from realsimloop_ros.nodes.supervisor import node_command
from realsimloop_ros.resources import PACKAGE, ResourceError, share_directory

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bag(tmp_path: Path) -> str:
    path = tmp_path / "bag"
    path.mkdir()
    return str(path)


@pytest.fixture(params=["dual_arm", "replay"])
def graph(request: pytest.FixtureRequest, bag: str) -> Graph:
    settings = {"bag": bag} if request.param == "replay" else {}
    return build_graph(request.param, {**settings, "record": f"{bag}/new"})


def test_every_executable_is_installed_under_the_name_of_its_module(graph: Graph) -> None:
    scripts = configparser.ConfigParser()
    scripts.read(ROOT / "ros_setup.cfg")
    installed = dict(
        re.split(r"\s*=\s*", line)
        for line in scripts["options.entry_points"]["console_scripts"].strip().splitlines()
    )
    for node in graph.nodes:
        if node.package != PACKAGE:
            continue
        assert installed[node.executable] == f"realsimloop_ros.nodes.{node.executable}:main"
        assert importlib.util.find_spec(f"realsimloop_ros.nodes.{node.executable}") is not None
        assert Path(node_command(node)[0]).is_file()


def test_one_node_ends_the_run_and_the_recorder_stops_last(graph: Graph) -> None:
    assert [node.name for node in graph.nodes if node.ends_run] in (["virtual_cell"], ["bag_player"])
    assert [node.name for node in graph.nodes if node.stops_last] == ["recorder"]


def test_the_source_of_the_data_waits_for_every_node_that_uses_it(graph: Graph) -> None:
    source = next(node for node in graph.nodes if node.ends_run)
    others = [node.name for node in graph.nodes if node is not source and node.package == PACKAGE]
    assert list(source.parameters["wait_for_nodes"]) == others


def test_all_but_the_source_of_the_clock_run_on_its_time(graph: Graph) -> None:
    for node in graph.nodes:
        assert node.parameters.get("use_sim_time", False) is (not node.ends_run)


def test_a_namespace_moves_every_node_of_the_package() -> None:
    graph = dual_arm_graph(namespace="cell_2")
    assert {node.namespace.split("/")[0] for node in graph.nodes} == {"cell_2"}


def test_arguments_are_parsed_by_their_kind() -> None:
    graph = build_graph("dual_arm", {"seed": "7", "duration": "2"})
    parameters = graph.node("virtual_cell").parameters
    assert parameters["seed"] == 7
    # an int would be refused where the node declares a double
    assert isinstance(parameters["duration"], float)


def test_a_parameter_of_any_node_can_be_set() -> None:
    graph = build_graph("dual_arm", {"estimator.window": "12", "stress.scale": "[0.0, 1.5]"})
    assert graph.node("estimator").parameters["window"] == 12
    assert graph.node("stress").parameters["scale"] == [0.0, 1.5]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"sed": "1"}, "no argument 'sed'; it has cell, scenario, seed"),
        ({"seed": "many"}, "argument seed: 'many' is not a int"),
        ({"rviz": "yes"}, "argument rviz: 'yes' is not true or false"),
        ({"estimater.window": "3"}, "no node 'estimater'; it has virtual_cell, camera_sync"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, str], named: str) -> None:
    with pytest.raises(GraphError, match=re.escape(named)):
        build_graph("dual_arm", settings)


def test_an_unknown_cell_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ResourceError, match=r"triple_arm: neither a file nor one of config/cells: .*dual_arm"):
        build_graph("dual_arm", {"cell": "triple_arm"})


def test_an_unknown_graph_is_answered_with_the_known_ones() -> None:
    with pytest.raises(GraphError, match="no graph 'dual'; there is dual_arm, replay"):
        build_graph("dual", {})


def test_a_required_argument_is_asked_for() -> None:
    with pytest.raises(GraphError, match=r"graph replay needs the argument bag:=\.\.\."):
        build_graph("replay", {})


def test_a_bag_that_does_not_exist_is_named_before_anything_starts() -> None:
    with pytest.raises(GraphError, match="argument bag: nowhere does not exist"):
        build_graph("replay", {"bag": "nowhere"})


def test_an_existing_recording_is_not_overwritten(bag: str) -> None:
    with pytest.raises(GraphError, match="exists already"):
        build_graph("dual_arm", {"record": bag})


def test_two_nodes_of_one_name_are_refused() -> None:
    node = NodeSpecification("stress", "stress")
    with pytest.raises(GraphError, match="stress appears more than once"):
        Graph("double", (node, node))


def test_defaults_are_written_as_they_are_read() -> None:
    for definition in GRAPHS.values():
        for argument in definition.arguments:
            if not argument.required:
                assert argument.parse(argument.default_text) == argument.default
    assert GraphArgument("flag", bool, "", True).default_text == "true"


def test_the_launch_files_name_no_node() -> None:
    for path in (share_directory() / "launch").glob("*.launch.py"):
        text = path.read_text()
        assert "launch_description" in text
        assert "executable" not in text


def test_a_replay_of_an_experiment_runs_its_estimator_in_place_of_a_cell(bag: str) -> None:
    graph = build_graph("replay", {"bag": bag, "experiment": "beam_gravity", "record": f"{bag}/new"})
    assert [node.name for node in graph.nodes] == ["bag_player", "estimator", "recorder"]
    estimator, player = graph.node("estimator"), graph.node("bag_player")
    assert Path(node_command(estimator)[0]).name == "experiment_estimator"
    # the estimator is slower than the recording, so it is the one that knows when all is done
    assert estimator.ends_run and not player.ends_run
    assert player.parameters["stay"] is True
    assert player.parameters["wait_for_nodes"] == ["estimator", "recorder"]
    assert topic_matches(player.parameters["topics"], "/markers")
    assert not topic_matches(player.parameters["topics"], "/theta")


def test_an_experiment_that_cannot_be_read_starts_nothing(bag: str, tmp_path: Path) -> None:
    (tmp_path / "drop.yaml").write_text("gravity: [0, 0, -9.81]\n")
    with pytest.raises(ExperimentError, match=r"drop\.yaml: body: Field required"):
        build_graph("replay", {"bag": bag, "experiment": str(tmp_path / "drop.yaml")})
    with pytest.raises(ResourceError, match=r"beam_gone: neither a file nor one of config/experiments: beam_"):
        build_graph("replay", {"bag": bag, "experiment": "beam_gone"})
