"""A graph as a launch description. Only this file and launch/ know `launch`, which comes with a ROS 2
installation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from realsimloop_ros.nodes.graph import Graph, NodeSpecification, build_graph, graph_definition
from realsimloop_ros.resources import share_directory

# Set in every process of a launch, where the user has not set it: images need larger segments of shared
# memory.
PROFILES_VARIABLE = "FASTDDS_DEFAULT_PROFILES_FILE"


def node_keywords(node: NodeSpecification) -> dict[str, Any]:
    """Keyword arguments of launch_ros.actions.Node for a node, without what needs launch itself."""
    parameters = {key: list(v) if isinstance(v, (list, tuple)) else v for key, v in node.parameters.items()}
    return {
        "package": node.package,
        "executable": node.executable,
        "name": node.name,
        "namespace": f"/{node.namespace.strip('/')}" if node.namespace else "",
        "parameters": [parameters] if parameters else [],
        "remappings": list(node.remappings),
        "arguments": list(node.arguments),
        "respawn": node.respawn,
        "respawn_delay": 1.0,
        "output": "screen",
    }


def graph_actions(graph: Graph) -> list[Any]:
    """One action per node. A required node, and one that ends the run, take the others down with them."""
    from launch.actions import Shutdown
    from launch_ros.actions import Node

    actions = []
    for node in graph.nodes:
        keywords = node_keywords(node)
        if node.ends_run or (node.required and not node.respawn):
            keywords["on_exit"] = Shutdown(reason=f"{node.name} has ended")
        actions.append(Node(**keywords))
    return actions


def graph_settings(name: str, configurations: Mapping[str, str]) -> dict[str, str]:
    """Those of the launch arguments that `build_graph` knows: the graph's own, and NODE.PARAMETER."""
    known = {argument.name for argument in graph_definition(name).arguments}
    return {key: value for key, value in configurations.items() if key in known or "." in key}


def launch_description(name: str) -> Any:
    """The launch description of graph `name`, with its arguments declared."""
    from launch import LaunchDescription
    from launch.actions import DeclareLaunchArgument, OpaqueFunction, SetEnvironmentVariable

    def nodes(context: Any) -> list[Any]:
        return graph_actions(build_graph(name, graph_settings(name, context.launch_configurations)))

    actions: list[Any] = []
    if PROFILES_VARIABLE not in os.environ:
        actions.append(
            SetEnvironmentVariable(PROFILES_VARIABLE, str(share_directory() / "config" / "fastdds.xml"))
        )
    for argument in graph_definition(name).arguments:
        keywords: dict[str, Any] = {"description": argument.description}
        if not argument.required:
            keywords["default_value"] = argument.default_text
        actions.append(DeclareLaunchArgument(argument.name, **keywords))
    return LaunchDescription([*actions, OpaqueFunction(function=nodes)])
