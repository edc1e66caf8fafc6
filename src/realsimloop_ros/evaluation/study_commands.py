"""`make coverage`, `make studies` and `make ablation`: the studies of the estimator, and their pages in docs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from realsimloop_ros.body.files import atomic_write
from realsimloop_ros.compute import use_double_precision, use_one_core
from realsimloop_ros.evaluation import study_pages as pages
from realsimloop_ros.evaluation.studies import (
    RIGHT,
    SHIPPED,
    ablation,
    coverage,
    drift,
    starts,
    unobservable,
    zones,
)

Docs = Annotated[Path, typer.Option(help="Folder in which the page and its picture are written anew.")]
application = typer.Typer(add_completion=False, help=__doc__)


@application.callback()
def _root() -> None:
    use_one_core()
    use_double_precision()


def _write(files: Mapping[Path, bytes]) -> None:
    for path, content in files.items():
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
        print(path)


@application.command("coverage")
def coverage_command(
    docs: Docs = Path("docs"),
    seeds: Annotated[int, typer.Option(help="Of noise and start.", min=1)] = 100,
    workers: Annotated[int, typer.Option(help="Processes.", min=1)] = 1,
    frames: Annotated[int, typer.Option(help="Of each recording.", min=2)] = 30,
) -> None:
    """How often the truth lies in the stated interval (some minutes)."""
    found = {
        "forgetting 1, no model error": coverage(seeds, RIGHT, frames=frames, workers=workers),
        "as shipped": coverage(seeds, SHIPPED, frames=frames, workers=workers),
    }
    _write(
        {
            docs / "coverage.md": pages.coverage_page(found, frames).encode(),
            docs / "images" / "coverage.png": pages.coverage_picture(found),
        }
    )


@application.command("studies")
def studies_command(docs: Docs = Path("docs")) -> None:
    """Wrong starts, two zones, a changing material, and what cannot be told (a few minutes)."""
    print("wrong starts", flush=True)
    rows = starts()
    print("two zones", flush=True)
    halves = zones()
    print("a slow pull", flush=True)
    slow = unobservable()
    print("a changing material", flush=True)
    drifts = {
        f"ramp, forgetting {SHIPPED.forgetting}": drift(),
        "ramp, forgetting 0.98": drift(forgetting=0.98),
        f"step, forgetting {SHIPPED.forgetting}": drift(stepwise=True),
        "step, forgetting 0.98": drift(stepwise=True, forgetting=0.98),
    }
    _write(
        {
            docs / "studies.md": pages.studies_page(rows, halves, drifts, slow).encode(),
            docs / "images" / "studies.png": pages.studies_picture(drifts),
        }
    )


@application.command("ablation")
def ablation_command(
    docs: Docs = Path("docs"),
    seeds: Annotated[int, typer.Option(help="Per setting.", min=1)] = 5,
    frames: Annotated[int, typer.Option(help="Of each recording.", min=2)] = 30,
) -> None:
    """Window, noise, forgetting, online against offline (some minutes)."""
    rows = ablation(seeds, frames=frames)
    _write(
        {
            docs / "ablation.md": pages.ablation_page(rows, seeds, frames).encode(),
            docs / "images" / "ablation.png": pages.ablation_picture(rows),
        }
    )


if __name__ == "__main__":
    application()
