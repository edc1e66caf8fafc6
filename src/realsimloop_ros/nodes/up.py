"""The commands `realsimloop up` and `realsimloop graph`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from realsimloop_ros.nodes.graph import GRAPHS, Graph, GraphError, build_graph, graph_definition
from realsimloop_ros.nodes.supervisor import run_graph

NAME_HELP = f"One of {', '.join(GRAPHS)}."
SETTINGS_HELP = "key:=value: an argument of the graph (see `realsimloop graph NAME`) or NODE.PARAMETER:=value."


def up(
    name: Annotated[str, typer.Argument(help=NAME_HELP)],
    settings: Annotated[list[str] | None, typer.Argument(help=SETTINGS_HELP)] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of logs, parameters and run.json.")] = None,
    duration: Annotated[
        float | None, typer.Option(help="Stop after so many seconds of wall clock.", min=0.0)
    ] = None,
) -> None:
    """Start a graph of nodes as processes and watch them; Ctrl-C stops all.

    Ends with status 0 when a node has ended the run, the duration is over or Ctrl-C was pressed, and with 1
    when a node died.
    """
    graph = build_graph(name, parse_settings(settings or []))
    folder = out or Path("out") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    result = run_graph(graph, folder, duration=duration)
    raise typer.Exit(result.status)


def show_graph(
    name: Annotated[str, typer.Argument(help=NAME_HELP)],
    settings: Annotated[list[str] | None, typer.Argument(help=SETTINGS_HELP)] = None,
) -> None:
    """Show the arguments of a graph and, where all required ones are given, its nodes and their
    parameters.
    """
    definition = graph_definition(name)
    console = Console()
    arguments = Table("argument", "default", "meaning", title=f"{name}: {definition.description}")
    for argument in definition.arguments:
        default = "(required)" if argument.required else argument.default_text
        arguments.add_row(argument.name, default, argument.description)
    console.print(arguments)
    given = parse_settings(settings or [])
    missing = [
        argument.name for argument in definition.arguments if argument.required and argument.name not in given
    ]
    if not missing:
        console.print(_node_table(build_graph(name, given)))


def parse_settings(settings: Sequence[str]) -> dict[str, str]:
    """`key:=value` strings as a mapping. Raises GraphError."""
    values: dict[str, str] = {}
    for setting in settings:
        key, separator, value = setting.partition(":=")
        if not separator or not key:
            raise GraphError(f"{setting!r} is not of the form key:=value")
        values[key] = value
    return values


def _node_table(graph: Graph) -> Table:
    table = Table("node", "executable", "parameters")
    for node in graph.nodes:
        shown = "\n".join(
            f"{key}: {value}" for key, value in node.parameters.items() if key != "robot_description"
        )
        table.add_row(node.name, f"{node.package}/{node.executable}", shown)
    return table
