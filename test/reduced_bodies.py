"""Small bodies with smooth synthetic subspaces, for tests that need a reduced model but no training."""

from __future__ import annotations

from typing import Any

import numpy as np

from realsimloop_ros.body.body import Body
from realsimloop_ros.body.files import BodySpecification
from realsimloop_ros.reduction.model import ReducedBody, every_sample
from realsimloop_ros.reduction.subspaces import principal_basis

LENGTH, WIDTH = 0.2, 0.03
REST_POSES = np.array([[-0.1, 0, 0, 0, 0, 0, 1.0], [0.1, 0, 0, 0, 0, 0, 1.0]])


def bar_specification(**changes: Any) -> dict:
    """A bar along x between two grips of 20 mm, coarse enough for a test to step it in a millisecond."""
    return {
        "name": "bar",
        "mesh": {
            "kind": "box",
            "size": [LENGTH, WIDTH, WIDTH],
            "divisions": [10, 1, 1],
            "origin": [-LENGTH / 2, -WIDTH / 2, -WIDTH / 2],
        },
        "zones": [{"name": "bar", "density": 1070.0}],
        "grips": [
            {
                "name": "left",
                "frame": "left_tool",
                "rest_pose": REST_POSES[0].tolist(),
                "region": {"maximum": [-0.08, None, None]},
            },
            {
                "name": "right",
                "frame": "right_tool",
                "rest_pose": REST_POSES[1].tolist(),
                "region": {"minimum": [0.08, None, None]},
            },
        ],
        **changes,
    }


def gripped_bar(**changes: Any) -> Body:
    """The bar between two grips."""
    return BodySpecification.model_validate(bar_specification(**changes)).build()


def clamped_beam(**changes: Any) -> Body:
    """The bar clamped at its left end, with nothing at the other."""
    fixed = {"fixed": {"maximum": [-0.08, None, None]}, "grips": []}
    return BodySpecification.model_validate(bar_specification(**{**fixed, **changes})).build()


def smooth_reduced_body(body: Body, latent_size: int = 6, seed: int = 0) -> ReducedBody:
    """A subspace of bending, stretching and shearing shapes that vanish where the body is held."""
    random = np.random.default_rng(seed)
    x = body.rest_positions
    clamped = not body.grips
    along = np.clip((x[:, 0] + 0.08) / (0.18 if clamped else 0.16), 0.0, 1.0)
    shapes = []
    for wave in range(1, 4):
        bump = along**2 * np.cos(0.5 * wave * along) if clamped else np.sin(np.pi * wave * along)
        for _ in range(4):
            linear = random.standard_normal(3) + 20.0 * x[:, 1:] @ random.standard_normal((2, 3))
            shapes.append(bump[:, None] * linear)
    displacements = 1e-2 * np.array(shapes)
    displacements[:, body.held_vertices] = 0.0
    basis, _ = principal_basis(body, displacements, latent_size)
    return ReducedBody(body, basis, *every_sample(body), {"subspace": "synthetic"})
