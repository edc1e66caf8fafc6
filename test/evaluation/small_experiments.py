"""Experiments small enough for a test: a coarse bar with a synthetic subspace that observes itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray

from realsimloop_ros.body.body import Body, bind_points
from realsimloop_ros.dynamics.rollout import no_directions, rest_state, rollout, undeformed_state
from realsimloop_ros.dynamics.stepper import CONVERGED, StepSettings
from realsimloop_ros.evaluation.bags import bag_writer
from realsimloop_ros.evaluation.captures import FIRST_STAMP_NS
from realsimloop_ros.evaluation.experiments import load_experiment
from realsimloop_ros.evaluation.marker_messages import marker_array
from realsimloop_ros.evaluation.model_library import ModelLibrary
from realsimloop_ros.mechanics.integrators import BDF2
from realsimloop_ros.mechanics.material import material_of
from realsimloop_ros.reduction.model import ReducedBody, kinematics, positions, save_reduced_body
from reduced_bodies import bar_specification, smooth_reduced_body

TRUE_MODULUS, PRIOR_MODULUS = 4.0e4, 2.8e4
MARKERS = {"top": [0.1, 0.0, 0.02], "left": [0.1, 0.018, 0.0], "middle": [0.02, 0.0, 0.016]}
RATE, STEP, DAMPING = 100.0, 0.005, 2.0
HELD = 30  # frames before the release
# the capture's frame: y up, x along the bar, and somewhere else
FROM_BODY = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]])
OFFSET = np.array([0.4, 1.1, -0.3])


def experiment_content(**changes: Any) -> dict[str, Any]:
    """A bar clamped at one end, held straight and released."""
    return {
        "body": bar_specification(fixed={"maximum": [-0.08, None, None]}, grips=[]),
        "gravity": [0.0, 0.0, -9.81],
        "capture": {"path": "bag"},
        "body_frame": {"kind": "axes", "x": "+x", "y": "-z", "z": "+y"},
        "markers": MARKERS,
        "estimation": {
            "time_step": STEP,
            "mass_damping": DAMPING,
            "zones": {
                "bar": {"youngs_modulus": {"prior": PRIOR_MODULUS}, "poisson_ratio": {"held": 0.45}},
            },
        },
        **changes,
    }


def write_experiment(folder: Path, content: dict[str, Any], name: str = "drop") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def with_model(folder: Path, experiment: Path) -> tuple[ReducedBody, ModelLibrary]:
    """The synthetic model of an experiment's body, put where the library finds it."""
    body = load_experiment(experiment).build_body()
    reduced = smooth_reduced_body(body)
    save_reduced_body(folder / "models" / f"{body.content_hash[:8]}.npz", reduced)
    return reduced, ModelLibrary((folder / "models",))


def released_markers(reduced: ReducedBody, seconds: float) -> NDArray[np.float64]:
    """What is seen of the truth: markers (t, k, 3), m, in the body's frame, held and then released."""
    steps = round(seconds / STEP)
    still = jnp.zeros((steps, 0, 7))
    x = simulated(reduced, np.asarray(still), rest=False)[1 :: round(1.0 / RATE / STEP)]
    seen = np.concatenate([np.repeat(reduced.body.rest_positions[None], HELD, axis=0), x])
    return noisy(seen_markers(reduced.body, seen))


def simulated(reduced: ReducedBody, poses: NDArray[np.float64], *, rest: bool) -> NDArray[np.float64]:
    """Vertices (t, n, 3), m, of the truth at grip poses (t, g, 7); from rest, or from the undeformed shape."""
    model, body = reduced.model(), reduced.body
    settings = StepSettings(BDF2, STEP, gravity=jnp.array([0.0, 0.0, -9.81]), mass_damping=DAMPING)
    material, none = material_of(body, TRUE_MODULUS, 0.45), no_directions(1)
    moving = jnp.asarray(poses)
    if rest:
        state, _ = rest_state(model, settings, material, none, moving[0])
    else:
        state = undeformed_state(model, settings, moving[0], 0)
    _, run = rollout(model, settings, material, none, state, moving)
    assert (np.asarray(run.results) == CONVERGED).all()
    places = [positions(model, kinematics(model, pose), z) for pose, z in zip(moving, run.latents, strict=True)]
    return np.asarray(places)


def seen_markers(
    body: Body, x: NDArray[np.float64], places: Mapping[str, ArrayLike] = MARKERS
) -> NDArray[np.float64]:
    """Markers (t, k, 3) at vertices x (t, n, 3)."""
    attachment = bind_points(body, np.array(list(places.values())))
    return np.stack([attachment.positions(vertices, body.tets) for vertices in x])


def noisy(positions: NDArray[np.float64]) -> NDArray[np.float64]:
    return positions + np.random.default_rng(2).normal(0.0, 1e-5, positions.shape)


def stamps(frames: int) -> NDArray[np.int64]:
    return FIRST_STAMP_NS + np.rint(np.arange(frames) * 1e9 / RATE).astype(np.int64)


def in_capture(positions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points of the body's frame in the capture's."""
    return positions @ FROM_BODY.T + OFFSET


def write_bag(path: Path, positions: NDArray[np.float64], names: tuple[str, ...] = tuple(MARKERS)) -> None:
    """A recording of markers (t, k, 3), given in the body's frame."""
    with bag_writer(path) as bag:
        for k, (stamp, seen) in enumerate(
            zip(stamps(len(positions)).tolist(), in_capture(positions), strict=True)
        ):
            bag.write("markers", stamp, marker_array(stamp, "capture", names, seen))
            if k % 10 == 9:
                bag.flush()  # as a recorder does every second: what is there can be read after a cut
