"""The sliding window: segments of simulated time, the frames seen in them, and what those say about theta."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from realsimloop_ros.dynamics.rollout import Trajectory, TwinState, in_precision_of, rollout
from realsimloop_ros.dynamics.stepper import CONVERGED, StepSettings
from realsimloop_ros.dynamics.wrench import wrenches_with_tangents
from realsimloop_ros.estimation.theta import ParameterSpace
from realsimloop_ros.observation.likelihoods import FrameObservation, Likelihood, LikelihoodTerm, PredictedState
from realsimloop_ros.observation.wrench_likelihood import WrenchLikelihood
from realsimloop_ros.reduction.model import ReducedModel, kinematics, position_tangents, positions


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a segment's frames say, linearised at u (p,).

    loss; gradient: (p,); precision: Gauss-Newton matrix (p, p); valid: False where a step of the segment did not
    converge, whose frames then do not vote.
    """

    u: NDArray[np.float64]
    loss: float
    gradient: NDArray[np.float64]
    precision: NDArray[np.float64]
    frames: int
    valid: bool
    figures: dict[str, float]

    def loss_at(self, u: NDArray[np.float64]) -> float:
        """The quadratic model of the loss at u (p,)."""
        away = u - self.u
        return float(self.loss + self.gradient @ away + 0.5 * away @ self.precision @ away)

    def information(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Precision (p, p) and information vector (p,): the quadratic model's minimum is precision^-1 vector."""
        return self.precision, self.precision @ self.u - self.gradient


@dataclass(frozen=True, eq=False)
class SegmentFrame:
    """A frame and where it lies: between tick - 1 and tick (0-based in its segment), `fraction` of the way."""

    observation: FrameObservation
    tick: int
    fraction: float
    grip_poses: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Cut:
    """What is known of a fixed number of ticks before they are rolled out.

    grip_poses: (c, g, 7) at the ticks; wrenches: (g, 6) measured at the last tick, where they are used;
    begins_track: whether it begins where the track started, so at a state known for any u.
    """

    end_stamp_ns: int
    grip_poses: NDArray[np.float64]
    frames: tuple[SegmentFrame, ...]
    wrenches: NDArray[np.float64] | None = None
    begins_track: bool = False


@dataclass(eq=False)
class Segment:
    """A cut rolled out at evidence.u; start, end: states before the first tick and after the last.

    weight: what its evidence has been multiplied by; distance: in deviations, by which it contradicted what was
    known when it came.
    """

    cut: Cut
    start: TwinState
    end: TwinState
    run: Trajectory
    evidence: Evidence
    weight: float = 1.0
    distance: float = 0.0


@eqx.filter_jit
def observed_vertices(
    model: ReducedModel,
    grip_poses: Array,
    start: tuple[Array, Array],
    run: tuple[Array, Array],
    tick: Array,
    fraction: Array,
) -> tuple[Array, Array]:
    """Vertices (n, 3) and their tangents (n, 3, p) at a stamp `fraction` of the way from tick - 1 to tick.

    start: latent state (r,) and its tangents (r, p) before the first tick; run: (w, r) and (w, r, p) at the ticks;
    grip_poses: (g, 7) at the stamp itself. One program for every tick, so that nothing is sliced outside.
    """

    def between(before_all: Array, ticks: Array) -> Array:
        before = jnp.where(tick == 0, before_all, ticks[tick - 1])
        return (1.0 - fraction) * before + fraction * ticks[tick]

    grip_poses, fraction = in_precision_of(model, (grip_poses, fraction))
    frame = kinematics(model, grip_poses)
    latent, tangent = between(start[0], run[0]), between(start[1], run[1])
    return positions(model, frame, latent), position_tangents(model, frame, latent, tangent)


def roll_out(
    model: ReducedModel,
    settings: StepSettings,
    space: ParameterSpace,
    u: NDArray[np.float64],
    start: TwinState,
    grip_poses: NDArray[np.float64],
    *,
    last_start: bool,
) -> tuple[TwinState, TwinState, Trajectory]:
    """Roll a segment out at u; returns the states before and after its last tick, and all ticks.

    last_start: whether the state before the last tick is wanted, which takes a second program; else the first of
    the three is the segment's start.
    """
    if len(grip_poses) == 1 or not last_start:
        end, run = simulate(model, settings, space, u, start, grip_poses)
        return start, end, run
    before, first = simulate(model, settings, space, u, start, grip_poses[:-1])
    end, last = simulate(model, settings, space, u, before, grip_poses[-1:])
    return before, end, Trajectory(*(jnp.concatenate(parts) for parts in zip(first, last, strict=True)))


def wrench_term(
    model: ReducedModel,
    settings: StepSettings,
    space: ParameterSpace,
    u: NDArray[np.float64],
    before: TwinState,
    end: TwinState,
    grip_poses: NDArray[np.float64],
    likelihood: WrenchLikelihood,
    measured: NDArray[np.float64],
) -> LikelihoodTerm | None:
    """What wrenches (g, 6) measured at the end of a step say."""
    theta = u[: space.size]
    predicted, tangents = wrenches_with_tangents(
        model,
        settings,
        jnp.asarray(grip_poses),
        before.past,
        before.past_tangents,
        space.material(theta),
        space.directions(theta, len(u)),
        end.latents[0],
        end.latent_tangents[0],
    )
    return likelihood.evaluate(np.asarray(predicted, np.float64), np.asarray(tangents, np.float64), measured)


def simulate(
    model: ReducedModel,
    settings: StepSettings,
    space: ParameterSpace,
    u: NDArray[np.float64],
    start: TwinState,
    grip_poses: NDArray[np.float64],
) -> tuple[TwinState, Trajectory]:
    """Roll a segment out at u (P,), whose first entries are theta and whose others concern the start alone."""
    theta = u[: space.size]
    material, directions = space.material(theta), space.directions(theta, len(u))
    return rollout(model, settings, material, directions, start, jnp.asarray(grip_poses))


def latent_at(start: TwinState, run: Trajectory, frame: SegmentFrame) -> NDArray[np.float64]:
    """Latent state (r,) at a frame's stamp."""
    latents = np.concatenate([np.asarray(start.latents[:1]), np.asarray(run.latents)])
    return (1.0 - frame.fraction) * latents[frame.tick] + frame.fraction * latents[frame.tick + 1]


def predicted_state(
    model: ReducedModel, u: NDArray[np.float64], start: TwinState, run: Trajectory, frame: SegmentFrame
) -> PredictedState:
    """State of a segment rolled out at u, at a frame's stamp."""
    x, moves = observed_vertices(
        model,
        jnp.asarray(frame.grip_poses),
        (start.latents[0], start.latent_tangents[0]),
        (run.latents, run.tangents),
        jnp.asarray(frame.tick),
        jnp.asarray(frame.fraction),
    )
    return PredictedState(np.asarray(x, np.float64), np.asarray(moves, np.float64), u)


def gather_evidence(
    likelihoods: Sequence[Likelihood],
    u: NDArray[np.float64],
    run: Trajectory,
    frames: Sequence[tuple[PredictedState, FrameObservation]],
    others: Sequence[LikelihoodTerm] = (),
) -> Evidence:
    """Sum of all likelihood terms of a segment: those of its frames, predicted and observed, and others."""
    p = len(u)
    loss, gradient, precision, seen = 0.0, np.zeros(p), np.zeros((p, p)), 0
    figures: dict[str, float] = {}
    valid = bool((np.asarray(run.results) == CONVERGED).all())
    if valid:
        for predicted, observation in frames:
            terms = [likelihood.evaluate(predicted, observation) for likelihood in likelihoods]
            for term in terms:
                if term is not None:
                    loss += term.loss
                    gradient += term.gradient
                    precision += term.gauss_newton
                    figures |= term.figures
            seen += any(term is not None for term in terms)
        for term in others:
            loss += term.loss
            gradient += term.gradient
            precision += term.gauss_newton
            figures |= term.figures
    finite = np.isfinite(loss) and np.isfinite(gradient).all() and np.isfinite(precision).all()
    return Evidence(u.copy(), loss, gradient, precision, seen, valid and bool(finite), figures)
