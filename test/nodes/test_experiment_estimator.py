"""The estimator node of an experiment: what `evaluate` computes, and what it says of frames it cannot use."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rclpy.node import Node
from rclpy.parameter import Parameter as RosParameter
from rclpy.publisher import Publisher
from realsimloop.msg import MaterialEstimate
from visualization_msgs.msg import Marker, MarkerArray

from evaluation.small_experiments import (
    HELD,
    MARKERS,
    experiment_content,
    in_capture,
    released_markers,
    stamps,
    with_model,
    write_bag,
    write_experiment,
)
from nodes.small_cell import context_of, spinning, wait_for, warnings_of
from realsimloop_ros.evaluation.experiment_run import evaluate_experiments
from realsimloop_ros.evaluation.record import ThetaTrace
from realsimloop_ros.nodes import experiment_estimator
from realsimloop_ros.nodes.experiment_estimator import ExperimentEstimator
from realsimloop_ros.nodes.message_checks import header, stamp_ns
from realsimloop_ros.nodes.parameters import parameter_table
from realsimloop_ros.nodes.qos import ESTIMATES
from realsimloop_ros.nodes.twin_node import EVERY_ONE

PAGE = Path(__file__).parents[2] / "docs" / "nodes" / "experiment_estimator.md"
SECONDS = 0.5  # after the release


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NDArray[np.float64], ThetaTrace]:
    """An experiment, what its markers did, and the theta that `evaluate` finds."""
    folder = tmp_path_factory.mktemp("experiment")
    path = write_experiment(folder, experiment_content())
    reduced, library = with_model(folder, path)
    seen = released_markers(reduced, SECONDS)
    write_bag(folder / "bag", seen)
    return path, seen, evaluate_experiments([path], library=library).theta


@pytest.fixture
def other(domain: int) -> Iterator[Node]:
    with context_of(domain) as context:
        node = Node("counterpart", context=context)
        yield node
        node.destroy_node()


@contextmanager
def running(
    path: Path, other: Node, monkeypatch: pytest.MonkeyPatch, **parameters: Any
) -> Iterator[tuple[ExperimentEstimator, Publisher, list[MaterialEstimate]]]:
    library = with_model(path.parent, path)[1]
    monkeypatch.setattr(experiment_estimator, "default_library", lambda: library)
    values = {"experiment": str(path), **parameters}
    overrides = [RosParameter(name, value=value) for name, value in values.items()]
    received: list[MaterialEstimate] = []
    other.create_subscription(MaterialEstimate, "theta", received.append, ESTIMATES)
    publisher = other.create_publisher(MarkerArray, "markers", EVERY_ONE)
    node = ExperimentEstimator(context=other.context, parameter_overrides=overrides)
    try:
        node.autostart()
        with spinning(node), spinning(other):
            wait_for(lambda: publisher.get_subscription_count() and other.count_publishers("theta"))
            wait_for(lambda: node.count_publishers("markers"))
            yield node, publisher, received
    finally:
        node.close()
        node.destroy_node()


def frame(k: int, positions: NDArray[np.float64], name: str = "capture", **changes: str) -> MarkerArray:
    """Frame k of the recording. changes: other names of markers."""
    message = MarkerArray()
    for label, place in zip(MARKERS, in_capture(positions), strict=True):
        marker = Marker(header=header(name, int(stamps(k + 1)[k])), ns=changes.get(label, label))
        point = marker.pose.position
        point.x, point.y, point.z = place.tolist()
        message.markers.append(marker)
    return message


def test_the_node_finds_what_evaluate_finds_and_ends(
    recorded: tuple[Path, NDArray[np.float64], ThetaTrace], other: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen, expected = recorded
    with running(path, other, monkeypatch) as (node, publisher, received):
        for k, positions in enumerate(seen):
            publisher.publish(frame(k, positions))
        wait_for(node.finished.done)
        assert node.finished.result() == 0
        wait_for(lambda: len(received) == len(expected.stamps_ns))
        assert dict(node.diagnostics.drops) == {}
    assert [stamp_ns(message.header) for message in received] == expected.stamps_ns.tolist()
    live = np.array([message.youngs_modulus for message in received])
    # the same code on the same numbers, but for the way from the capture's frame: frame by frame, or all at once
    np.testing.assert_allclose(live, expected.youngs_modulus, rtol=1e-12)


Spoil = Callable[[int, NDArray[np.float64]], MarkerArray]


@pytest.mark.parametrize(
    ("spoil", "cause", "said"),
    [
        (lambda k, x: frame(k, x, "world"), "wrong_frame", r"frame_id is 'world', expected 'capture'; publish it"),
        (
            lambda k, x: frame(k, x, top="tip"),
            "unknown_marker",
            r"tip unknown, the experiment has left, middle, top; name it there under markers",
        ),
        (
            lambda k, x: frame(k, np.where(np.arange(3)[:, None] == 1, np.nan, x)),
            "marker_not_seen",
            r"no position of left at 1\.\d+ s; the others are used",
        ),
        (lambda k, x: MarkerArray(), "empty", r"no marker, and so no stamp"),
        (
            lambda k, x: frame(k + 10_000, x),
            "not_of_recording",
            r"stamp 10\d\.\d+ s, but the experiment's recording spans 1\.000 to 1\.\d+ s; play the recording",
        ),
    ],
)
def test_what_is_wrong_with_a_frame_is_counted_and_said(
    recorded: tuple[Path, NDArray[np.float64], ThetaTrace],
    other: Node,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Spoil,
    cause: str,
    said: str,
) -> None:
    path, seen, _ = recorded
    with running(path, other, monkeypatch) as (node, publisher, received):
        for k, positions in enumerate(seen[:-1]):
            publisher.publish(spoil(k, positions) if k == HELD + 20 else frame(k, positions))
        wait_for(lambda: re.search(said, warnings_of(node)), f"{said} was not said")
        assert node.diagnostics.drops[cause] == 1
        # the other frames go on
        wait_for(lambda: len(received) > 4)


def test_a_recording_that_ends_early_ends_the_node_with_what_there_is(
    recorded: tuple[Path, NDArray[np.float64], ThetaTrace], other: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen, _ = recorded
    with running(path, other, monkeypatch, patience=1.0) as (node, publisher, received):
        for k, positions in enumerate(seen[: HELD + 30]):
            publisher.publish(frame(k, positions))
        wait_for(node.finished.done)
        assert node.finished.result() == 0
        assert len(received) > 2


def test_a_recording_without_a_frame_to_use_is_a_failure(
    recorded: tuple[Path, NDArray[np.float64], ThetaTrace], other: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen, _ = recorded
    with running(path, other, monkeypatch, patience=1.0) as (node, publisher, received):
        for k, positions in enumerate(seen[:HELD]):
            publisher.publish(frame(k, positions))
        wait_for(node.finished.done)
        assert node.finished.result() == 1
        assert not received


def test_the_page_names_the_parameters_and_every_cause_of_a_drop() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert parameter_table((*experiment_estimator.PARAMETERS, ExperimentEstimator.AUTOSTART)) in page
    source = Path(experiment_estimator.__file__).read_text(encoding="utf-8")
    causes = re.findall(r'(?:count_drop\(|cause=)"(\w+)"', source)
    assert causes
    assert [cause for cause in causes if f"`{cause}`" not in page] == []
