"""Full-order trajectories under random grip motions, gravity and materials, that subspaces learn from."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from realsimloop_ros.body.body import Body
from realsimloop_ros.body.files import atomic_write, load_body, save_body
from realsimloop_ros.body.poses import compose, make_pose
from realsimloop_ros.compute import use_double_precision
from realsimloop_ros.jobs import map_jobs
from realsimloop_ros.mechanics.full_order import FullOrderSolver, SolveResult
from realsimloop_ros.mechanics.integrators import integrator_named
from realsimloop_ros.mechanics.laws import StableNeoHookean
from realsimloop_ros.mechanics.material import material_of


@dataclass(frozen=True)
class SnapshotSettings:
    """What is sampled.

    trajectories, steps: how many, of how many steps; pressed: further ones to learn from alone, in which the outer
    grips come towards each other: the body buckles there, and a subspace that has seen little of it answers late;
    time_step: s; keyframes: targets a grip passes in one trajectory; twist, bend: largest rotation per grip about
    the axis between the grips and across it, rad; shift: largest translation per grip and axis, m; youngs_modulus:
    range, Pa, log-uniform; poisson_ratio: range; gravity: range of its magnitude, m/s^2; gravity_direction: about
    which it is spread by some 0.2 rad where no grip moves the body, any direction where None; every: keep each so
    many steps.
    """

    trajectories: int = 48
    steps: int = 60
    time_step: float = 1.0 / 60.0
    keyframes: int = 3
    twist: float = 1.2
    bend: float = 0.5
    shift: float = 0.03
    youngs_modulus: tuple[float, float] = (0.1e6, 0.6e6)
    poisson_ratio: tuple[float, float] = (0.40, 0.48)
    gravity: tuple[float, float] = (5.0, 15.0)
    gravity_direction: tuple[float, float, float] | None = None
    integrator: str = "bdf2"
    every: int = 2
    seed: int = 1
    pressed: int = 0


@dataclass(frozen=True)
class Snapshots:
    """One trajectory.

    grip_poses: (t, g, 7) of every step; positions: (k, n, 3) float32 m, at the steps `kept` (k,); gravity: (3,)
    m/s^2; youngs_modulus: Pa; time_step: s.
    """

    grip_poses: NDArray[np.float64]
    positions: NDArray[np.float32]
    kept: NDArray[np.int64]
    gravity: NDArray[np.float64]
    youngs_modulus: float
    poisson_ratio: float
    time_step: float

    @property
    def kept_poses(self) -> NDArray[np.float64]:
        """Grip poses (k, g, 7) of the kept steps."""
        return self.grip_poses[self.kept]


def random_grip_motion(
    body: Body, settings: SnapshotSettings, random: np.random.Generator, *, pressed: bool = False
) -> NDArray[np.float64]:
    """Grip poses (t, g, 7) that pass random targets smoothly, beginning at rest.

    pressed: along the axis between them, the first and the last grip shift towards each other at every target, by
    a half to the whole of the largest shift.
    """
    grips, steps = len(body.grips), settings.steps
    poses = np.tile(np.array([grip.rest_pose for grip in body.grips]).reshape(1, grips, 7), (steps, 1, 1))
    if grips == 0:
        return poses
    centres = np.array([body.rest_positions[grip.vertices].mean(axis=0) for grip in body.grips])
    axis = centres[-1] - centres[0] if grips > 1 else np.array([1.0, 0.0, 0.0])
    along = np.outer(axis, axis) / (axis @ axis)
    turns = np.zeros((settings.keyframes + 1, grips, 3))
    shifts = np.zeros_like(turns)
    for key in range(1, settings.keyframes + 1):
        twist = random.uniform(-settings.twist, settings.twist, (grips, 1)) * axis / np.linalg.norm(axis)
        bend = random.uniform(-settings.bend, settings.bend, (grips, 3)) @ (np.eye(3) - along)
        turns[key] = twist + bend
        shifts[key] = random.uniform(-settings.shift, settings.shift, (grips, 3))
        if pressed:
            inwards = settings.shift * random.uniform(0.5, 1.0, 2) * np.array([1.0, -1.0])
            ends = shifts[key, [0, -1]]
            shifts[key, [0, -1]] = ends @ (np.eye(3) - along) + np.outer(inwards, axis / np.linalg.norm(axis))
    for step in range(steps):
        where = step / max(steps - 1, 1) * settings.keyframes
        key = min(int(where), settings.keyframes - 1)
        blend = where - key
        blend = blend * blend * (3.0 - 2.0 * blend)
        turn = (1.0 - blend) * turns[key] + blend * turns[key + 1]
        shift = (1.0 - blend) * shifts[key] + blend * shifts[key + 1]
        for k, grip in enumerate(body.grips):
            # turn about the grip's own centre, in world axes
            world = make_pose(centres[k] + shift[k], Rotation.from_rotvec(turn[k]))
            poses[step, k] = compose(compose(world, make_pose(-centres[k], Rotation.identity())), grip.rest_pose)
    return poses


def simulate_snapshots(body: Body, settings: SnapshotSettings, index: int, *, pressed: bool = False) -> Snapshots:
    """Trajectory number `index`, of the pressed ones or of the others: the same numbers for the same settings."""
    random = np.random.default_rng([settings.seed, index, int(pressed)] if pressed else [settings.seed, index])
    low, high = np.log(settings.youngs_modulus)
    youngs_modulus = float(np.exp(random.uniform(low, high)))
    poisson_ratio = float(random.uniform(*settings.poisson_ratio))
    direction = np.array([0.0, 0.0, -1.0])
    if not body.grips:
        direction = random.standard_normal(3)
        if settings.gravity_direction is not None:
            given = np.array(settings.gravity_direction)
            direction = given / np.linalg.norm(given) + 0.2 * direction
    gravity = random.uniform(*settings.gravity) * direction / np.linalg.norm(direction)
    poses = random_grip_motion(body, settings, random, pressed=pressed)
    return simulate_motion(body, settings, poses, gravity, youngs_modulus, poisson_ratio)


def simulate_motion(
    body: Body,
    settings: SnapshotSettings,
    poses: NDArray[np.float64],
    gravity: NDArray[np.float64],
    youngs_modulus: float,
    poisson_ratio: float,
) -> Snapshots:
    """The full-order trajectory along grip poses (t, g, 7); it ends early where a step does not converge."""
    solver = FullOrderSolver(
        body,
        StableNeoHookean(),
        time_step=settings.time_step,
        integrator=integrator_named(settings.integrator),
        gravity=gravity,
    )
    material = material_of(body, youngs_modulus, poisson_ratio)
    if body.grips:
        state, _ = solver.static_state(material, poses[0])
    else:
        state = solver.rest_state()
    kept, positions = [], []
    for step, pose in enumerate(poses):
        state, report = solver.step(state, material, pose)
        if report.result != SolveResult.CONVERGED:
            # what came before is still a valid sample of how the body deforms
            break
        if step % settings.every == 0:
            kept.append(step)
            positions.append(state.positions.astype(np.float32))
    stacked = np.array(positions, np.float32).reshape(-1, len(body.rest_positions), 3)
    return Snapshots(
        poses,
        stacked,
        np.array(kept, np.int64),
        gravity,
        youngs_modulus,
        poisson_ratio,
        settings.time_step,
    )


def generate_snapshots(
    body: Body,
    settings: SnapshotSettings,
    folder: Path,
    *,
    workers: int | None = None,
    ray_address: str | None = None,
) -> list[Snapshots]:
    """All trajectories, simulated in parallel; those already in `folder` are read, so a broken run resumes.

    The pressed ones come first, so that the last are drawn evenly. The folder belongs to one body and one set of
    settings, and is refused for another; more trajectories of the same settings are added to those there are.
    Raises ValueError where a body with fewer than two grips is to be pressed.
    """
    if settings.pressed and len(body.grips) < 2:
        raise ValueError(f"snapshots.pressed: {settings.pressed}, but a body with fewer than two grips needs 0")
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {"body_hash": body.content_hash, "settings": json.loads(json.dumps(asdict(settings)))}
    card = folder / "snapshots.json"
    if card.is_file() and _without_count(json.loads(card.read_text())) != _without_count(wanted):
        raise ValueError(f"{folder}: holds snapshots of another body or other settings; choose another folder")
    with atomic_write(card) as temporary:
        temporary.write_text(json.dumps(wanted, indent=1))
    save_body(folder / "body.npz", body)
    wanted_parts = [(True, k) for k in range(settings.pressed)] + [
        (False, k) for k in range(settings.trajectories)
    ]
    missing = [part for part in wanted_parts if not _part(folder, *part).is_file()]
    if missing:
        job = partial(_simulate_and_save, folder, settings)
        map_jobs(job, missing, label="full-order snapshots", workers=workers, ray_address=ray_address)
    return [_read(_part(folder, *part)) for part in wanted_parts]


def _without_count(card: dict) -> dict:
    return {**card, "settings": {**card["settings"], "trajectories": None, "pressed": None}}


def _part(folder: Path, pressed: bool, index: int) -> Path:
    return folder / f"{'pressed' if pressed else 'trajectory'}_{index:04d}.npz"


def _simulate_and_save(folder: Path, settings: SnapshotSettings, part: tuple[bool, int]) -> None:
    use_double_precision()
    pressed, index = part
    result = simulate_snapshots(load_body(folder / "body.npz"), settings, index, pressed=pressed)
    with atomic_write(_part(folder, *part)) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, **asdict(result))


def _read(path: Path) -> Snapshots:
    with np.load(path, allow_pickle=False) as archive:
        return Snapshots(
            archive["grip_poses"],
            archive["positions"],
            archive["kept"],
            archive["gravity"],
            float(archive["youngs_modulus"]),
            float(archive["poisson_ratio"]),
            float(archive["time_step"]),
        )
