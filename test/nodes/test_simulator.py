"""The simulator node: the same states as the core, and what it says when something is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from realsimloop.msg import BodyState, MaterialEstimate
from rosgraph_msgs.msg import Clock

from nodes.small_cell import (
    SECOND,
    Counterpart,
    context_of,
    figures_of,
    running,
    small_body,
    wait_for,
    warnings_of,
    write_cell,
)
from realsimloop_ros.dynamics.live import LiveTwin
from realsimloop_ros.estimation.twin import load_twin
from realsimloop_ros.nodes.message_checks import header, stamp_ns, time_message
from realsimloop_ros.nodes.qos import CLOCK, LATCHED
from realsimloop_ros.nodes.simulator import Simulator
from realsimloop_ros.observation.cell_file import load_cell
from realsimloop_ros.reduction.cubature_checks import fitted_range
from realsimloop_ros.reduction.model import load_reduced_body, save_reduced_body
from reduced_bodies import REST_POSES

PERIOD = SECOND // 50


@pytest.fixture
def cell(tmp_path: Path) -> Path:
    return write_cell(tmp_path)


@pytest.fixture
def counterpart(domain: int, cell: Path) -> Iterator[Counterpart]:
    with context_of(domain) as context:
        counterpart = Counterpart(context, load_cell(cell))
        counterpart.listen(BodyState, "state")
        yield counterpart
        counterpart.destroy_node()


def lifted(height: float) -> np.ndarray:
    poses = REST_POSES.copy()
    poses[1, 2] += height
    return poses


def motion(count: int) -> list[tuple[int, np.ndarray]]:
    return [(SECOND + k * PERIOD, lifted(0.01 * np.sin(0.3 * k))) for k in range(count)]


def estimate(youngs_modulus: float, body_hash: str) -> MaterialEstimate:
    return MaterialEstimate(
        header=header("", SECOND),
        body_hash=body_hash,
        zone_names=["bar"],
        youngs_modulus=[youngs_modulus],
        poisson_ratio=[0.45],
        density=[1070.0],
        viscosity=[100.0],
    )


def vertices(message: BodyState) -> np.ndarray:
    return np.asarray(message.vertices, np.float32).reshape(-1, 3)


def test_the_states_are_those_of_the_core(counterpart: Counterpart, cell: Path) -> None:
    twin = load_twin(load_cell(cell))
    core = LiveTwin(twin.body, twin.model, twin.step, twin.space.prior, ticks_per_state=2)
    expected = []
    for stamp, poses in motion(40):
        for grip, pose in zip(twin.body.grips, poses, strict=True):
            core.add_grip_pose(grip.name, stamp, pose)
        expected += list(core.advance())
    with running(Simulator, cell, counterpart) as node:
        for stamp, poses in motion(40):
            counterpart.send_poses(stamp, poses)
        wait_for(lambda: len(counterpart.received["state"]) >= len(expected))
        assert not warnings_of(node)
    states = counterpart.received["state"]
    assert [stamp_ns(m.header) for m in states] == [s.stamp_ns for s in expected]
    for message, state in zip(states, expected, strict=True):
        # the same code on the same numbers: to the last bit
        assert list(message.latent) == state.latent.tolist()
        np.testing.assert_array_equal(vertices(message), state.vertices.astype(np.float32))
        assert message.converged
    assert states[0].header.frame_id == "world"
    assert states[0].body_hash == twin.body.content_hash
    assert list(states[0].grip_names) == ["left", "right"]


def test_a_new_theta_changes_the_states_that_follow(counterpart: Counterpart, cell: Path) -> None:
    theta = counterpart.source(MaterialEstimate, "theta", LATCHED)
    with running(Simulator, cell, counterpart):
        counterpart.send_poses(SECOND)
        counterpart.send_poses(SECOND + PERIOD * 5)
        wait_for(lambda: len(counterpart.received["state"]) >= 2)
        before = vertices(counterpart.received["state"][-1])
        theta.publish(estimate(20e3, small_body().content_hash))
        for k in range(6, 60):
            counterpart.send_poses(SECOND + k * PERIOD)
        wait_for(lambda: len(counterpart.received["state"]) >= 30)
    after = vertices(counterpart.received["state"][-1])
    # a tenth of the stiffness sags about ten times as far; it has settled to more than half of that
    assert after[:, 2].min() - before[:, 2].min() < 4 * (before[:, 2].min() - -0.015)


def test_another_body_is_refused_with_both_hashes(counterpart: Counterpart, cell: Path) -> None:
    theta = counterpart.source(MaterialEstimate, "theta", LATCHED)
    with running(Simulator, cell, counterpart) as node:
        theta.publish(estimate(1e5, "0123"))
        wait_for(lambda: node.diagnostics.drops.get("wrong_body") == 1)
        text = warnings_of(node)
        theta.publish(replace_zone(estimate(1e5, small_body().content_hash)))
        wait_for(lambda: node.diagnostics.drops.get("wrong_zones") == 1)
    assert "theta: body_hash is 0123" in text
    assert small_body().content_hash in text
    assert "same cell file" in text


def replace_zone(message: MaterialEstimate) -> MaterialEstimate:
    message.zone_names = ["rod"]
    return message


def test_a_silent_arm_is_held_and_reported(counterpart: Counterpart, cell: Path) -> None:
    clock = counterpart.source(Clock, "/clock", CLOCK)
    with running(Simulator, cell, counterpart, stale_timeout=0.2) as node:
        for k in range(20):
            clock.publish(Clock(clock=time_message(SECOND + k * PERIOD)))
            counterpart.send_poses(SECOND + k * PERIOD)
        wait_for(lambda: len(counterpart.received["state"]) >= 10)
        number = len(counterpart.received["state"])
        for k in range(20, 70):
            clock.publish(Clock(clock=time_message(SECOND + k * PERIOD)))
            counterpart.send_pose("left", SECOND + k * PERIOD, REST_POSES[0])
            wait_for(lambda k=k: node.get_clock().now().nanoseconds >= SECOND + k * PERIOD)
        wait_for(lambda: len(counterpart.received["state"]) >= number + 15)
        assert "no new pose on right/tcp_pose: held where it was" in warnings_of(node)
        assert "left" not in warnings_of(node)


def test_a_body_deformed_further_than_its_model_was_fitted_for_is_reported(
    counterpart: Counterpart, cell: Path
) -> None:
    # fitted to states within a few um of rest, which the bar's own weight already leaves
    path = load_cell(cell).resolve("model.npz")
    reduced = load_reduced_body(path)
    narrow = fitted_range(1e-6 * np.random.default_rng(0).standard_normal((50, reduced.latent_size)))
    save_reduced_body(path, replace(reduced, card={**reduced.card, "range": narrow.as_card()}))
    with running(Simulator, cell, counterpart) as node:
        for k in range(20):
            counterpart.send_poses(SECOND + k * PERIOD)
        wait_for(lambda: len(counterpart.received["state"]) >= 5)
        assert "times as far as its reduced model was fitted for" in warnings_of(node)
        assert float(figures_of(node)["range_excess"]) > 1.0


def test_a_clock_that_is_set_back_begins_anew(counterpart: Counterpart, cell: Path) -> None:
    with running(Simulator, cell, counterpart) as node:
        for start in (10 * SECOND, SECOND):
            before = len(counterpart.received["state"])
            for k in range(10):
                counterpart.send_poses(start + k * PERIOD)
            wait_for(lambda before=before: len(counterpart.received["state"]) >= before + 3)
        wait_for(lambda: "resets.clock_jump" in figures_of(node))
    assert stamp_ns(counterpart.received["state"][-1].header) < 2 * SECOND


@pytest.mark.parametrize(
    ("change", "cause", "text"),
    [
        ({"frame": "left_base"}, "wrong_frame", "left/tcp_pose: frame_id is 'left_base', expected 'world'"),
        ({"pose": np.full(7, np.nan)}, "invalid_pose", "left/tcp_pose: pose: non-finite numbers"),
        ({"pose": np.array([0, 0, 0, 0, 0, 0, 2.0])}, "invalid_pose", "quaternion norm"),
    ],
)
def test_a_pose_that_cannot_be_used_is_counted(
    counterpart: Counterpart, cell: Path, change: dict, cause: str, text: str
) -> None:
    with running(Simulator, cell, counterpart) as node:
        counterpart.send_pose("left", SECOND, **{"pose": REST_POSES[0], **change})
        wait_for(lambda: node.diagnostics.drops.get(cause) == 1)
        assert text in warnings_of(node)


def test_replaced_body_gives_another_hash() -> None:
    """What the checks of the hash rely on."""
    body = small_body()
    assert replace(body, name="other").content_hash != body.content_hash
