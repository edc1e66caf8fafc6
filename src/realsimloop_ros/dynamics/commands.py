"""The sub-command `realsimloop reduce`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from realsimloop_ros.body.body import InvalidBodyError
from realsimloop_ros.body.files import load_body, load_body_specification
from realsimloop_ros.compute import use_double_precision
from realsimloop_ros.dynamics.reduce import ReductionSettings, reduce_body
from realsimloop_ros.reduction.model import save_reduced_body
from realsimloop_ros.reduction.snapshots import SnapshotSettings


def reduce(
    body: Annotated[Path, typer.Argument(help="Body: a YAML specification or a .npz body file.")],
    out: Annotated[Path, typer.Option(help="Where the reduced model (.npz) goes.")],
    snapshots: Annotated[
        Path | None,
        typer.Option(help="Folder of the snapshots; a broken run resumes from it. Default: beside OUT."),
    ] = None,
    latent_size: Annotated[int, typer.Option(help="Size r of the latent state.")] = 48,
    samples: Annotated[int, typer.Option(help="Cubature samples; 0 keeps all.")] = 280,
    trajectories: Annotated[int, typer.Option(help="Full-order trajectories; a fifth of them only judges.")] = 60,
    steps: Annotated[int, typer.Option(help="Steps per trajectory.")] = 60,
    time_step: Annotated[float, typer.Option(help="s per step.")] = 1.0 / 60.0,
    twist: Annotated[float, typer.Option(help="Largest twist of a grip, rad.")] = 1.2,
    bend: Annotated[float, typer.Option(help="Largest bend of a grip, rad.")] = 0.5,
    shift: Annotated[float, typer.Option(help="Largest shift of a grip per axis, m.")] = 0.03,
    youngs_modulus: Annotated[tuple[float, float], typer.Option(help="Range, Pa.")] = (0.1e6, 0.6e6),
    poisson_ratio: Annotated[tuple[float, float], typer.Option(help="Range.")] = (0.40, 0.48),
    seed: Annotated[int, typer.Option(help="Seed of motions and materials.")] = 1,
    workers: Annotated[int | None, typer.Option(help="Local processes; default: one per core.")] = None,
    ray: Annotated[str | None, typer.Option(help="Address of a Ray cluster to run on instead.")] = None,
) -> None:
    """Make the reduced model of a body: snapshots, subspace, cubature, and a check on held-out motions."""
    use_double_precision()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    console = Console(stderr=True)
    try:
        loaded = load_body(body) if body.suffix == ".npz" else load_body_specification(body)
        settings = ReductionSettings(
            latent_size,
            samples,
            snapshots=SnapshotSettings(
                trajectories=trajectories,
                steps=steps,
                time_step=time_step,
                twist=twist,
                bend=bend,
                shift=shift,
                youngs_modulus=youngs_modulus,
                poisson_ratio=poisson_ratio,
                seed=seed,
            ),
        )
        folder = snapshots or out.with_suffix(".snapshots")
        result = reduce_body(loaded, settings, folder, workers=workers, ray_address=ray)
    except (InvalidBodyError, ValueError, OSError) as error:
        console.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(1) from error
    save_reduced_body(out, result)
    table = Table("held-out error", "rms", "p99", "diverged", title=f"{out}: r = {latent_size}")
    for label in ("all_samples", "cubature"):
        if label in result.card:
            entry = result.card[label]
            count = entry.get("samples", "all")
            table.add_row(
                f"{count} samples",
                f"{1e3 * entry['rms']:.3f} mm ({entry['rms_percent']:.3f} %)",
                f"{1e3 * entry['p99']:.3f} mm ({entry['p99_percent']:.3f} %)",
                f"{entry['diverged']} of {entry['rollouts']}",
            )
    Console().print(table)
