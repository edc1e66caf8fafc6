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
from realsimloop_ros.reduction.subspaces import KINDS


def reduce(
    body: Annotated[Path, typer.Argument(help="Body: a YAML specification or a .npz body file.")],
    out: Annotated[Path, typer.Option(help="Where the reduced model (.npz) goes.")],
    snapshots: Annotated[
        Path | None,
        typer.Option(help="Folder of the snapshots; a broken run resumes from it. Default: beside OUT."),
    ] = None,
    subspace: Annotated[
        str,
        typer.Option(
            help="Kind of the subspace: principal (directions of the snapshots), skinning_modes (of the rest "
            "shape alone) or autoencoder (curved: the most accurate at a small r, and a slower step)."
        ),
    ] = "principal",
    latent_size: Annotated[int, typer.Option(help="Size r of the latent state.")] = 48,
    samples: Annotated[
        int, typer.Option(help="Strain samples of the cubature, some 8 to 10 per latent coordinate; 0 keeps all.")
    ] = 440,
    points: Annotated[
        int, typer.Option(help="Mass points of the inertia cubature, some 2 per coordinate; 0 keeps every vertex.")
    ] = 0,
    trajectories: Annotated[int, typer.Option(help="Full-order trajectories; a fifth of them only judges.")] = 60,
    pressed: Annotated[
        int,
        typer.Option(
            help="Further trajectories to learn from, in which the grips press the body until it buckles."
        ),
    ] = 0,
    steps: Annotated[int, typer.Option(help="Steps per trajectory.")] = 60,
    time_step: Annotated[float, typer.Option(help="s per step.")] = 1.0 / 60.0,
    twist: Annotated[float, typer.Option(help="Largest twist of a grip, rad.")] = 1.2,
    bend: Annotated[float, typer.Option(help="Largest bend of a grip, rad.")] = 0.5,
    shift: Annotated[float, typer.Option(help="Largest shift of a grip per axis, m.")] = 0.03,
    youngs_modulus: Annotated[tuple[float, float], typer.Option(help="Range, Pa.")] = (0.1e6, 0.6e6),
    poisson_ratio: Annotated[tuple[float, float], typer.Option(help="Range.")] = (0.40, 0.48),
    seed: Annotated[int, typer.Option(help="Seed of motions, materials, training and cubature.")] = 1,
    workers: Annotated[int | None, typer.Option(help="Local processes; default: one per core.")] = None,
    ray: Annotated[str | None, typer.Option(help="Address of a Ray cluster to run on instead.")] = None,
) -> None:
    """Make the reduced model of a body: full-order snapshots, subspace (training it), cubature, and a check on
    motions that none of these has seen.

    Each stage is kept in the folder of the snapshots, so that the same command after an interruption goes on where
    it was. A cubature that fails its check is left out, and a warning says why. Example:

    realsimloop reduce config/bodies/dual_arm_bar.yaml --out bar.npz --subspace autoencoder --latent-size 20
    """
    use_double_precision()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    console = Console(stderr=True)
    try:
        loaded = load_body(body) if body.suffix == ".npz" else load_body_specification(body)
        _check(subspace, latent_size, samples, points, trajectories, pressed)
        settings = ReductionSettings(
            latent_size,
            samples,
            subspace=subspace,
            points=points,
            seed=seed,
            snapshots=SnapshotSettings(
                trajectories=trajectories,
                pressed=pressed,
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
    table = Table("held-out error", "rms", "p99", "diverged", title=f"{out}: {subspace}, r = {latent_size}")
    for label in ("all_samples", "cubature", "points"):
        if label in result.card:
            entry = result.card[label]
            counted = {
                "all_samples": "all samples",
                "cubature": "{samples} samples",
                "points": "{points} mass points",
            }
            table.add_row(
                counted[label].format_map(entry) + (", refused" if entry.get("refused") else ""),
                f"{1e3 * entry['rms']:.3f} mm ({entry['rms_percent']:.3f} %)",
                f"{1e3 * entry['p99']:.3f} mm ({entry['p99_percent']:.3f} %)",
                f"{entry['diverged']} of {entry['rollouts']}",
            )
    Console().print(table)


def _check(subspace: str, latent_size: int, samples: int, points: int, trajectories: int, pressed: int) -> None:
    """What would otherwise only be found after minutes of simulation."""
    if subspace not in KINDS:
        raise ValueError(f"--subspace: {subspace!r}, expected one of {', '.join(KINDS)}")
    for name, value, least in (
        ("--latent-size", latent_size, 1),
        ("--samples", samples, 0),
        ("--points", points, 0),
        ("--trajectories", trajectories, 2),
        ("--pressed", pressed, 0),
    ):
        if value < least:
            raise ValueError(f"{name}: {value}, expected at least {least}")
