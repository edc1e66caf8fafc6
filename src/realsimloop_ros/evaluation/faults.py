"""Faults of cameras and clocks, put into a recording of a cell: a bag as if it had been recorded so.

The twin's own outputs are left out of that bag, so that whoever replays it computes them from the images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.evaluation.bags import BagError, BagMessage, bag_topics, bag_writer, read_bag
from realsimloop_ros.evaluation.cell_messages import image_array
from realsimloop_ros.evaluation.marker_messages import stamp_of
from realsimloop_ros.observation.cell_file import CellFile

# parts of the recording after which the fault begins: by then theta is near where it ends
_BEGIN = 0.4
_JUMP_NS = 5_000_000_000
_GAMMA = 2.2
# the colour of a gripper of the virtual cell, which hides the body like an arm that is nobody's twin
_ARM_COLOUR = (75, 77, 79)


class FaultError(ValueError):
    """A fault that does not exist or cannot be put into a recording; the text names it and the remedy."""


@dataclass(frozen=True)
class Onset:
    """When a fault begins, ns on the bag's clock, in which image topics it may be, and its random numbers."""

    begin_ns: int
    image_topics: tuple[str, ...]
    random: np.random.Generator

    @property
    def victim(self) -> str:
        """The one camera that has the fault, where not all have it."""
        return self.image_topics[-1]


Change = Callable[[Iterable[BagMessage], Onset], Iterator[BagMessage]]


@dataclass(frozen=True)
class Fault:
    """change: of the messages in recorded order; named_by: what conditions that name it begin with."""

    description: str
    change: Change
    named_by: tuple[str, ...]


def _with_pixels(entry: BagMessage, pixels: NDArray[np.uint8]) -> BagMessage:
    message = replace(
        entry.message, encoding="rgb8", step=3 * pixels.shape[1], data=np.ascontiguousarray(pixels).reshape(-1)
    )
    return replace(entry, message=message)


def _every_image(
    alter: Callable[[NDArray[np.uint8], Onset], NDArray[np.uint8]], everywhere: bool = False
) -> Change:
    """Alter the images of the victim, or of all cameras, once the fault has begun."""

    def change(messages: Iterable[BagMessage], onset: Onset) -> Iterator[BagMessage]:
        chosen = onset.image_topics if everywhere else (onset.victim,)
        for entry in messages:
            if entry.topic in chosen and entry.stamp_ns >= onset.begin_ns:
                yield _with_pixels(entry, alter(image_array(entry.message), onset))
            else:
                yield entry

    return change


def _dark(image: NDArray[np.uint8], onset: Onset) -> NDArray[np.uint8]:
    return onset.random.integers(0, 4, image.shape).astype(np.uint8)


def _half_hidden(image: NDArray[np.uint8], onset: Onset) -> NDArray[np.uint8]:
    noise = onset.random.integers(-3, 4, image[:, : image.shape[1] // 2].shape)
    hidden = image.copy()
    hidden[:, : image.shape[1] // 2] = np.array(_ARM_COLOUR) + noise
    return hidden


def _half_exposed(image: NDArray[np.uint8], onset: Onset) -> NDArray[np.uint8]:
    return np.round(image * 0.5 ** (1.0 / _GAMMA)).astype(np.uint8)


def _stuck(messages: Iterable[BagMessage], onset: Onset) -> Iterator[BagMessage]:
    last: NDArray[np.uint8] | None = None
    for entry in messages:
        if entry.topic != onset.victim:
            yield entry
        elif entry.stamp_ns < onset.begin_ns or last is None:
            last = image_array(entry.message)
            yield entry
        else:
            yield _with_pixels(entry, last)


def _mask_lost(messages: Iterable[BagMessage], onset: Onset) -> Iterator[BagMessage]:
    for entry in messages:
        if entry.topic == onset.victim and 0 <= entry.stamp_ns - onset.begin_ns < 1_000_000_000:
            pixels = image_array(entry.message)
            noise = onset.random.integers(-3, 4, pixels.shape)
            yield _with_pixels(entry, (np.array(_ARM_COLOUR) + noise).astype(np.uint8))
        else:
            yield entry


def _shuffled(messages: Iterable[BagMessage], onset: Onset) -> Iterator[BagMessage]:
    """Images arrive in another order than they were taken: three sets at a time are mixed."""
    block: list[BagMessage] = []

    def mixed() -> Iterator[BagMessage]:
        slots = [entry.stamp_ns for entry in block]
        for slot, k in zip(slots, onset.random.permutation(len(block)), strict=True):
            yield replace(block[k], stamp_ns=slot)
        block.clear()

    for entry in messages:
        if entry.topic not in onset.image_topics or entry.stamp_ns < onset.begin_ns:
            yield entry
            continue
        block.append(entry)
        if len(block) == 3 * len(onset.image_topics):
            yield from mixed()
    yield from mixed()


def _thinned(messages: Iterable[BagMessage], onset: Onset) -> Iterator[BagMessage]:
    for entry in messages:
        image = entry.topic in onset.image_topics and entry.stamp_ns >= onset.begin_ns
        if not (image and onset.random.random() < 0.2):
            yield entry


def _jumped(messages: Iterable[BagMessage], onset: Onset) -> Iterator[BagMessage]:
    for entry in messages:
        if entry.stamp_ns < onset.begin_ns or not hasattr(entry.message, "header"):
            yield entry
        else:
            yield replace(entry, message=_restamped(entry.message, stamp_of(entry.message.header) - _JUMP_NS))


def _restamped(message: Any, stamp_ns: int) -> Any:
    stamp = replace(message.header.stamp, sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9)
    return replace(message, header=replace(message.header, stamp=stamp))


FAULTS: dict[str, Fault] = {
    "camera_dark": Fault("one camera goes dark", _every_image(_dark), ("dark.",)),
    "camera_stuck": Fault("one camera repeats its last image under new stamps", _stuck, ("stuck.",)),
    "camera_hidden": Fault(
        "an arm covers half of one camera's view", _every_image(_half_hidden), ("hidden.", "quality.", "no_mask.")
    ),
    "exposure_halved": Fault(
        "all cameras expose half as long", _every_image(_half_exposed, everywhere=True), ("exposure.",)
    ),
    "mask_lost": Fault("for 1 s one camera does not see the body", _mask_lost, ("no_mask.", "hidden.")),
    "frames_shuffled": Fault("images arrive out of order", _shuffled, ("order.",)),
    "frames_dropped": Fault("a fifth of all images is lost", _thinned, ("gaps.",)),
    "stamps_back": Fault("all stamps jump back by 5 s", _jumped, ("clock_jump",)),
}


def fault_named(name: str) -> Fault:
    """Raises FaultError with the names that exist."""
    if name not in FAULTS:
        raise FaultError(f"fault {name!r}: there is no such fault; there are {', '.join(FAULTS)}")
    return FAULTS[name]


def write_faulty_bag(source: Path, target: Path, cell: CellFile, name: str, seed: int = 0) -> int:
    """Write the measurements of a recorded cell with a fault in them. Returns when it begins, ns.

    Raises FaultError, and BagError for a bag that has no images of the cell's cameras or cannot be read.
    """
    fault = fault_named(name)
    images = tuple(camera.image_topic for camera in cell.cameras)
    arms = [f"{grip.arm}/{kind}" for grip in cell.grips for kind in ("tcp_pose", "tcp_wrench")]
    present = {topic.name for topic in bag_topics(source)}
    if not present & set(images):
        raise BagError(f"{source}: no images on {', '.join(images)}; faults are put into recorded images")
    kept = present & {*images, *arms, "truth/state"}
    stamps = [entry.stamp_ns for entry in read_bag(source, present & set(images))]
    begin = round(stamps[0] + _BEGIN * (stamps[-1] - stamps[0]))
    onset = Onset(begin, tuple(topic for topic in images if topic in present), np.random.default_rng(seed))
    with bag_writer(target) as bag:
        for entry in fault.change(read_bag(source, kept), onset):
            bag.write(entry.topic, entry.stamp_ns, entry.message)
    return begin
