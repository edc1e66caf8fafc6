"""The twin of an experiment: one track of the estimator, and the theta that experiments share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import jax.numpy as jnp
import numpy as np

from realsimloop_ros.dynamics.reduce import ReductionSettings
from realsimloop_ros.dynamics.stepper import StepSettings
from realsimloop_ros.estimation.estimator import TwinEstimator
from realsimloop_ros.estimation.theta import Parameter, ParameterSpace, Quantity
from realsimloop_ros.estimation.track import Track
from realsimloop_ros.estimation.updates import EstimatorSettings
from realsimloop_ros.evaluation.experiments import Experiment, ExperimentError
from realsimloop_ros.evaluation.model_library import ModelLibrary
from realsimloop_ros.evaluation.preparation import PreparedExperiment
from realsimloop_ros.mechanics.integrators import integrator_named
from realsimloop_ros.mechanics.material import POISSON_RATIO_LIMIT, Material, material_of
from realsimloop_ros.observation.likelihoods import MarkerLikelihood
from realsimloop_ros.reduction.snapshots import SnapshotSettings

# a body with few holds moves in few shapes: 16 leave 0.01 % of a beam's motion over the range sampled below
_LATENT_SIZE, _SAMPLES = 16, 200


def reduction_settings(experiment: Experiment) -> ReductionSettings:
    """Snapshots around what the experiment expects: its gravity, its moduli from a half to three times."""
    zones = experiment.estimation.zones.values()
    moduli = [zone.youngs_modulus.start for zone in zones]
    ratios = [zone.poisson_ratio.start for zone in zones]
    gravity = float(np.linalg.norm(experiment.gravity))
    highest = min(max(ratios) + 0.01, POISSON_RATIO_LIMIT)
    snapshots = SnapshotSettings(
        trajectories=10,
        time_step=0.005,
        youngs_modulus=(min(moduli) / 1.7, 3.0 * max(moduli)),
        poisson_ratio=(min(min(ratios) - 0.01, highest - 0.01), highest),
        gravity=(0.5 * gravity, 1.2 * gravity),
        gravity_direction=experiment.gravity,
    )
    return ReductionSettings(_LATENT_SIZE, _SAMPLES, snapshots=snapshots)


def origin_ns(prepared: PreparedExperiment) -> int:
    """Where the twin starts: the first frame, or the first turning point after a release, when no hand touches
    the body any more."""
    if prepared.release is None:
        return int(prepared.stamps_ns[0])
    return int(prepared.stamps_ns[prepared.release.turning_frame])


def experiment_track(prepared: PreparedExperiment, library: ModelLibrary) -> Track:
    """The estimator's track of one experiment.

    A released body starts at the first turning point of its motion: near the static shape displaced along its
    leading latent coordinates, and these corrections are estimated with theta.
    """
    specification = prepared.experiment.estimation
    settings = StepSettings(
        integrator_named(specification.integrator),
        specification.time_step,
        gravity=jnp.asarray(prepared.gravity),
        mass_damping=specification.mass_damping,
        viscous=any(zone.viscous for zone in specification.zones.values()),
    )
    likelihood = MarkerLikelihood(
        prepared.body, specification.marker_noise, frames_per_sample=specification.frames_per_sample
    )
    reduced = library.find(prepared.body, reduction_settings(prepared.experiment))
    free = prepared.release is not None
    return Track(
        prepared.body,
        reduced.model(),
        settings,
        [likelihood],
        origin_ns=origin_ns(prepared),
        free_start=specification.free_start if free else 0,
        start_displacement=0.1 * prepared.body.size,
        start_velocity=prepared.body.size,
    )


def shared_parameters(experiments: Sequence[PreparedExperiment]) -> ParameterSpace:
    """The theta of several experiments; ExperimentError where they disagree about what is estimated."""
    first = experiments[0]
    zones = first.experiment.estimation.zones
    for other in experiments[1:]:
        if other.experiment.estimation.zones != zones or other.body.zone_names != first.body.zone_names:
            raise ExperimentError(
                f"{other.name}: estimation.zones differ from those of {first.name}; experiments that are "
                "estimated together share one theta, so give both the same"
            )
        if [zone.density for zone in other.body.zones] != [zone.density for zone in first.body.zones]:
            raise ExperimentError(
                f"{other.name}: body: its zones' densities differ from those of {first.name}; experiments that "
                "are estimated together share one theta, and density is a part of it"
            )
    body = first.body
    if set(zones) != set(body.zone_names):
        raise ExperimentError(
            f"{first.name}: estimation.zones: {sorted(zones)}, but the body's zones are {sorted(body.zone_names)}"
        )
    ordered = [zones[name] for name in body.zone_names]
    prior = material_of(
        body,
        [zone.youngs_modulus.start for zone in ordered],
        [zone.poisson_ratio.start for zone in ordered],
        [zone.viscosity.start for zone in ordered],
        [
            zone.density.start if zone.density is not None else own.density
            for zone, own in zip(ordered, body.zones, strict=True)
        ],
    )
    parameters = []
    for name, zone in zip(body.zone_names, ordered, strict=True):
        for quantity in get_args(Quantity):
            entry = getattr(zone, quantity)
            if entry is not None and entry.estimated:
                parameters.append(Parameter(name, quantity, entry.prior_deviation, *entry.bounds))
    return ParameterSpace(body.zone_names, tuple(parameters), prior)


def with_held_theta(space: ParameterSpace, material: Material) -> ParameterSpace:
    """A space in which `material` is held: only how released bodies started is left to be estimated."""
    return ParameterSpace(space.zone_names, (), material)


def experiment_estimator(
    experiments: Sequence[PreparedExperiment], space: ParameterSpace, library: ModelLibrary
) -> TwinEstimator:
    """One estimator over all experiments, a track for each. space: of shared_parameters, or with_held_theta."""
    specification = experiments[0].experiment.estimation
    rates = [float(np.median(np.diff(prepared.stamps_ns))) * 1e-9 for prepared in experiments]
    settings = EstimatorSettings(
        window=specification.window,
        ticks_per_segment=max(1, round(specification.frames_per_update * rates[0] / specification.time_step)),
        forgetting=specification.forgetting,
        # nobody waits for a frame: all of the recordings may be rolled out anew three times
        relinearisations=3 * specification.window * len(experiments),
    )
    tracks = [experiment_track(prepared, library) for prepared in experiments]
    return TwinEstimator(tracks, space, settings)
