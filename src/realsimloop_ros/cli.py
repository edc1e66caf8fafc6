"""The command `realsimloop`: a list of sub-commands, each imported only when it is called.

A sub-command is a function with typer annotations; it stands in the part that does the work, and in COMMANDS.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup


class Command(NamedTuple):
    """Where a sub-command is implemented, and its line in the list of sub-commands."""

    module: str
    function: str
    summary: str


COMMANDS = {
    "up": Command("realsimloop_ros.nodes.up", "up", "Start a graph of nodes as processes."),
    "graph": Command("realsimloop_ros.nodes.up", "show_graph", "Show nodes, parameters and arguments of a graph."),
    "demo": Command("realsimloop_ros.nodes.demo", "demo", "Run the dual-arm cell and write its report."),
    "evaluate": Command(
        "realsimloop_ros.evaluation.commands", "evaluate", "Evaluate experiments, write a report."
    ),
    "reduce": Command("realsimloop_ros.dynamics.commands", "reduce", "Make the reduced model of a body."),
    "reduce-experiment": Command(
        "realsimloop_ros.evaluation.commands", "reduce_experiment", "Make the reduced model of an experiment."
    ),
    "fit-splats": Command(
        "realsimloop_ros.evaluation.real_views",
        "fit_splats_command",
        "Fit splats to real views, judge a view left out.",
    ),
    "import-c3d": Command("realsimloop_ros.evaluation.commands", "import_c3d", "Write a .c3d capture as a bag."),
}


class LazyCommands(TyperGroup):
    """The commands of COMMANDS; importing one imports only what that one needs."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        command = COMMANDS[cmd_name]
        function = getattr(importlib.import_module(command.module), command.function)
        application = typer.Typer(add_completion=False)
        application.command(name=cmd_name)(function)
        return typer.main.get_command(application)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The list of sub-commands without importing any."""
        typer.echo(f"Usage: {ctx.command_path} COMMAND [ARGS]...\n\n{self.help}\n\nCommands:")
        width = max(len(name) for name in COMMANDS)
        for name, command in COMMANDS.items():
            typer.echo(f"  {name:{width}}  {command.summary}")
        typer.echo(f"\n{ctx.command_path} COMMAND --help explains one of them.")


application = typer.Typer(cls=LazyCommands, add_completion=False, pretty_exceptions_enable=False)


@application.callback()
def _root() -> None:
    """Digital twin of a soft body, estimated online."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status; errors that the user can mend are one line on stderr."""
    try:
        status = application(args=arguments, prog_name="realsimloop", standalone_mode=True)
    except (ValueError, OSError) as error:
        # an error that this package defines says what is wrong and what to do; any other deserves its traceback
        if not type(error).__module__.startswith("realsimloop_ros."):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 1
    return int(status or 0)


if __name__ == "__main__":
    raise SystemExit(main())
