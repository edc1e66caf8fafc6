"""What a reduced model costs and how well it does, over subspaces, elements, sizes, cubature and meshes.

Each model of the sweep is made as `realsimloop reduce` makes it, judged on the same held-out motions of the
dual-arm bar, and timed in single precision, in turn with the full-order solver on the same mesh. Linear elements
are compared with the full-order solution on linear elements: what is judged is the reduction, not the element.
Rows are written one by one, so that a sweep that is broken off goes on where it was; a page with plots is made of
them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from realsimloop_ros.body.body import Body
from realsimloop_ros.body.files import BodySpecification, atomic_write
from realsimloop_ros.compute import use_double_precision, use_one_core
from realsimloop_ros.dynamics.reduce import ReductionSettings, reduce_body
from realsimloop_ros.evaluation.bench import (
    BenchError,
    Work,
    full_order_works,
    grip_motion,
    reduced_works,
)
from realsimloop_ros.evaluation.reduction_page import write_page
from realsimloop_ros.mechanics.elements import lumped_volumes
from realsimloop_ros.reduction.cubature import fit_cubature
from realsimloop_ros.reduction.grip_warp import grip_warp
from realsimloop_ros.reduction.inertia_cubature import MassCandidates, fit_inertia_cubature
from realsimloop_ros.reduction.model import PointWeights, ReducedBody, every_sample
from realsimloop_ros.reduction.skinning_modes import skinning_basis
from realsimloop_ros.reduction.snapshots import SnapshotSettings, random_grip_motion
from realsimloop_ros.reduction.subspaces import KINDS

_FULL_GRADIENTS = ("full tangents", "full adjoint")


@dataclass(frozen=True)
class SweepSettings:
    """What is swept. divisions: of the bar; sizes: r; meshes: divisions of the bars for cost against mesh size,
    with modes of `mesh_size`; repetitions: how often each duration is taken; steps: of the timed window;
    full_order_tets: the largest mesh that is stepped in full space too."""

    divisions: tuple[int, int, int] = (20, 2, 2)
    kinds: tuple[str, ...] = KINDS
    element_orders: tuple[int, ...] = (2, 1)
    sizes: tuple[int, ...] = (5, 10, 20, 40, 80)
    meshes: tuple[tuple[int, int, int], ...] = ((40, 3, 3), (56, 4, 4), (80, 5, 5), (104, 7, 6), (130, 8, 8))
    mesh_size: int = 36
    snapshots: SnapshotSettings = field(default_factory=lambda: SnapshotSettings(trajectories=60, pressed=40))
    repetitions: int = 5
    steps: int = 48
    full_order_tets: int = 2_500


QUICK = SweepSettings(
    divisions=(10, 1, 1),
    kinds=("principal",),
    element_orders=(2,),
    sizes=(4,),
    meshes=((12, 1, 1),),
    mesh_size=12,
    snapshots=SnapshotSettings(trajectories=3, steps=10, keyframes=1, twist=0.4, bend=0.1, shift=0.01, every=1),
    repetitions=1,
    steps=6,
    full_order_tets=100,
)


def bar(divisions: tuple[int, int, int], element_order: int) -> Body:
    """The 200 x 30 x 30 mm bar between two grips of 10 mm."""
    hold = 0.09 if divisions[0] >= 20 else 0.08
    return BodySpecification.model_validate(
        {
            "name": "bar",
            "mesh": {
                "kind": "box",
                "size": [0.2, 0.03, 0.03],
                "divisions": list(divisions),
                "origin": [-0.1, -0.015, -0.015],
                "quadratic": element_order == 2,
            },
            "zones": [{"name": "bar", "density": 1070.0}],
            "grips": [
                {
                    "name": name,
                    "frame": f"{name}_tool",
                    "rest_pose": [side * 0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
                    "region": {bound: [side * hold, None, None]},
                }
                for name, side, bound in (("left", -1.0, "maximum"), ("right", 1.0, "minimum"))
            ],
        }
    ).build()


def samples_for(latent_size: int) -> int:
    """Strain samples of the cubature at r: with fewer than nine or so per direction, one loses its stiffness."""
    return 10 * latent_size + 20


def points_for(coordinates: int) -> int:
    """Mass points of the inertia cubature for R coordinates."""
    return 2 * coordinates + 12


def model_rows(
    settings: SweepSettings, folder: Path, done: list[dict], report: Callable[[str], None]
) -> Iterator[list[dict]]:
    """Rows of one subspace at one size after another, without those that are done."""
    known = {(row["subspace"], row["element_order"], row["r"]) for row in done}
    for order in settings.element_orders:
        body = bar(settings.divisions, order)
        for kind in settings.kinds:
            for size in settings.sizes:
                report(f"{kind}, r = {size}, order {order}")
                if (kind, order, size) not in known:
                    yield _rows_of(settings, body, order, kind, size, folder / f"snapshots_order_{order}")


def _rows_of(settings: SweepSettings, body: Body, order: int, kind: str, size: int, folder: Path) -> list[dict]:
    coordinates = min(round(3.5 * size), max(120, size + 1)) if kind == "autoencoder" else size
    asked = ReductionSettings(
        size,
        samples_for(size),
        subspace=kind,
        points=points_for(coordinates),
        snapshots=settings.snapshots,
    )
    reduced = reduce_body(body, asked, folder, workers=1)
    complete = ReducedBody(body, reduced.basis, *every_sample(body), reduced.card, reduced.decoder)
    poses = grip_motion(reduced)[: settings.steps]
    works: dict[str, Work] = {}
    works |= _full_order(reduced, poses)
    models = {True: (reduced, "cubature"), False: (complete, "all_samples")}
    for cubature, (model, _) in models.items():
        works[f"step_ms {cubature}"], works[f"window_gradient_ms {cubature}"] = reduced_works(
            model, poses, np.float32
        )
    times = _with_the_faster_gradient(medians(works, settings.repetitions))
    rows = []
    for cubature, (model, label) in models.items():
        entry = reduced.card.get("points", {}) if cubature else {}
        if not entry or entry.get("refused"):
            entry = reduced.card.get(label, reduced.card["all_samples"])
        rows.append(
            {
                "subspace": kind,
                "element_order": order,
                "r": size,
                "cubature": cubature,
                "tets": len(body.tets),
                "samples": len(model.sample_index),
                "rms_percent": entry["rms_percent"],
                "p99_percent": entry["p99_percent"],
                "step_ms": times[f"step_ms {cubature}"],
                "full_step_ms": times["full_step_ms"],
                "window_gradient_ms": times[f"window_gradient_ms {cubature}"],
                "full_window_gradient_ms": times["full_window_gradient_ms"],
                "diverged": entry["diverged"],
            }
        )
    return rows


def _full_order(reduced: ReducedBody, poses: NDArray[np.float64]) -> dict[str, Work]:
    """A step and, by two methods, a window gradient in full space."""
    return dict(zip(("full_step_ms", *_FULL_GRADIENTS), full_order_works(reduced, poses), strict=True))


def _with_the_faster_gradient(times: dict[str, float | None]) -> dict[str, float | None]:
    """The same medians with one full-order window gradient, the better of both."""
    if not set(_FULL_GRADIENTS) <= set(times):
        return times
    found = [time for time in (times.pop(name) for name in _FULL_GRADIENTS) if time is not None]
    return times | {"full_window_gradient_ms": min(found, default=None)}


def medians(works: dict[str, Work], repetitions: int) -> dict[str, float | None]:
    """Median durations, ms, taken in turns after a round that compiles; None for what did not come to its end."""
    samples: dict[str, list[float]] = {name: [] for name in works}
    failed = set()
    for repetition in range(repetitions + 1):
        for name, work in works.items():
            if name in failed:
                continue
            try:
                durations = work()
            except BenchError:
                failed.add(name)
                continue
            if repetition:
                samples[name] += durations
    return {name: None if name in failed else 1e3 * float(np.median(taken)) for name, taken in samples.items()}


def mesh_rows(settings: SweepSettings, done: list[dict], report: Callable[[str], None]) -> Iterator[list[dict]]:
    """Cost against mesh size: skinning modes, which need no snapshot, at equal r and cubature. Errors stay out."""
    known = {row["tets"] for row in done}
    for divisions in settings.meshes:
        body = bar(divisions, 2)
        report(f"{len(body.tets)} tets")
        if len(body.tets) in known:
            continue
        reduced = _mesh_model(body, settings.mesh_size)
        poses = grip_motion(reduced)[: settings.steps]
        works: dict[str, Work] = {}
        works["step_ms"], works["window_gradient_ms"] = reduced_works(reduced, poses, np.float32)
        times: dict[str, float | None] = {"full_step_ms": None, "full_window_gradient_ms": None}
        if len(body.tets) <= settings.full_order_tets:
            works |= _full_order(reduced, poses)
        times |= _with_the_faster_gradient(medians(works, settings.repetitions))
        yield [
            {
                "subspace": "skinning_modes",
                "element_order": 2,
                "r": settings.mesh_size,
                "cubature": True,
                "tets": len(body.tets),
                "samples": len(reduced.sample_index),
                "rms_percent": None,
                "p99_percent": None,
                **times,
                "diverged": None,
            }
        ]


def _mesh_model(body: Body, size: int) -> ReducedBody:
    """Skinning modes with cubatures fitted to random states, softer modes further out."""
    random = np.random.default_rng(0)
    basis = skinning_basis(body, size, np.ones(1), np.full(1, 0.45))
    poses = random_grip_motion(body, SnapshotSettings(steps=60), random)
    latents = random.standard_normal((60, size)) * 5e-3 / (1.0 + np.arange(size)) ** 1.5
    every = ReducedBody(body, basis, *every_sample(body), {"subspace": "skinning_modes"})
    cubature = fit_cubature(every, poses, latents, samples_for(size), states=20)
    lumped = lumped_volumes(body)
    vertex, zone = np.nonzero(lumped)
    points = fit_inertia_cubature(
        grip_warp(body),
        basis,
        MassCandidates(vertex, zone, lumped[vertex, zone]),
        np.stack([poses[1:], poses[:-1]], axis=1),
        latents[:-1],
        points_for(size),
        states=20,
    )
    chosen = PointWeights(vertex[points.index], zone[points.index], points.weight)
    return replace(every, sample_index=cubature.index, sample_weight=cubature.weight, points=chosen)


def sweep(settings: SweepSettings, out: Path, console: Console) -> tuple[list[dict], list[dict]]:
    """All rows, of models and of meshes; those that lie in `out` are not measured again."""
    paths = {"models": out / "sweep_models.json", "meshes": out / "sweep_meshes.json"}
    rows = {name: json.loads(path.read_text()) if path.is_file() else [] for name, path in paths.items()}
    total = len(settings.kinds) * len(settings.element_orders) * len(settings.sizes) + len(settings.meshes)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # stages draw bars of their own, and only one can live at a time: so the sweep's is drawn between them
    progress = Progress(*columns, console=console, auto_refresh=False)
    task = progress.add_task("sweep", total=total)

    def report(what: str) -> None:
        progress.advance(task)
        progress.update(task, description=what)
        console.print(progress.get_renderable())

    makers = {
        "models": lambda: model_rows(settings, out, rows["models"], report),
        "meshes": lambda: mesh_rows(settings, rows["meshes"], report),
    }
    for name, make in makers.items():
        for more in make():
            # each model compiles programs of its own, and hundreds of them exhaust what a process may map
            jax.clear_caches()
            rows[name] += more
            with atomic_write(paths[name]) as temporary:
                temporary.write_text(json.dumps(rows[name], indent=1) + "\n", encoding="utf-8")
    return rows["models"], rows["meshes"]


def run_sweep(
    out: Annotated[Path, typer.Option(help="Folder of reduction.json, which gains rows.")] = Path("out/bench"),
    docs: Annotated[Path | None, typer.Option(help="Where reduction.md and images/ go; default: OUT.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny models: figures mean little.")] = False,
) -> None:
    """Sweep over subspaces, elements, sizes, cubature and meshes; takes hours, and goes on where it was."""
    use_double_precision()
    console = Console(width=110)
    models, meshes = sweep(QUICK if quick else SweepSettings(), out, console)
    path = out / "reduction.json"
    kept = json.loads(path.read_text()) if path.is_file() else []
    kept = [row for row in kept if "element_order" not in row]
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(kept + models + meshes, indent=1) + "\n", encoding="utf-8")
    judged = out / "judgement.json"
    judgement = json.loads(judged.read_text()) if judged.is_file() else None
    page = write_page(models, meshes, docs or out, judgement)
    console.print(f"{path}\n{page}", highlight=False)


if __name__ == "__main__":
    use_one_core()
    typer.run(run_sweep)
