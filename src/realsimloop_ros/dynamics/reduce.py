"""From a body to its checked reduced model: snapshots, subspace, cubature, and held-out motions as judge."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from realsimloop_ros.body.body import Body
from realsimloop_ros.dynamics.rollout import (
    no_directions,
    rest_state,
    rollout,
    undeformed_state,
)
from realsimloop_ros.dynamics.stepper import CONVERGED, StepSettings
from realsimloop_ros.mechanics.elements import lumped_masses
from realsimloop_ros.mechanics.integrators import integrator_named
from realsimloop_ros.mechanics.material import material_of
from realsimloop_ros.reduction.cubature import fit_cubature
from realsimloop_ros.reduction.model import (
    ReducedBody,
    ReducedModel,
    every_sample,
    vertices,
)
from realsimloop_ros.reduction.snapshots import Snapshots, SnapshotSettings, generate_snapshots
from realsimloop_ros.reduction.subspaces import local_displacements, principal_basis

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReductionSettings:
    """latent_size: r; samples: cubature samples asked for, 0 for all; held_out: share of the trajectories that
    judge; tolerance: how much worse than with all samples the held-out rms may become before cubature is given
    up, as a factor, beside an absolute slack of 1e-4 of the body's size (a tenth of the accuracy asked for).
    """

    latent_size: int = 40
    samples: int = 160
    held_out: float = 0.2
    tolerance: float = 1.5
    snapshots: SnapshotSettings = field(default_factory=SnapshotSettings)


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
    squares, distances, diverged = [], [], 0
    judges = [trajectory for trajectory in snapshots if len(trajectory.kept)]
    for trajectory in judges:
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
            diverged += 1
            continue
        squares.append((distance**2).mean())
        distances.append(distance.ravel())
    if not distances:
        return HeldOutError(np.inf, np.inf, np.inf, body.size, diverged, len(judges))
    every = np.concatenate(distances)
    return HeldOutError(
        float(np.sqrt(np.mean(squares))),
        float(np.percentile(every, 99)),
        float(every.max()),
        body.size,
        diverged,
        len(judges),
    )


def reduce_body(
    body: Body,
    settings: ReductionSettings,
    folder: Path,
    *,
    workers: int | None = None,
    ray_address: str | None = None,
) -> ReducedBody:
    """Make and check the reduced model of a body; snapshots are kept in `folder`, so a broken run resumes.

    Where the cubature fails its check the model keeps all samples, slower but sound, and a warning says so.
    """
    snapshots = generate_snapshots(body, settings.snapshots, folder, workers=workers, ray_address=ray_address)
    judged = max(1, round(settings.held_out * len(snapshots)))
    learned, held_out = snapshots[:-judged], snapshots[-judged:]
    if not learned:
        raise ValueError(f"snapshots.trajectories: {len(snapshots)}, at least two are needed, one to judge")
    displacements = local_displacements(body, learned)
    basis, singular = principal_basis(body, displacements, settings.latent_size)
    integrator = settings.snapshots.integrator
    card = {
        "subspace": "principal",
        "latent_size": settings.latent_size,
        "settings": asdict(settings),
        "learned_from": len(displacements),
        "singular_values": singular[: settings.latent_size + 1].tolist(),
    }
    complete = ReducedBody(body, basis, *every_sample(body), card)
    # one compiled model at a time: the one with all samples is the reference of the other
    model = complete.model()
    reference = held_out_error(body, model, held_out, integrator)
    card["all_samples"] = reference.as_card()
    _logger.info("held-out error with all samples: %s", reference)
    if settings.samples == 0 or settings.samples >= len(complete.sample_index):
        return complete
    masses = lumped_masses(body)
    weights = masses / masses.sum()
    latents = np.einsum("n,kni,nir->kr", weights, displacements, basis)
    poses = np.concatenate([trajectory.kept_poses for trajectory in learned])
    cubature = fit_cubature(
        model, poses, latents, settings.samples, poisson_ratio=settings.snapshots.poisson_ratio
    )
    sampled = ReducedBody(body, basis, cubature.index, cubature.weight, card)
    error = held_out_error(body, sampled.model(), held_out, integrator)
    card["cubature"] = {"samples": len(cubature.index), "fit_error": cubature.fit_error, **error.as_card()}
    _logger.info("held-out error with %d samples: %s", len(cubature.index), error)
    if error.diverged > reference.diverged or error.rms > settings.tolerance * reference.rms + 1e-4 * body.size:
        _logger.warning(
            "cubature with %d samples fails its check (rms %.3g m against %.3g m with all, %d of %d diverged): "
            "the model keeps all %d samples",
            len(cubature.index),
            error.rms,
            reference.rms,
            error.diverged,
            error.rollouts,
            len(complete.sample_index),
        )
        card["cubature"]["refused"] = True
        return complete
    return sampled
