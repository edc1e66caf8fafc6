"""From a body to its checked reduced model: snapshots, subspace, cubature, and held-out motions as judge."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.dynamics.rollout import (
    no_directions,
    rest_state,
    rollout,
    undeformed_state,
)
from realsimloop_ros.dynamics.stepper import CONVERGED, StepSettings
from realsimloop_ros.mechanics.elements import lumped_volumes
from realsimloop_ros.mechanics.integrators import integrator_named
from realsimloop_ros.mechanics.material import material_of
from realsimloop_ros.reduction.cubature import fit_cubature
from realsimloop_ros.reduction.cubature_checks import StiffnessDeviation, fitted_range, stiffness_deviation
from realsimloop_ros.reduction.grip_warp import grip_warp
from realsimloop_ros.reduction.inertia_cubature import MassCandidates, fit_inertia_cubature, rigid_points
from realsimloop_ros.reduction.model import (
    PointWeights,
    ReducedBody,
    ReducedModel,
    every_sample,
    vertices,
)
from realsimloop_ros.reduction.snapshots import Snapshots, SnapshotSettings, generate_snapshots
from realsimloop_ros.reduction.subspaces import Subspace, load_subspace, make_subspace, save_subspace

_logger = logging.getLogger(__name__)

# a model that is off by more than this share of the body's size is of little use, and its user should know
_POOR = 0.02


@dataclass(frozen=True)
class ReductionSettings:
    """latent_size: r; samples: cubature samples asked for, 0 for all; held_out: share of the trajectories, pressed
    ones aside, that judge; subspace: a kind of reduction.subspaces; points: mass points of the inertia cubature, 0
    for every vertex.

    What cubature may cost, beside which it is given up: tolerance, how much worse the held-out rms may become, as
    a factor, beside an absolute slack of 1e-4 of the body's size (a tenth of the accuracy asked for); most_added,
    by how much of the body's size it may grow however bad the model is with all samples; most_softened: which
    share of its stiffness a direction may lose.
    """

    latent_size: int = 40
    samples: int = 160
    held_out: float = 0.2
    tolerance: float = 1.5
    snapshots: SnapshotSettings = field(default_factory=SnapshotSettings)
    subspace: str = "principal"
    points: int = 0
    most_added: float = 2e-3
    # sound fits of bars lose up to 0.21, one that was fitted near the snapshots alone 0.32
    most_softened: float = 0.25
    seed: int = 0


@dataclass(frozen=True)
class HeldOutError:
    """Vertex distance to the full-order solution over whole rollouts: rms, p99 and maximum, m, over size m;
    diverged: rollouts that ended in a failed or non-finite step, or off by more than the body's size."""

    rms: float
    p99: float
    maximum: float
    size: float
    diverged: int
    rollouts: int

    def as_card(self) -> dict:
        return {
            **asdict(self),
            "rms_percent": 100 * self.rms / self.size,
            "p99_percent": 100 * self.p99 / self.size,
        }


def held_out_error(
    body: Body, model: ReducedModel, snapshots: Sequence[Snapshots], integrator: str
) -> HeldOutError:
    """Roll the model out along each trajectory's grip motion and compare with its full-order positions.

    Trajectories of which no step was kept do not judge; without any that do, all errors are infinite.
    """
    judges = [trajectory for trajectory in snapshots if len(trajectory.kept)]
    rolled = [distances_to_full_order(body, model, trajectory, integrator) for trajectory in judges]
    return pooled_error(body, rolled)


def pooled_error(body: Body, rolled: Sequence[NDArray[np.float64] | None]) -> HeldOutError:
    """The error over several rollouts, distances (k, n) of each, None where it diverged."""
    distances = [distance for distance in rolled if distance is not None]
    diverged = len(rolled) - len(distances)
    if not distances:
        return HeldOutError(np.inf, np.inf, np.inf, body.size, diverged, len(rolled))
    every = np.concatenate([distance.ravel() for distance in distances])
    return HeldOutError(
        float(np.sqrt(np.mean([(distance**2).mean() for distance in distances]))),
        float(np.percentile(every, 99)),
        float(every.max()),
        body.size,
        diverged,
        len(rolled),
    )


def distances_to_full_order(
    body: Body, model: ReducedModel, trajectory: Snapshots, integrator: str
) -> NDArray[np.float64] | None:
    """Distances (k, n), m, of the vertices at the kept steps; None where the rollout failed, or went off by more
    than the body's size."""
    settings = StepSettings(
        integrator_named(integrator), trajectory.time_step, gravity=jnp.asarray(trajectory.gravity)
    )
    material = material_of(body, trajectory.youngs_modulus, trajectory.poisson_ratio)
    poses = jnp.asarray(trajectory.grip_poses)
    none = no_directions(len(body.zones))
    if body.grips:
        state, _ = rest_state(model, settings, material, none, poses[0])
    else:
        state = undeformed_state(model, settings, poses[0], 0)
    _, run = rollout(model, settings, material, none, state, poses)
    x = np.stack([np.asarray(vertices(model, poses[k], run.latents[k])) for k in trajectory.kept])
    distance = np.linalg.norm(x - trajectory.positions, axis=2)
    failed = (np.asarray(run.results)[: trajectory.kept[-1] + 1] != CONVERGED).any()
    if failed or not np.isfinite(distance).all() or distance.max() > body.size:
        return None
    return distance


def reduce_body(
    body: Body,
    settings: ReductionSettings,
    folder: Path,
    *,
    workers: int | None = None,
    ray_address: str | None = None,
) -> ReducedBody:
    """Make and check the reduced model of a body; snapshots and the subspace are kept in `folder`, so that a
    broken run resumes.

    Where the cubature fails its check the model keeps all samples, slower but sound, and a warning says so; so it
    keeps all vertices as mass points where the inertia cubature fails.
    """
    snapshots = generate_snapshots(body, settings.snapshots, folder, workers=workers, ray_address=ray_address)
    judged = max(1, round(settings.held_out * settings.snapshots.trajectories))
    learned, held_out = snapshots[:-judged], snapshots[-judged:]
    if not learned:
        raise ValueError(f"snapshots.trajectories: {len(snapshots)}, at least two are needed, one to judge")
    subspace = _kept_subspace(body, settings, learned, held_out, folder)
    card = {**subspace.card, "settings": asdict(settings), "range": fitted_range(subspace.latents).as_card()}
    complete = ReducedBody(body, subspace.basis, *every_sample(body), card, subspace.decoder)
    integrator = settings.snapshots.integrator
    # one compiled model at a time: the one with all samples is the reference of the others
    reference = held_out_error(body, complete.model(), held_out, integrator)
    card["all_samples"] = reference.as_card()
    _logger.info("held-out error with all samples: %s", reference)
    if reference.rms > _POOR * body.size:
        _logger.warning(
            "the subspace follows held-out motions only to %.1f %% of the body's size (rms): take a larger "
            "latent_size or more trajectories",
            100.0 * reference.rms / body.size,
        )
    poses = np.concatenate([trajectory.kept_poses for trajectory in learned])
    sampled = _sampled(complete, settings, poses, subspace.latents, held_out, reference)
    return _pointed(sampled, settings, learned, subspace, held_out)


def _kept_subspace(
    body: Body,
    settings: ReductionSettings,
    learned: Sequence[Snapshots],
    held_out: Sequence[Snapshots],
    folder: Path,
) -> Subspace:
    """The subspace that an earlier run left in the folder, or a new one."""
    kind, size = settings.subspace, settings.latent_size
    pressed = settings.snapshots.pressed
    path = folder / f"subspace_{kind}_{size}_{settings.seed}_{len(learned) - pressed}_{pressed}.npz"
    if path.is_file():
        _logger.info("subspace of an earlier run: %s", path)
        return load_subspace(path)
    middle = float(np.mean(settings.snapshots.poisson_ratio))
    made = make_subspace(kind, body, learned, held_out, size, seed=settings.seed, poisson_ratio=middle)
    save_subspace(path, made)
    return made


def _sampled(
    complete: ReducedBody,
    settings: ReductionSettings,
    poses: NDArray[np.float64],
    latents: NDArray[np.float64],
    held_out: Sequence[Snapshots],
    reference: HeldOutError,
) -> ReducedBody:
    """The model on few samples, or the one with all where it fails its check."""
    body, card = complete.body, complete.card
    if settings.samples == 0 or settings.samples >= len(complete.sample_index):
        return complete
    ratios = settings.snapshots.poisson_ratio
    cubature = fit_cubature(complete, poses, latents, settings.samples, poisson_ratio=ratios, seed=settings.seed)
    deviation = stiffness_deviation(complete, cubature, poses, latents, poisson_ratio=ratios)
    sampled = replace(complete, sample_index=cubature.index, sample_weight=cubature.weight)
    error = held_out_error(body, sampled.model(), held_out, settings.snapshots.integrator)
    card["cubature"] = {
        "samples": len(cubature.index),
        "fit_error": cubature.fit_error,
        **asdict(deviation),
        **error.as_card(),
    }
    _logger.info("held-out error with %d samples: %s", len(cubature.index), error)
    reasons = reasons_against(settings, error, reference, deviation)
    if not reasons:
        return sampled
    _logger.warning(
        "cubature with %d samples fails its check (%s): the model keeps all %d samples",
        len(cubature.index),
        "; ".join(reasons),
        len(complete.sample_index),
    )
    card["cubature"] |= {"refused": True, "reasons": reasons}
    return complete


def reasons_against(
    settings: ReductionSettings, error: HeldOutError, reference: HeldOutError, deviation: StiffnessDeviation
) -> list[str]:
    """Why a cubature with a held-out error must not replace all samples, with theirs; empty where it may."""
    size, reasons = error.size, []
    if error.diverged > reference.diverged:
        reasons.append(f"{error.diverged} of {error.rollouts} diverged, {reference.diverged} with all samples")
    most = min(settings.tolerance * reference.rms + 1e-4 * size, reference.rms + settings.most_added * size)
    if not error.rms <= most:
        reasons.append(f"rms {error.rms:.3g} m against {reference.rms:.3g} m with all, at most {most:.3g} m")
    if deviation.softest < -settings.most_softened:
        reasons.append(f"a direction lost {-100.0 * deviation.softest:.0f} % of its stiffness")
    return reasons


def _pointed(
    sampled: ReducedBody,
    settings: ReductionSettings,
    learned: Sequence[Snapshots],
    subspace: Subspace,
    held_out: Sequence[Snapshots],
) -> ReducedBody:
    """The model with few mass points, or as it was where they fail their check."""
    body, card = sampled.body, sampled.card
    lumped = lumped_volumes(body)
    vertex, zone = np.nonzero(lumped)
    if settings.points == 0 or settings.points >= len(vertex) or not len(subspace.latents):
        return sampled
    coordinates = subspace.coordinates()
    pairs, past, first = [], [], 0
    for trajectory in learned:
        count = len(trajectory.kept)
        pairs.append(np.stack([trajectory.kept_poses[1:], trajectory.kept_poses[:-1]], axis=1))
        past.append(coordinates[first : first + max(count - 1, 0)])
        first += count
    fitted = fit_inertia_cubature(
        grip_warp(body),
        subspace.basis,
        MassCandidates(vertex, zone, lumped[vertex, zone]),
        np.concatenate(pairs),
        np.concatenate(past),
        settings.points,
        seed=settings.seed,
    )
    parts = [(vertex[fitted.index], zone[fitted.index], fitted.weight), *_held_points(body, lumped)]
    points = PointWeights(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    pointed = replace(sampled, points=points)
    integrator = settings.snapshots.integrator
    before = card["cubature"] if len(sampled.sample_index) < len(every_sample(body)[0]) else card["all_samples"]
    error = held_out_error(body, pointed.model(), held_out, integrator)
    card["points"] = {"points": len(points.vertex), "fit_error": fitted.fit_error, **error.as_card()}
    _logger.info("held-out error with %d mass points: %s", len(points.vertex), error)
    # a tenth more, and a hundredth of the accuracy asked for
    most = min(1.1 * before["rms"] + 1e-5 * body.size, before["rms"] + settings.most_added * body.size)
    if error.diverged <= before["diverged"] and error.rms <= most:
        return pointed
    _logger.warning(
        "inertia cubature with %d points fails its check (rms %.3g m against %.3g m, %d of %d diverged): every "
        "vertex remains a mass point",
        len(points.vertex),
        error.rms,
        before["rms"],
        error.diverged,
        error.rollouts,
    )
    card["points"]["refused"] = True
    return sampled


def _held_points(
    body: Body, lumped: NDArray[np.float64]
) -> list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]:
    """Mass points of what each hold carries rigidly, whose weight and inertia its wrench sensor feels."""
    parts = []
    for held in (*(grip.vertices for grip in body.grips), body.fixed_vertices):
        for zone in range(len(body.zones)):
            vertices = held[lumped[held, zone] > 0.0]
            if len(vertices):
                same = rigid_points(body.rest_positions[vertices], lumped[vertices, zone])
                parts.append((vertices[same.index], np.full(len(same.index), zone), same.weight))
    return parts
