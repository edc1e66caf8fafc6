"""Where the grips alone would put each vertex, and how they turn it: W(g) and Q(g) of the reduced model.

Every hold (a grip, or the fixed vertices together) moves rigidly, x = R_k X + t_k. A vertex blends these motions
with harmonic weights. Two holds, the case of a bar between two arms, span a cubic Hermite curve between their
anchors whose end tangents turn with the holds; a vertex keeps its offset from that curve in a frame that turns
from the first hold's rotation to the second's. One hold carries the body rigidly. Three or more holds blend
anchors linearly and rotations by their weighted mean quaternion. A body that nothing holds has one hold all the
same: a frame of its own.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spl
from jaxtyping import Array, Float
from numpy.typing import NDArray

from realsimloop_ros.body.body import Body
from realsimloop_ros.mechanics.elements import lumped_volumes, quadrature


class GripWarp(eqx.Module):
    """Constants of the warp at a set of vertices.

    rest_positions: (n, 3) m; weights: (n, k) per hold, sum one; anchors: (k, 3) rest anchor points, m;
    rest_poses: (g, 7) of the grips; fixed: whether the last hold is the fixed vertices.
    """

    rest_positions: Float[Array, "n 3"]
    weights: Float[Array, "n k"]
    anchors: Float[Array, "k 3"]
    rest_poses: Float[Array, "g 7"]
    fixed: bool = eqx.field(static=True)

    def take(self, vertices: NDArray[np.int64]) -> GripWarp:
        """The warp at a subset of the vertices."""
        return GripWarp(
            self.rest_positions[vertices], self.weights[vertices], self.anchors, self.rest_poses, self.fixed
        )


def is_floating(body: Body) -> bool:
    """Whether nothing holds the body."""
    return len(body.held_vertices) == 0


def grip_warp(body: Body) -> GripWarp:
    """The warp of a body at all its vertices.

    That of a body that nothing holds is a rigid motion of its own frame, which rests at its centre of volume.
    """
    if is_floating(body):
        volumes = lumped_volumes(body).sum(axis=1)
        centre = volumes @ body.rest_positions / volumes.sum()
        whole = jnp.ones((len(body.rest_positions), 1))
        pose = np.concatenate([centre, [0.0, 0.0, 0.0, 1.0]])
        return GripWarp(
            jnp.asarray(body.rest_positions), whole, jnp.asarray(centre[None]), jnp.asarray(pose[None]), False
        )
    holds = [grip.vertices for grip in body.grips]
    fixed = len(body.fixed_vertices) > 0
    if fixed:
        holds.append(body.fixed_vertices)
    weights = harmonic_weights(body, holds)
    anchors = np.stack([_anchor(body, holds, weights, k) for k in range(len(holds))])
    poses = np.array([grip.rest_pose for grip in body.grips]).reshape(-1, 7)
    return GripWarp(
        jnp.asarray(body.rest_positions),
        jnp.asarray(weights),
        jnp.asarray(anchors),
        jnp.asarray(poses),
        fixed,
    )


def harmonic_weights(body: Body, holds: list[NDArray[np.int64]]) -> NDArray[np.float64]:
    """Weights (n, k): one on hold k, zero on the others, harmonic between."""
    n = len(body.rest_positions)
    weights = np.zeros((n, len(holds)))
    for k, vertices in enumerate(holds):
        weights[vertices, k] = 1.0
    if len(holds) == 1:
        return np.ones((n, 1))
    samples = quadrature(body)
    nodes = samples.nodes
    blocks = np.einsum("s,sai,sbi->sab", samples.volume, samples.gradients, samples.gradients)
    a = nodes.shape[1]
    laplacian = sp.csc_matrix(
        (blocks.ravel(), (np.repeat(nodes, a, axis=1).ravel(), np.tile(nodes, (1, a)).ravel())), shape=(n, n)
    )
    held = np.zeros(n, bool)
    held[np.concatenate(holds)] = True
    free = np.flatnonzero(~held)
    right = -laplacian[free][:, held] @ weights[held]
    weights[free] = spl.splu(laplacian[free][:, free].tocsc()).solve(right)
    return weights


def _anchor(
    body: Body, holds: list[NDArray[np.int64]], weights: NDArray[np.float64], k: int
) -> NDArray[np.float64]:
    """Mean of the hold's vertices that touch the free part: where the body leaves the hold."""
    in_hold = np.zeros(len(body.rest_positions), bool)
    in_hold[holds[k]] = True
    border_tets = body.tets[in_hold[body.tets].any(axis=1) & ~in_hold[body.tets].all(axis=1)]
    border = np.unique(border_tets[in_hold[border_tets]])
    chosen = border if len(border) else holds[k]
    return body.rest_positions[chosen].mean(axis=0)


def quaternion_product(a: Float[Array, "*b 4"], b: Float[Array, "*b 4"]) -> Float[Array, "*b 4"]:
    """Products of quaternions x y z w; the rotation of b comes first."""
    av, aw, bv, bw = a[..., :3], a[..., 3:], b[..., :3], b[..., 3:]
    vector = aw * bv + bw * av + jnp.cross(av, bv)
    scalar = aw * bw - jnp.sum(av * bv, axis=-1, keepdims=True)
    return jnp.concatenate([vector, scalar], axis=-1)


def _conjugate(q: Array) -> Array:
    return jnp.concatenate([-q[..., :3], q[..., 3:]], axis=-1)


def quaternion_to_matrix(q: Float[Array, "*b 4"]) -> Float[Array, "*b 3 3"]:
    """Rotation matrices of unit quaternions x y z w."""
    x, y, z, w = q[..., 0], q[..., 1], q[..., 2], q[..., 3]
    rows = [
        jnp.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], axis=-1),
        jnp.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], axis=-1),
        jnp.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], axis=-1),
    ]
    return jnp.stack(rows, axis=-2)


def _partial_rotation(relative: Float[Array, 4], fraction: Float[Array, " n"]) -> Float[Array, "n 4"]:
    """The quaternion of a fraction of a relative rotation, smooth through the identity."""
    relative = jnp.where(relative[3] < 0.0, -relative, relative)
    vector, scalar = relative[:3], relative[3]
    squared = jnp.sum(vector**2)
    small = squared < 1e-16
    # below that the angle's series is exact to rounding, and its square root has no derivative at zero
    length = jnp.sqrt(jnp.where(small, 1.0, squared))
    half_angle = jnp.where(small, 0.0, jnp.arctan2(length, scalar))
    axis_sine = jnp.outer(jnp.sin(fraction * half_angle), vector / length)
    direct = jnp.outer(fraction, vector)
    imaginary = jnp.where(small, direct, axis_sine)
    real = jnp.where(small, jnp.ones_like(fraction), jnp.cos(fraction * half_angle))
    return jnp.concatenate([imaginary, real[:, None]], axis=-1)


def hold_motions(warp: GripWarp, poses: Float[Array, "g 7"]) -> tuple[Float[Array, "k 4"], Float[Array, "k 3"]]:
    """Motion of each hold from rest: quaternions (k, 4) and the present positions (k, 3) of the anchors, m."""
    rotation = quaternion_product(poses[:, 3:], _conjugate(warp.rest_poses[:, 3:]))
    moved = warp.anchors[: len(poses)] - warp.rest_poses[:, :3]
    anchors = poses[:, :3] + jnp.einsum("kij,kj->ki", quaternion_to_matrix(rotation), moved)
    if warp.fixed:
        rotation = jnp.concatenate([rotation, jnp.array([[0.0, 0.0, 0.0, 1.0]], rotation.dtype)])
        anchors = jnp.concatenate([anchors, warp.anchors[-1:]])
    return rotation, anchors


def warped(warp: GripWarp, poses: Float[Array, "g 7"]) -> tuple[Float[Array, "n 3"], Float[Array, "n 3 3"]]:
    """W(g) (n, 3), m, and Q(g) (n, 3, 3) for grip poses (g, 7)."""
    rotation, anchors = hold_motions(warp, poses)
    holds = rotation.shape[0]
    x = warp.rest_positions
    if holds == 1:
        turn = jnp.broadcast_to(quaternion_to_matrix(rotation[0]), (len(x), 3, 3))
        return anchors[0][None] + jnp.einsum("nij,nj->ni", turn, x - warp.anchors[0][None]), turn
    if holds == 2:
        u = warp.weights[:, 1]
        turned = _partial_rotation(quaternion_product(_conjugate(rotation[0]), rotation[1]), u)
        turn = quaternion_to_matrix(quaternion_product(rotation[:1], turned))
        axis = warp.anchors[1] - warp.anchors[0]
        # end tangents as long as the present distance of the anchors, in the direction the holds give them
        squared = jnp.sum((anchors[1] - anchors[0]) ** 2) / jnp.sum(axis**2)
        stretch = jnp.sqrt(jnp.maximum(squared, 1e-12))
        ends = quaternion_to_matrix(rotation)
        start, stop = stretch * (ends[0] @ axis), stretch * (ends[1] @ axis)
        v = u[:, None]
        curve = (
            (1.0 + 2.0 * v) * (1.0 - v) ** 2 * anchors[0][None]
            + v * (1.0 - v) ** 2 * start[None]
            + v**2 * (3.0 - 2.0 * v) * anchors[1][None]
            + v**2 * (v - 1.0) * stop[None]
        )
        offset = x - (warp.anchors[0][None] + v * axis[None])
        return curve + jnp.einsum("nij,nj->ni", turn, offset), turn
    aligned = rotation * jnp.where((rotation @ rotation[0])[:, None] < 0.0, -1.0, 1.0)
    blended = warp.weights @ aligned
    turn = quaternion_to_matrix(blended / jnp.linalg.norm(blended, axis=-1, keepdims=True))
    offset = x - warp.weights @ warp.anchors
    return warp.weights @ anchors + jnp.einsum("nij,nj->ni", turn, offset), turn
