"""What is simulated: a tetrahedral body with zones, grips, weights, markers and cables, as plain data."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import trimesh
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from realsimloop_ros.body.parts import (
    Attachment,
    Cable,
    Grip,
    HungWeight,
    InvalidBodyError,
    Zone,
)
from realsimloop_ros.body.poses import checked_poses
from realsimloop_ros.body.shape_functions import EDGES, refined_coordinates, rest_gradients, shape_values


@dataclass(frozen=True)
class Body:
    """A deformable body at rest.

    rest_positions: (n, 3) m; tets: (m, 10) quadratic or (m, 4) linear, corners first (VTK order);
    zone_of_tet: (m,) index into zones; fixed_vertices: (k,) vertices that never move.
    Raises InvalidBodyError where the data cannot be simulated.
    """

    name: str
    rest_positions: NDArray[np.float64]
    tets: NDArray[np.int64]
    zone_of_tet: NDArray[np.int64]
    zones: tuple[Zone, ...]
    grips: tuple[Grip, ...] = ()
    fixed_vertices: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    hung_weights: tuple[HungWeight, ...] = ()
    marker_names: tuple[str, ...] = ()
    markers: Attachment | None = None
    cables: tuple[Cable, ...] = ()

    def __post_init__(self) -> None:
        _validate(self)

    @property
    def nodes_per_tet(self) -> int:
        return self.tets.shape[1]

    @property
    def zone_names(self) -> tuple[str, ...]:
        return tuple(zone.name for zone in self.zones)

    @property
    def grip_names(self) -> tuple[str, ...]:
        return tuple(grip.name for grip in self.grips)

    @property
    def cable_names(self) -> tuple[str, ...]:
        return tuple(cable.name for cable in self.cables)

    @property
    def held_vertices(self) -> NDArray[np.int64]:
        """Vertices whose motion is prescribed: gripped or fixed, sorted."""
        parts = [self.fixed_vertices, *(grip.vertices for grip in self.grips)]
        return np.unique(np.concatenate(parts)).astype(np.int64)

    @cached_property
    def size(self) -> float:
        """The longest edge of the rest bounding box, m: the length errors are related to."""
        return float(np.ptp(self.rest_positions, axis=0).max())

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 over everything that defines the body; every message repeats it."""
        digest = hashlib.sha256()
        _feed(digest, self)
        return digest.hexdigest()


def _feed(digest: hashlib._Hash, value: object) -> None:
    if isinstance(value, np.ndarray):
        # the same numbers give the same hash whatever the width they are held in
        wide = value.astype("<f8" if value.dtype.kind == "f" else "<i8")
        digest.update(f"{wide.dtype.kind}{wide.shape}".encode())
        digest.update(wide.tobytes())
    elif isinstance(value, tuple):
        digest.update(f"({len(value)}".encode())
        for item in value:
            _feed(digest, item)
    elif hasattr(value, "__dataclass_fields__"):
        for entry in fields(value):  # type: ignore[arg-type]
            if entry.name == "cables" and not value.cables:  # type: ignore[attr-defined]
                continue  # bodies without cables keep the hash they had before there were any
            digest.update(entry.name.encode())
            _feed(digest, getattr(value, entry.name))
    else:
        digest.update(repr(value).encode())


def corner_volumes(rest_positions: NDArray[np.float64], tets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Signed volumes (m,) of the corner tets, m^3."""
    corners = rest_positions[tets[:, :4]]
    return np.linalg.det(corners[:, 1:] - corners[:, :1]) / 6.0


def _validate(body: Body) -> None:
    x, tets = body.rest_positions, body.tets
    if x.ndim != 2 or x.shape[1] != 3 or len(x) == 0:
        raise InvalidBodyError(f"rest_positions: shape {x.shape}, expected (n, 3) with n > 0")
    if not np.isfinite(x).all():
        bad = int(np.flatnonzero(~np.isfinite(x).all(axis=1))[0])
        raise InvalidBodyError(f"rest_positions: vertex {bad} is {x[bad].tolist()}; repair the mesh")
    if tets.ndim != 2 or tets.shape[1] not in (4, 10) or len(tets) == 0:
        raise InvalidBodyError(f"tets: shape {tets.shape}, expected (m, 4) or (m, 10) with m > 0")
    if tets.min() < 0 or tets.max() >= len(x):
        raise InvalidBodyError(f"tets: vertex indices {tets.min()}..{tets.max()}, but there are {len(x)} vertices")
    volumes = corner_volumes(x, tets)
    if volumes.min() <= 0.0:
        bad = int(volumes.argmin())
        raise InvalidBodyError(
            f"tets: tet {bad} has volume {volumes[bad]:.3g} m^3 at rest "
            f"({int((volumes <= 0).sum())} such tets); reorder its corners or repair the mesh"
        )
    unused = np.setdiff1d(np.arange(len(x)), tets)
    if len(unused):
        raise InvalidBodyError(
            f"rest_positions: {len(unused)} vertices (first {unused[0]}) belong to no tet; drop them"
        )
    if body.zone_of_tet.shape != (len(tets),):
        raise InvalidBodyError(f"zone_of_tet: shape {body.zone_of_tet.shape}, expected ({len(tets)},)")
    if not body.zones or body.zone_of_tet.min() < 0 or body.zone_of_tet.max() >= len(body.zones):
        raise InvalidBodyError(
            f"zone_of_tet: values {body.zone_of_tet.min()}..{body.zone_of_tet.max()}, "
            f"but the zones are {body.zone_names}"
        )
    for label, names in (
        ("zones", body.zone_names),
        ("grips", body.grip_names),
        ("marker_names", body.marker_names),
        ("cables", body.cable_names),
    ):
        if len(set(names)) != len(names):
            raise InvalidBodyError(f"{label}: names {names} repeat; give each its own")
    for zone in body.zones:
        if not (np.isfinite(zone.density) and zone.density > 0.0):
            raise InvalidBodyError(
                f"zones.{zone.name}.density: {zone.density}, expected a positive value in kg/m^3"
            )
    for index, zone in enumerate(body.zones):
        if not (body.zone_of_tet == index).any():
            raise InvalidBodyError(f"zones.{zone.name}: holds no tet; widen its region or remove the zone")
    _validate_holds(body)
    _validate_connection(body)
    _validate_weights(body)
    _validate_markers(body)
    for cable in body.cables:
        _validate_cable(body, cable)


def _validate_holds(body: Body) -> None:
    n = len(body.rest_positions)
    taken = np.zeros(n, bool)
    holds = [("fixed_vertices", body.fixed_vertices)] + [
        (f"grips.{grip.name}", grip.vertices) for grip in body.grips
    ]
    for label, vertices in holds:
        if label != "fixed_vertices" and len(vertices) < 3:
            raise InvalidBodyError(
                f"{label}: {len(vertices)} vertices, a grip needs three or more; widen its region"
            )
        if len(vertices) and (vertices.min() < 0 or vertices.max() >= n):
            raise InvalidBodyError(f"{label}: vertex indices outside 0..{n - 1}")
        if len(np.unique(vertices)) != len(vertices):
            raise InvalidBodyError(f"{label}: names vertices twice; name each once")
        if taken[vertices].any():
            raise InvalidBodyError(f"{label}: shares vertices with another grip or the fixed ones; separate them")
        taken[vertices] = True
    for grip in body.grips:
        checked_poses(grip.rest_pose, f"grips.{grip.name}.rest_pose")
    if taken.all():
        raise InvalidBodyError("grips: every vertex is held, nothing can deform; narrow the grips")


def _validate_connection(body: Body) -> None:
    """Every connected part needs a hold; a body without any hold flies freely, but only in one piece."""
    n = len(body.rest_positions)
    first = np.repeat(body.tets[:, :1], body.nodes_per_tet - 1, axis=1).ravel()
    links = sp.coo_matrix((np.ones(len(first), bool), (first, body.tets[:, 1:].ravel())), shape=(n, n))
    count, part = connected_components(links, directed=False)
    if count == 1:
        return
    loose = np.setdiff1d(np.arange(count), part[body.held_vertices])
    if len(loose):
        vertices = np.flatnonzero(part == loose[0])
        where = np.round(body.rest_positions[vertices].mean(axis=0), 6).tolist()
        raise InvalidBodyError(
            f"tets: the mesh falls into {count} parts and nothing holds {len(loose)} of them (the first has "
            f"{len(vertices)} vertices about {where} m); merge double vertices, drop the part, "
            "or grip or fix it"
        )


def _validate_weights(body: Body) -> None:
    n = len(body.rest_positions)
    for weight in body.hung_weights:
        label = f"hung_weights.{weight.name}"
        if not (np.isfinite(weight.mass) and weight.mass >= 0.0):
            raise InvalidBodyError(f"{label}.mass: {weight.mass}, expected kg >= 0")
        if len(weight.vertices) == 0 or weight.weights.shape != weight.vertices.shape:
            raise InvalidBodyError(
                f"{label}: {len(weight.vertices)} vertices and {len(weight.weights)} weights, "
                "expected one weight per vertex and at least one"
            )
        if weight.vertices.min() < 0 or weight.vertices.max() >= n:
            raise InvalidBodyError(f"{label}.vertices: indices outside 0..{n - 1}")
        if not (weight.weights >= 0.0).all() or abs(float(weight.weights.sum()) - 1.0) > 1e-9:
            raise InvalidBodyError(
                f"{label}.weights: sum {weight.weights.sum()}, smallest {weight.weights.min()}; "
                "expected none negative and a sum of one"
            )


def _validate_markers(body: Body) -> None:
    markers = body.markers
    if (0 if markers is None else len(markers)) != len(body.marker_names):
        raise InvalidBodyError(f"markers: their number differs from that of marker_names {body.marker_names}")
    if markers is not None:
        _validate_attachment(body, markers, "markers")


def _validate_attachment(body: Body, attachment: Attachment, label: str) -> None:
    k, a = len(attachment), body.nodes_per_tet
    if attachment.weights.shape != (k, a) or attachment.gradients.shape != (k, a, 3):
        raise InvalidBodyError(
            f"{label}: weights {attachment.weights.shape} and gradients {attachment.gradients.shape}, expected "
            f"({k}, {a}) and ({k}, {a}, 3); bind them anew with bind_points"
        )
    if k and (attachment.tet.min() < 0 or attachment.tet.max() >= len(body.tets)):
        raise InvalidBodyError(f"{label}.tet: indices outside 0..{len(body.tets) - 1}; bind them anew")
    if not (np.isfinite(attachment.weights).all() and np.isfinite(attachment.gradients).all()):
        raise InvalidBodyError(f"{label}: weights or gradients are not finite; bind them anew")


def _validate_cable(body: Body, cable: Cable) -> None:
    label = f"cables.{cable.name}"
    if len(cable.points) < 1:
        raise InvalidBodyError(f"{label}.points: none; a cable needs one point on the body or more")
    _validate_attachment(body, cable.points, f"{label}.points")
    if cable.anchor.shape != (3,) or not np.isfinite(cable.anchor).all():
        raise InvalidBodyError(f"{label}.anchor: {cable.anchor.tolist()}, expected three finite numbers in m")
    for field_name, unit in (("stiffness", "N/m"), ("blend", "m")):
        value = getattr(cable, field_name)
        if not (np.isfinite(value) and value > 0.0):
            raise InvalidBodyError(f"{label}.{field_name}: {value}, expected a positive number of {unit}")
    line = np.concatenate([cable.points.positions(body.rest_positions, body.tets), cable.anchor[None]])
    apart = np.linalg.norm(np.diff(line, axis=0), axis=1)
    if apart.min() < 1e-6 * body.size:
        raise InvalidBodyError(
            f"{label}.points: point {int(apart.argmin())} lies at the next one, {line[apart.argmin()].tolist()} "
            "m: the cable has no direction there; move or drop it"
        )


# the face opposite each corner, its corners counter-clockwise seen from outside
_FACES = np.array([(1, 2, 3), (0, 3, 2), (0, 1, 3), (0, 2, 1)])
_EDGE_INDEX = {frozenset(map(int, edge)): 4 + k for k, edge in enumerate(EDGES)}


def boundary_faces(body: Body) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Faces that belong to one tet only: tet index (f,), local face index (f,)."""
    faces = body.tets[:, _FACES]
    keys = np.sort(faces.reshape(-1, 3), axis=1)
    _, inverse, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    outer = np.flatnonzero(counts[inverse.ravel()] == 1)
    return outer // 4, outer % 4


def surface_triangles(body: Body) -> NDArray[np.int64]:
    """Outward triangles (f, 3) of the surface; each quadratic face becomes four."""
    tet, local = boundary_faces(body)
    if body.nodes_per_tet == 4:
        return body.tets[tet[:, None], _FACES[local]]
    split = []
    for a, b, c in _FACES.tolist():
        ab, bc, ca = (_EDGE_INDEX[frozenset(e)] for e in ((a, b), (b, c), (c, a)))
        split.append([(a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca)])
    pattern = np.array(split)[local]
    return body.tets[tet[:, None, None], pattern].reshape(-1, 3)


def bind_points(body: Body, points: NDArray[np.float64]) -> Attachment:
    """Bind points (k, 3), rest coordinates in m, to the tets that hold them.

    A point outside the body is carried by the nearest surface point and the deformation gradient there (first
    order extension of the displacement field): a marker that stands off a free surface moves nearly rigidly
    with its patch, and its position stays linear in the vertices.
    """
    points = np.atleast_2d(np.asarray(points, dtype=np.float64))
    if points.shape[1] != 3 or not np.isfinite(points).all():
        raise InvalidBodyError(f"points: expected finite numbers of shape (k, 3), got shape {points.shape}")
    tet, barycentric = _containing_tets(body, points)
    feet = points.copy()
    outside = np.flatnonzero(barycentric.min(axis=1) < -1e-9)
    if len(outside):
        face_tet, local = boundary_faces(body)
        triangles = body.rest_positions[body.tets[face_tet[:, None], _FACES[local]]]
        for k in outside:
            candidates = trimesh.triangles.closest_point(triangles, np.tile(points[k], (len(triangles), 1)))
            nearest = int(np.linalg.norm(candidates - points[k], axis=1).argmin())
            feet[k], tet[k] = candidates[nearest], face_tet[nearest]
        barycentric[outside] = _barycentric(body, tet[outside], feet[outside])
    nodes = body.rest_positions[body.tets[tet]]
    barycentric = refined_coordinates(nodes, barycentric, feet)
    gradients, _ = rest_gradients(nodes, barycentric)
    weights = shape_values(barycentric, body.nodes_per_tet)
    weights = weights + np.einsum("kai,ki->ka", gradients, points - feet)
    return Attachment(tet, weights, gradients)


def _barycentric(body: Body, tet: NDArray[np.int64], points: NDArray[np.float64]) -> NDArray[np.float64]:
    corners = body.rest_positions[body.tets[tet, :4]]
    edges = np.swapaxes(corners[:, 1:] - corners[:, :1], 1, 2)
    last = np.linalg.solve(edges, (points - corners[:, 0])[..., None])[..., 0]
    return np.concatenate([1.0 - last.sum(axis=1, keepdims=True), last], axis=1)


def _containing_tets(
    body: Body, points: NDArray[np.float64], chunk: int = 256
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    corners = body.rest_positions[body.tets[:, :4]]
    inverses = np.linalg.inv(np.swapaxes(corners[:, 1:] - corners[:, :1], 1, 2))
    tet = np.zeros(len(points), np.int64)
    barycentric = np.zeros((len(points), 4))
    for start in range(0, len(points), chunk):
        block = points[start : start + chunk]
        last = np.einsum("mij,kmj->kmi", inverses, block[:, None] - corners[None, :, 0])
        every = np.concatenate([1.0 - last.sum(axis=2, keepdims=True), last], axis=2)
        best = every.min(axis=2).argmax(axis=1)
        tet[start : start + chunk] = best
        barycentric[start : start + chunk] = every[np.arange(len(block)), best]
    return tet, barycentric
