"""What a recorded run of a cell holds beside its images: theta, the twin's states, the truth, and health."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.evaluation.bags import TruncatedBagWarning, bag_topics, read_bag
from realsimloop_ros.evaluation.cell_messages import pose_array, vertices_of
from realsimloop_ros.evaluation.marker_messages import stamp_of
from realsimloop_ros.evaluation.theta_trace import ThetaSample, sample_of_message

_DROP_PREFIX = "drops."


class CellBagWarning(UserWarning):
    """A recording of a cell of which only a part can be used."""


class Notices:
    """What a reader of the report should know: every text once, in the order in which they came, and as a
    warning.
    """

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self._texts)

    def note(self, text: str) -> None:
        """Something to know."""
        self._texts.setdefault(text)

    def warn(self, text: str) -> None:
        """Something that is missing or wrong."""
        if text not in self._texts:
            warnings.warn(CellBagWarning(text), stacklevel=3)
        self.note(text)


@dataclass(frozen=True, eq=False)
class StateTrack:
    """Shapes of a body over time: stamps_ns (t,) ascending; vertices (t, n, 3) m; grip_poses (t, g, 7)."""

    stamps_ns: NDArray[np.int64]
    vertices: NDArray[np.float32]
    grip_poses: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.stamps_ns)

    def near(self, stamps_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Shapes (q, n, 3) at other stamps, on the cubic through the four states around each; NaN where these are
        not evenly spaced (one is missing), or where there are none on both sides.
        """
        shape = (len(stamps_ns), *self.vertices.shape[1:])
        if len(self) < 4:
            return np.full(shape, np.nan)
        period = float(np.median(np.diff(self.stamps_ns)))
        inside = (stamps_ns >= self.stamps_ns[0]) & (stamps_ns <= self.stamps_ns[-1])
        first = np.clip(np.searchsorted(self.stamps_ns, stamps_ns, side="right") - 2, 0, len(self) - 4)
        spread = self.stamps_ns[first + 3] - self.stamps_ns[first]
        found = np.zeros(shape)
        for k in range(4):
            weight = np.ones(len(stamps_ns))
            for other in range(4):
                if other != k:
                    node, away = self.stamps_ns[first + k], self.stamps_ns[first + other]
                    weight *= (stamps_ns - away) / (node - away)
            found += weight[:, None, None] * self.vertices[first + k]
        found[~(inside & (spread < 4.5 * period))] = np.nan
        return found


@dataclass(eq=False)
class CellRecording:
    """A recorded run.

    source: the bag; theta: in the order of stamps; twin, truth: None where the bag has no such states;
    observation_stamps_ns: of the frames that the cameras' images were put together to; delays: s between stamp and
    recording of observation and theta, by topic, on the recorder's clock; figures: samples of what nodes say about
    themselves, by (node, figure); drops: by `NODE.CAUSE`, and by cause for what this reader left out.
    """

    source: Path
    theta: tuple[ThetaSample, ...] = ()
    twin: StateTrack | None = None
    truth: StateTrack | None = None
    observation_stamps_ns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    delays: dict[str, list[float]] = field(default_factory=dict)
    figures: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    drops: dict[str, int] = field(default_factory=dict)


class _StateReader:
    def __init__(self) -> None:
        self.rows: dict[int, tuple[NDArray[np.float32], NDArray[np.float64]]] = {}

    def take(self, message: Any) -> None:
        vertices = vertices_of(message).astype(np.float32)
        poses = np.array([pose_array(pose) for pose in message.grip_poses]).reshape(-1, 7)
        self.rows[stamp_of(message.header)] = vertices, poses

    def track(self) -> StateTrack | None:
        if not self.rows:
            return None
        stamps = sorted(self.rows)
        return StateTrack(
            np.array(stamps, np.int64),
            np.stack([self.rows[stamp][0] for stamp in stamps]),
            np.stack([self.rows[stamp][1] for stamp in stamps]),
        )


def present_topics(bag: Path) -> frozenset[str]:
    """Names of the topics of a bag."""
    return frozenset(topic.name for topic in bag_topics(bag))


def read_messages(bag: Path, handlers: Mapping[str, Callable[[int, Any], None]], notices: Notices) -> None:
    """Hand every message to its topic's handler, with the stamp of its recording, in recorded order.

    A bag that was cut off is read as far as it goes, which is noted. Topics that the bag lacks are passed over.
    Raises BagError.
    """
    wanted = present_topics(bag) & handlers.keys()
    if not wanted:
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TruncatedBagWarning)
        for entry in read_bag(bag, wanted):
            handlers[entry.topic](entry.stamp_ns, entry.message)
    for warning in caught:
        if issubclass(warning.category, TruncatedBagWarning):
            notices.warn(str(warning.message))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def read_cell_recording(
    bag: Path,
    twin_hash: str,
    notices: Notices,
    truth_hash: str | None = None,
) -> CellRecording:
    """Read a run's bag.

    twin_hash: of the twin's body; messages about another body are left out, counted and noted. truth_hash: of the
    true body; without it the truth is not read. Raises BagError.
    """
    recording = CellRecording(Path(bag))
    drops: Counter[str] = Counter()
    theta: dict[int, ThetaSample] = {}
    observations: list[int] = []
    twin, truth = _StateReader(), _StateReader()
    health: dict[str, int] = {}

    def belongs(topic: str, message: Any, expected: str) -> bool:
        if message.body_hash == expected:
            return True
        drops["wrong_body"] += 1
        notices.warn(
            f"{bag}: messages on {topic!r} are about body {message.body_hash[:12]}, expected {expected[:12]}; "
            "they are left out. Evaluate with the cell file of the recording"
        )
        return False

    def take_theta(log_ns: int, message: Any) -> None:
        if belongs("theta", message, twin_hash):
            stamp = stamp_of(message.header)
            theta[stamp] = sample_of_message(message)
            recording.delays.setdefault("theta", []).append((log_ns - stamp) * 1e-9)

    def take_twin(_: int, message: Any) -> None:
        if belongs("state", message, twin_hash):
            twin.take(message)

    def take_truth(_: int, message: Any) -> None:
        if truth_hash is not None and belongs("truth/state", message, truth_hash):
            truth.take(message)

    def take_observation(log_ns: int, message: Any) -> None:
        stamp = stamp_of(message.header)
        observations.append(stamp)
        recording.delays.setdefault("observation", []).append((log_ns - stamp) * 1e-9)

    def take_health(_: int, message: Any) -> None:
        for status in message.status:
            for entry in status.values:
                if entry.key.startswith(_DROP_PREFIX):
                    health[f"{status.name}.{entry.key.removeprefix(_DROP_PREFIX)}"] = int(entry.value)
                    continue
                try:
                    value = float(entry.value)
                except ValueError:
                    continue
                recording.figures.setdefault((status.name, entry.key), []).append(value)

    handlers: dict[str, Callable[[int, Any], None]] = {
        "theta": take_theta,
        "state": take_twin,
        "observation": take_observation,
        "diagnostics": take_health,
    }
    if truth_hash is not None:
        handlers["truth/state"] = take_truth
    read_messages(bag, handlers, notices)
    recording.theta = tuple(theta[stamp] for stamp in sorted(theta))
    recording.twin, recording.truth = twin.track(), truth.track()
    recording.observation_stamps_ns = np.array(sorted(set(observations)), np.int64)
    recording.drops = {**health, **drops}
    return recording
