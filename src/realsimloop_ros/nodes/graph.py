"""The graphs of nodes as data: which node runs with which parameters and remappings.

The launch files and `realsimloop up` both start what stands here, so no list of nodes exists twice.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from realsimloop_ros.evaluation.experiments import load_experiment
from realsimloop_ros.resources import PACKAGE, configuration_file, package_prefix, share_directory

ParameterValue = bool | int | float | str | Sequence[bool] | Sequence[int] | Sequence[float] | Sequence[str]


class GraphError(ValueError):
    """A graph, an argument or a node that does not exist or has a wrong value; the text names it."""


@dataclass(frozen=True)
class NodeSpecification:
    """One process.

    name: node name, unique in the graph.
    executable: its name in lib/`package`.
    parameters: ROS parameters; a double is written as a float (50.0, not 50).
    remappings: pairs (from, to).
    respawn: started again when it dies.
    required: its death ends the run. Otherwise it is reported and the rest goes on.
    ends_run: its exit with status 0 ends the run with success.
    stops_last: told to stop only when the others have stopped (the recorder hears their last messages).
    """

    name: str
    executable: str
    package: str = PACKAGE
    namespace: str = ""
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    remappings: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
    respawn: bool = False
    required: bool = True
    ends_run: bool = False
    stops_last: bool = False


@dataclass(frozen=True)
class Graph:
    """The nodes of one run."""

    name: str
    nodes: tuple[NodeSpecification, ...]

    def __post_init__(self) -> None:
        names = [node.name for node in self.nodes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise GraphError(f"graph {self.name}: node name {', '.join(twice)} appears more than once")

    def node(self, name: str) -> NodeSpecification:
        """The node called `name`. Raises GraphError with the names that exist."""
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.nodes)
        raise GraphError(f"graph {self.name} has no node {name!r}; it has {known}")

    def with_parameters(self, changes: Mapping[str, Mapping[str, ParameterValue]]) -> Graph:
        """The graph with parameters added or replaced, by node name."""
        for name in changes:
            self.node(name)
        nodes = tuple(
            dataclasses.replace(node, parameters={**node.parameters, **changes.get(node.name, {})})
            for node in self.nodes
        )
        return Graph(self.name, nodes)


@dataclass(frozen=True)
class GraphArgument:
    """What a user may set with `name:=value`, in launch and in `realsimloop up`.

    kind: str, int, float or bool; default: None where the user must give a value.
    """

    name: str
    kind: type
    description: str
    default: Any = None

    @property
    def required(self) -> bool:
        return self.default is None

    @property
    def default_text(self) -> str:
        """The default as it would be written on a command line."""
        return str(self.default).lower() if self.kind is bool else str(self.default)

    def parse(self, text: str) -> Any:
        """The value of `text`. Raises GraphError."""
        if self.kind is str:
            return text
        try:
            if self.kind is bool:
                return {"true": True, "false": False}[text.lower()]
            return self.kind(text)
        except (KeyError, ValueError):
            expected = "true or false" if self.kind is bool else f"a {self.kind.__name__}"
            raise GraphError(f"argument {self.name}: {text!r} is not {expected}") from None


@dataclass(frozen=True)
class GraphDefinition:
    """A graph that can be started by name: its arguments, and the function that takes their values."""

    name: str
    description: str
    arguments: tuple[GraphArgument, ...]
    build: Callable[..., Graph]


CELL = GraphArgument("cell", str, "cell file: a path, or a name in config/cells", "dual_arm")
NAMESPACE = GraphArgument("namespace", str, "namespace of the whole cell", "")
RECORD = GraphArgument("record", str, "folder of a new bag that records every topic; empty: none", "")
RVIZ = GraphArgument("rviz", bool, "show the run in RViz, where it is installed", False)


def dual_arm_graph(
    cell: str = "dual_arm",
    scenario: str = "dual_arm",
    seed: int = 0,
    duration: float = 0.0,
    namespace: str = "",
    record: str = "",
    rviz: bool = False,
) -> Graph:
    """The twin beside the virtual cell.

    cell: cell file (path or name in config/cells); scenario: what the cell's body is really made of and how it is
    moved (path or name in config/scenarios); seed: of its motion and noise; duration: s of virtual
    time, 0 is the scenario's own.
    """
    cell_file = str(configuration_file("cells", cell))
    twin = _twin_nodes(cell_file, namespace) + _recorder(record, namespace)
    arms = _arm_displays(namespace)
    virtual_cell = NodeSpecification(
        "virtual_cell",
        "virtual_cell",
        namespace=namespace,
        parameters={
            "cell": cell_file,
            "scenario": str(configuration_file("scenarios", scenario)),
            "seed": seed,
            "duration": duration,
            "wait_for_nodes": [node.name for node in twin],
            # the frames of the tools have one publisher: the arms' description where it runs, else the cell
            "publish_tool_frames": not arms,
        },
        ends_run=True,
    )
    return Graph("dual_arm", (virtual_cell, *twin, *arms, *_rviz(rviz)))


def replay_graph(
    bag: str,
    cell: str = "dual_arm",
    experiment: str = "",
    rate: float = 1.0,
    namespace: str = "",
    record: str = "",
    rviz: bool = False,
) -> Graph:
    """The twin beside a recorded bag, with the bag's clock.

    bag: folder or .mcap file; experiment: file of the experiment that the bag is a recording of (path or name in
    config/experiments), whose estimator then runs in place of a cell's nodes, and ends the run; rate: bag seconds
    per second, 0 is as fast as the subscribers take it.
    """
    path = Path(bag).expanduser()
    if not path.exists():
        raise GraphError(f"argument bag: {path} does not exist; name a bag folder or a .mcap file")
    parameters: dict[str, ParameterValue] = {"bag": str(path.resolve()), "rate": rate}
    if experiment:
        twin, topics = _experiment_nodes(str(configuration_file("experiments", experiment)), namespace)
        # a model that is not there yet is made before the first message: some minutes
        parameters |= {"topics": topics, "stay": True, "wait_timeout": 3600.0}
    else:
        twin = _twin_nodes(str(configuration_file("cells", cell)), namespace)
        parameters["exclude"] = list(TWIN_OUTPUTS)
    twin += _recorder(record, namespace)
    player = NodeSpecification(
        "bag_player",
        "bag_player",
        namespace=namespace,
        parameters={**parameters, "wait_for_nodes": [node.name for node in twin]},
        ends_run=not experiment,
    )
    return Graph("replay", (player, *twin, *_rviz(rviz)))


# Regular expressions of the topics that the twin's nodes publish: a replay computes them anew.
TWIN_OUTPUTS = ("observation", "theta", "state", "stress", "stress_markers", "overlay/.*", "ready", "/clock")

GRAPHS: Mapping[str, GraphDefinition] = {
    "dual_arm": GraphDefinition(
        "dual_arm",
        "the twin beside a virtual cell of two arms that hold a bar",
        (
            CELL,
            GraphArgument(
                "scenario",
                str,
                "what the virtual cell is made of and does: a path, or a name in config/scenarios",
                "dual_arm",
            ),
            GraphArgument("seed", int, "seed of motion and noise", 0),
            GraphArgument("duration", float, "s of virtual time; 0: that of the scenario", 0.0),
            NAMESPACE,
            RECORD,
            RVIZ,
        ),
        dual_arm_graph,
    ),
    "replay": GraphDefinition(
        "replay",
        "the twin beside a recorded bag",
        (
            GraphArgument("bag", str, "bag to play: a folder, or a .mcap file"),
            CELL,
            GraphArgument(
                "experiment",
                str,
                "what the bag records, where it is no cell: an experiment file, or a name in config/experiments",
                "",
            ),
            GraphArgument("rate", float, "bag seconds per second; 0: as fast as possible", 1.0),
            NAMESPACE,
            RECORD,
            RVIZ,
        ),
        replay_graph,
    ),
}


def graph_definition(name: str) -> GraphDefinition:
    """The definition called `name`. Raises GraphError with the names that exist."""
    if name not in GRAPHS:
        raise GraphError(f"there is no graph {name!r}; there is {', '.join(GRAPHS)}")
    return GRAPHS[name]


def build_graph(name: str, settings: Mapping[str, str]) -> Graph:
    """The graph `name` with `settings`: arguments of the graph, and `node.parameter` for any node's
    parameter, whose value is read as YAML. Raises GraphError naming what does not exist.
    """
    definition = graph_definition(name)
    known = {argument.name: argument for argument in definition.arguments}
    values: dict[str, Any] = {}
    changes: dict[str, dict[str, ParameterValue]] = {}
    for key, text in settings.items():
        if key in known:
            values[key] = known[key].parse(text)
        elif "." in key:
            node, parameter = key.split(".", 1)
            changes.setdefault(node, {})[parameter] = yaml.safe_load(text)
        else:
            raise GraphError(
                f"graph {name} has no argument {key!r}; it has {', '.join(known)}, and NODE.PARAMETER"
            )
    missing = [
        argument.name for argument in definition.arguments if argument.required and argument.name not in values
    ]
    if missing:
        raise GraphError(f"graph {name} needs the argument {', '.join(f'{key}:=...' for key in missing)}")
    return definition.build(**values).with_parameters(changes)


def _twin_nodes(cell_file: str, namespace: str) -> tuple[NodeSpecification, ...]:
    return tuple(
        NodeSpecification(name, name, namespace=namespace, parameters={"cell": cell_file, "use_sim_time": True})
        for name in ("camera_sync", "simulator", "estimator", "stress")
    )


def _experiment_nodes(file: str, namespace: str) -> tuple[tuple[NodeSpecification, ...], list[str]]:
    """The estimator of an experiment, and the topics that it needs as regular expressions."""
    capture = load_experiment(Path(file)).experiment.capture
    node = NodeSpecification(
        "estimator",
        "experiment_estimator",
        namespace=namespace,
        parameters={"experiment": file, "use_sim_time": True},
        ends_run=True,
    )
    return (node,), [f"/?{re.escape(topic)}" for topic in (capture.topic, *capture.grips.values())]


def _recorder(bag: str, namespace: str) -> tuple[NodeSpecification, ...]:
    if not bag:
        return ()
    path = Path(bag).expanduser().resolve()
    if path.exists():
        raise GraphError(f"argument record: {path} exists already; name a folder that does not")
    parameters: dict[str, ParameterValue] = {"bag": str(path), "use_sim_time": True}
    return (
        NodeSpecification("recorder", "recorder", namespace=namespace, parameters=parameters, stops_last=True),
    )


def _arm_displays(namespace: str) -> tuple[NodeSpecification, ...]:
    """The publishers of the arms' link frames, where robot_state_publisher is installed. Both read the
    description of the whole cell, each moves the joints that its arm reports.
    """
    if package_prefix("robot_state_publisher") is None:
        return ()
    description = (share_directory() / "urdf" / "dual_arm.urdf").read_text(encoding="utf-8")
    return tuple(
        NodeSpecification(
            f"{arm}_robot_state_publisher",
            "robot_state_publisher",
            package="robot_state_publisher",
            namespace="/".join(part for part in (namespace, arm) if part),
            parameters={"robot_description": description, "use_sim_time": True},
            required=False,
        )
        for arm in ("left", "right")
    )


def _rviz(wanted: bool) -> tuple[NodeSpecification, ...]:
    if not wanted:
        return ()
    if package_prefix("rviz2") is None:
        raise GraphError("argument rviz: rviz2 is not installed; it comes with a ROS 2 installation")
    return (
        NodeSpecification(
            "rviz",
            "rviz2",
            package="rviz2",
            parameters={"use_sim_time": True},
            arguments=("-d", str(share_directory() / "rviz" / "dual_arm.rviz")),
            required=False,
        ),
    )
