"""Frames of several cameras (or other streams) brought together by their stamps.

A set holds at most one frame per stream, all within a tolerance. The pivot of the next set is the latest of the
oldest frames still waiting; every stream gives the frame nearest to it, and streams that have lost theirs are left
out. That is decided only once no later frame can be nearer, so the sets do not depend on how the streams' messages
are interleaved. A stream that has been silent for
the timeout is not waited for until it speaks again; its place in the sets is empty meanwhile.

Time is what the stamps and `advance` say; no clock is read, so a recording gives the same sets as the live cell.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Generic, TypeVar

Payload = TypeVar("Payload")

LATE = "late"  # older than the last set
DUPLICATE = "duplicate"  # the same stamp again
OVERFLOW = "overflow"  # the queue was full
UNMATCHED = "unmatched"  # no partners within the tolerance
CLOCK_JUMP = "clock_jump"  # waiting when the clock jumped back
CAUSES = (LATE, DUPLICATE, OVERFLOW, UNMATCHED, CLOCK_JUMP)


class SynchroniserError(ValueError):
    """Settings or a stream that make no sense; the text names field, value and remedy."""


@dataclass(frozen=True)
class SynchroniserSettings:
    """How streams are brought together. All times are integer nanoseconds.

    streams: their names. tolerance: largest difference between the stamps of a set.
    timeout: silence after which a stream is not waited for.
    minimum_period: no stream's frames are closer than this; half of it is how much sooner a set can be decided.
    queue_length: frames kept per stream. minimum_streams: sets with fewer frames are not given out.
    jump: a stamp this much older than its stream's last one means that the clock was set back.
    Raises SynchroniserError.
    """

    streams: tuple[str, ...]
    tolerance: int
    timeout: int
    minimum_period: int = 0
    queue_length: int = 10
    minimum_streams: int = 1
    jump: int = 1_000_000_000

    def __post_init__(self) -> None:
        if not self.streams or len(set(self.streams)) != len(self.streams):
            raise SynchroniserError(f"streams is {self.streams}, expected one or more different names")
        if self.tolerance < 0 or self.minimum_period < 0:
            raise SynchroniserError(
                f"tolerance is {self.tolerance} and minimum_period {self.minimum_period} ns, expected 0 or more"
            )
        if self.timeout <= self.tolerance:
            raise SynchroniserError(
                f"timeout is {self.timeout} ns, expected more than the tolerance of {self.tolerance} ns"
            )
        if self.queue_length < 2:
            raise SynchroniserError(f"queue_length is {self.queue_length}, expected at least 2")
        if not 1 <= self.minimum_streams <= len(self.streams):
            raise SynchroniserError(
                f"minimum_streams is {self.minimum_streams}, expected 1 to {len(self.streams)}"
            )
        if self.jump <= self.timeout:
            raise SynchroniserError(f"jump is {self.jump} ns, expected more than the timeout of {self.timeout} ns")


@dataclass(frozen=True)
class SynchronisedSet(Generic[Payload]):
    """Frames of one moment, in the order of the settings' streams; None where a stream is absent.

    stamp_ns: the mean of the stamps present, rounded down.
    """

    stamp_ns: int
    stamps_ns: tuple[int | None, ...]
    frames: tuple[Payload | None, ...]

    @property
    def available(self) -> tuple[bool, ...]:
        """Which streams are present."""
        return tuple(stamp is not None for stamp in self.stamps_ns)


@dataclass(frozen=True)
class SynchroniserStatistics:
    """Counts since construction. Per stream: received = used + pending + the sum of its drops.

    dropped: cause -> stream -> count. absent: streams that are not waited for now. resets: clock jumps seen.
    """

    received: Mapping[str, int]
    used: Mapping[str, int]
    pending: Mapping[str, int]
    dropped: Mapping[str, Mapping[str, int]]
    absent: tuple[str, ...]
    sets: int
    resets: int


@dataclass
class _Stream(Generic[Payload]):
    stamps: list[int] = field(default_factory=list)  # ascending
    frames: list[Payload] = field(default_factory=list)
    last: int | None = None  # newest stamp taken in
    received: int = 0
    used: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))

    def drop_first(self, count: int, cause: str) -> None:
        del self.stamps[:count], self.frames[:count]
        self.dropped[cause] += count


class Synchroniser(Generic[Payload]):
    """Brings the frames of several streams together; see the module."""

    def __init__(self, settings: SynchroniserSettings) -> None:
        self.settings = settings
        self._streams: dict[str, _Stream[Payload]] = {name: _Stream() for name in settings.streams}
        self._now: int | None = None
        self._last_set: int | None = None  # newest stamp given out
        self._sets = 0
        self._resets = 0

    def add(self, stream: str, stamp_ns: int, frame: Payload) -> list[SynchronisedSet[Payload]]:
        """Takes a frame in and gives out the sets that are complete now, oldest first.

        Raises SynchroniserError for a stream that the settings do not name.
        """
        if stream not in self._streams:
            raise SynchroniserError(f"stream '{stream}' is unknown, the settings name {', '.join(self._streams)}")
        queue = self._streams[stream]
        queue.received += 1
        if queue.last is not None and stamp_ns < queue.last - self.settings.jump:
            self._reset()
        if self._last_set is not None and stamp_ns <= self._last_set:
            queue.dropped[LATE] += 1
            return []
        place = bisect.bisect_left(queue.stamps, stamp_ns)
        if place < len(queue.stamps) and queue.stamps[place] == stamp_ns:
            queue.dropped[DUPLICATE] += 1
            return []
        queue.stamps.insert(place, stamp_ns)
        queue.frames.insert(place, frame)
        queue.last = stamp_ns if queue.last is None else max(queue.last, stamp_ns)
        self._now = stamp_ns if self._now is None else max(self._now, stamp_ns)
        sets = self._match()
        if len(queue.stamps) > self.settings.queue_length:
            queue.drop_first(1, OVERFLOW)
        return sets

    def advance(self, now_ns: int) -> list[SynchronisedSet[Payload]]:
        """Tells the time where no frame does, so that silent streams are noticed."""
        if self._now is not None and now_ns < self._now - self.settings.jump:
            self._reset()
        self._now = now_ns if self._now is None else max(self._now, now_ns)
        return self._match()

    @property
    def statistics(self) -> SynchroniserStatistics:
        streams = self._streams
        return SynchroniserStatistics(
            received=MappingProxyType({name: queue.received for name, queue in streams.items()}),
            used=MappingProxyType({name: queue.used for name, queue in streams.items()}),
            pending=MappingProxyType({name: len(queue.stamps) for name, queue in streams.items()}),
            dropped=MappingProxyType(
                {
                    cause: MappingProxyType({name: queue.dropped[cause] for name, queue in streams.items()})
                    for cause in CAUSES
                }
            ),
            absent=tuple(name for name, queue in streams.items() if self._is_absent(queue)),
            sets=self._sets,
            resets=self._resets,
        )

    def _reset(self) -> None:
        for queue in self._streams.values():
            queue.drop_first(len(queue.stamps), CLOCK_JUMP)
            queue.last = None
        self._now = None
        self._last_set = None
        self._resets += 1

    def _is_absent(self, queue: _Stream[Payload]) -> bool:
        """Whether the stream has nothing waiting and has been silent for the timeout."""
        if queue.stamps or self._now is None:
            return False
        since = queue.last if queue.last is not None else self._oldest()
        return since is not None and self._now - since > self.settings.timeout

    def _oldest(self) -> int | None:
        """The oldest frame waiting: what a stream that never spoke is measured against."""
        heads = [queue.stamps[0] for queue in self._streams.values() if queue.stamps]
        return min(heads) if heads else None

    def _match(self) -> list[SynchronisedSet[Payload]]:
        sets: list[SynchronisedSet[Payload]] = []
        while True:
            awaited = [queue for queue in self._streams.values() if not self._is_absent(queue)]
            waiting = [queue for queue in awaited if queue.stamps]
            if not waiting:
                return sets
            overdue = self._now is not None and self._now - self._oldest_of(waiting) > self.settings.timeout
            if len(waiting) < len(awaited) and not overdue:
                return sets
            pivot = max(queue.stamps[0] for queue in waiting)
            first = self._oldest_of(waiting)
            if pivot - first > self.settings.tolerance:
                # The pivot's stream has nothing for the oldest frames: they form a set without it. What may
                # still go with the pivot waits for it.
                limit = min(pivot, first + 2 * self.settings.tolerance + 1) - self.settings.tolerance
                waiting = [queue for queue in waiting if queue.stamps[0] < limit]
                pivot = max(queue.stamps[0] for queue in waiting)
            if not overdue and not all(self._is_decided(queue, pivot) for queue in waiting):
                return sets
            result = self._take(waiting, pivot)
            if result is not None:
                sets.append(result)

    @staticmethod
    def _oldest_of(queues: list[_Stream[Payload]]) -> int:
        return min(queue.stamps[0] for queue in queues)

    def _is_decided(self, queue: _Stream[Payload], pivot: int) -> bool:
        """Whether no frame still to come can be nearer to the pivot than those waiting."""
        newest = queue.stamps[-1]
        return newest >= pivot or 2 * (pivot - newest) <= self.settings.minimum_period

    def _take(self, queues: list[_Stream[Payload]], pivot: int) -> SynchronisedSet[Payload] | None:
        """The set around the pivot; None, and the oldest frame dropped, where it would be too small."""
        before = [bisect.bisect_right(queue.stamps, pivot) - 1 for queue in queues]
        chosen = [_nearest(queue.stamps, place, pivot) for queue, place in zip(queues, before, strict=True)]
        stamps = [queue.stamps[place] for queue, place in zip(queues, chosen, strict=True)]
        if max(stamps) - min(stamps) > self.settings.tolerance:
            # nearest ones on both sides of the pivot: those before it alone lie within the tolerance
            chosen = before
            stamps = [queue.stamps[place] for queue, place in zip(queues, chosen, strict=True)]
        if len(queues) < self.settings.minimum_streams:
            min(queues, key=lambda queue: queue.stamps[0]).drop_first(1, UNMATCHED)
            return None
        taken: dict[int, tuple[int, Payload]] = {}
        for queue, place in zip(queues, chosen, strict=True):
            taken[id(queue)] = queue.stamps[place], queue.frames[place]
            queue.drop_first(place, UNMATCHED)
            del queue.stamps[0], queue.frames[0]
            queue.used += 1
        self._sets += 1
        self._last_set = max(stamps)
        for queue in self._streams.values():
            # later sets lie wholly after this one, whatever came in first
            queue.drop_first(bisect.bisect_right(queue.stamps, self._last_set), UNMATCHED)
        order = [taken.get(id(queue)) for queue in self._streams.values()]
        return SynchronisedSet(
            stamp_ns=sum(stamps) // len(stamps),
            stamps_ns=tuple(None if entry is None else entry[0] for entry in order),
            frames=tuple(None if entry is None else entry[1] for entry in order),
        )


def _nearest(stamps: list[int], before: int, pivot: int) -> int:
    """Index of the stamp nearest to the pivot, the earlier one of two; stamps[before] <= pivot."""
    after = before + 1
    if after < len(stamps) and stamps[after] - pivot < pivot - stamps[before]:
        return after
    return before
