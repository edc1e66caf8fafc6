"""The sub-commands of `realsimloop` that deal with recordings and reports."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from realsimloop_ros.evaluation.c3d import read_c3d
from realsimloop_ros.evaluation.marker_messages import write_marker_bag


@contextmanager
def plain_errors() -> Iterator[None]:
    """Errors that a user can mend become one line on stderr and exit status 1, warnings one line each."""
    shown = warnings.showwarning

    def show(message: Warning | str, *_: object, **__: object) -> None:
        print(f"warning: {message}", file=sys.stderr)

    warnings.showwarning = show  # type: ignore[assignment]
    try:
        yield
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
    finally:
        warnings.showwarning = shown


def import_c3d(
    file: Annotated[Path, typer.Argument(metavar="FILE.c3d", help="The motion capture to read.")],
    out: Annotated[Path, typer.Option("--out", help="The bag folder to write; a bag of that name is replaced.")],
    topic: Annotated[str, typer.Option(help="Topic of the markers (visualization_msgs/MarkerArray).")] = "markers",
    frame: Annotated[str, typer.Option(help="Frame that the positions are given in.")] = "capture",
    unit: Annotated[str | None, typer.Option(help="Unit of length, where the file names none.")] = None,
) -> None:
    """Write a .c3d motion capture as an MCAP bag with its markers on a topic."""
    with plain_errors():
        capture = read_c3d(file, unit=unit, frame=frame)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(f"writing {out}", total=len(capture.stamps_ns))
            write_marker_bag(out, capture, topic, progress=lambda: progress.advance(task))
        missing = int((~capture.seen).sum())
        unseen = f", {missing} positions not seen" if missing else ""
        print(
            f"{out}: {len(capture.names)} markers, {len(capture.stamps_ns)} frames at {capture.rate:g} Hz on "
            f"topic {topic} in frame {frame}{unseen}"
        )
