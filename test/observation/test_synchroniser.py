"""Frames of several cameras by their stamps: what holds for any jitter, order, loss and clock."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realsimloop_ros.observation.synchroniser import (
    CAUSES,
    Synchroniser,
    SynchroniserError,
    SynchroniserSettings,
)

MS = 1_000_000
PERIOD = 100 * MS
NAMES = ("camera_0", "camera_1", "camera_2", "camera_3")


def make(**changes) -> Synchroniser[str]:
    values = {"streams": NAMES, "tolerance": 20 * MS, "timeout": 250 * MS, "minimum_period": 50 * MS}
    return Synchroniser(SynchroniserSettings(**{**values, **changes}))


def feed(synchroniser, events):
    """All sets from (stream, stamp) events; a frame is its stream, stamp and number."""
    return [
        s
        for number, (name, stamp) in enumerate(events)
        for s in synchroniser.add(name, stamp, f"{name}@{stamp}#{number}")
    ]


def assert_accounts(synchroniser):
    counts = synchroniser.statistics
    for name in synchroniser.settings.streams:
        drops = sum(counts.dropped[cause][name] for cause in CAUSES)
        assert counts.received[name] == counts.used[name] + counts.pending[name] + drops


def assert_sound(synchroniser, sets):
    """What holds for any input: frames used once, in order, within the tolerance, all accounted for."""
    used = [frame for s in sets for frame in s.frames if frame is not None]
    assert len(used) == len(set(used))
    for s in sets:
        present = [stamp for stamp in s.stamps_ns if stamp is not None]
        assert present
        assert max(present) - min(present) <= synchroniser.settings.tolerance
        assert min(present) <= s.stamp_ns <= max(present)
        for name, stamp, frame in zip(NAMES, s.stamps_ns, s.frames, strict=True):
            assert frame is None if stamp is None else frame.startswith(f"{name}@{stamp}#")
    assert_accounts(synchroniser)


def triggers(count, jitter, seed):
    """Events (stream, stamp) of cameras that fire together up to `jitter`, in order of stamps."""
    generator = random.Random(seed)
    events = [
        (name, k * PERIOD + generator.randint(-jitter, jitter)) for k in range(1, count + 1) for name in NAMES
    ]
    return sorted(events, key=lambda event: event[1])


@given(st.integers(0, 10**6), st.integers(0, 10))
def test_jittered_triggers_all_come_together(seed, jitter_ms):
    synchroniser = make()
    sets = feed(synchroniser, triggers(8, jitter_ms * MS, seed))
    assert_sound(synchroniser, sets)
    # jitter up to half the tolerance, decided without waiting for the next trigger
    assert len(sets) == 8
    assert all(all(s.available) for s in sets)
    for k, s in enumerate(sets, 1):
        assert all(abs(stamp - k * PERIOD) <= jitter_ms * MS for stamp in s.stamps_ns)


arbitrary_events = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 3000).map(lambda t: t * MS)), max_size=60
)


@given(arbitrary_events, st.integers(1, 4), st.integers(2, 5))
@settings(max_examples=200)
def test_any_events_give_sound_sets(events, minimum_streams, queue_length):
    synchroniser = make(minimum_streams=minimum_streams, queue_length=queue_length)
    sets = feed(synchroniser, events) + synchroniser.advance(10_000 * MS)
    assert_sound(synchroniser, sets)
    assert all(sum(s.available) >= minimum_streams for s in sets)
    assert all(count <= queue_length for count in synchroniser.statistics.pending.values())


@given(arbitrary_events)
def test_sets_follow_each_other_in_time(events):
    synchroniser = make(jump=10_000 * MS)
    sets = feed(synchroniser, events)
    for earlier, later in pairwise(sets):
        assert max(x for x in earlier.stamps_ns if x is not None) < min(
            x for x in later.stamps_ns if x is not None
        )


@given(st.data())
@settings(max_examples=150)
def test_sets_do_not_depend_on_how_streams_are_interleaved(data):
    # no timeouts and no full queues: then only the stamps may matter
    values = {"timeout": 10**15, "jump": 10**16, "queue_length": 100, "minimum_period": 30 * MS}
    streams = []
    for name in NAMES:
        gaps = data.draw(st.lists(st.integers(30, 90), min_size=3, max_size=8))
        streams.append([(name, MS * sum(gaps[: k + 1])) for k in range(len(gaps))])
    first = feed(make(**values), sorted((e for s in streams for e in s), key=lambda e: e[1]))
    order = data.draw(st.permutations([i for i, s in enumerate(streams) for _ in s]))
    places = [iter(s) for s in streams]
    second = feed(make(**values), [next(places[i]) for i in order])
    assert [s.stamps_ns for s in first] == [s.stamps_ns for s in second]


def test_the_nearest_frame_is_taken_not_the_first():
    synchroniser = make(streams=("a", "b"), tolerance=60 * MS, minimum_period=0)
    sets = feed(synchroniser, [("a", 100 * MS), ("b", 150 * MS), ("a", 155 * MS), ("b", 300 * MS)])
    assert sets[0].stamps_ns == (155 * MS, 150 * MS)
    assert synchroniser.statistics.dropped["unmatched"]["a"] == 1


def test_a_silent_camera_is_left_out_after_the_timeout_and_named():
    synchroniser = make()
    assert len(feed(synchroniser, triggers(2, 0, 0))) == 2
    silent = [(n, k * PERIOD) for k in range(3, 12) for n in NAMES if n != "camera_2"]
    last_seen, waits = 2 * PERIOD, []
    for name, stamp in silent:
        for s in synchroniser.add(name, stamp, f"{name}@{stamp}"):
            assert s.available == (True, True, False, True)
            waits.append(stamp - s.stamp_ns)
    assert synchroniser.statistics.absent == ("camera_2",)
    assert len(waits) == 9
    assert max(waits) <= synchroniser.settings.timeout + PERIOD
    # once it is known to be absent, nothing waits for it
    assert waits[-1] == 0
    back = feed(synchroniser, [(n, 12 * PERIOD) for n in NAMES])
    back += feed(synchroniser, [(n, 13 * PERIOD) for n in NAMES])
    assert back[-1].available == (True,) * 4
    assert synchroniser.statistics.absent == ()
    assert last_seen < back[-1].stamp_ns
    assert_accounts(synchroniser)


def test_time_alone_reveals_a_silent_camera():
    synchroniser = make()
    assert feed(synchroniser, [(n, PERIOD) for n in NAMES[:3]]) == []
    (only,) = synchroniser.advance(PERIOD + 251 * MS)
    assert only.available == (True, True, True, False)


@pytest.mark.parametrize("offset", [-50_000, -2_000, 5_000, 50_000])
def test_a_clock_jump_costs_at_most_one_set(offset):
    synchroniser = make()
    assert len(feed(synchroniser, triggers(5, 5 * MS, 1))) == 5
    moved = [(name, stamp + 60_000 * MS + offset * MS) for name, stamp in triggers(5, 5 * MS, 2)]
    synchroniser = make()
    before = [(name, stamp + 60_000 * MS) for name, stamp in triggers(5, 5 * MS, 1)]
    assert len(feed(synchroniser, before)) == 5
    after = feed(synchroniser, moved)
    assert len(after) >= 4
    assert sum(all(s.available) for s in after) >= 4
    assert synchroniser.statistics.resets == (1 if offset < 0 else 0)
    assert_accounts(synchroniser)


def test_a_frame_of_before_the_jump_that_comes_after_it_does_no_lasting_harm():
    synchroniser = make()
    feed(synchroniser, [(n, 60_000 * MS) for n in NAMES])
    mixed = [("camera_0", PERIOD), ("camera_1", 60_100 * MS), ("camera_1", PERIOD)]
    sets = feed(synchroniser, mixed + [(n, k * PERIOD) for k in range(2, 8) for n in NAMES])
    assert sum(all(s.available) for s in sets) >= 5
    assert_accounts(synchroniser)


def test_drops_are_counted_by_cause():
    synchroniser = make(queue_length=2, timeout=400 * MS)
    feed(synchroniser, [(n, PERIOD) for n in NAMES])
    feed(synchroniser, [("camera_0", 50 * MS)])
    feed(synchroniser, [("camera_1", 2 * PERIOD), ("camera_1", 2 * PERIOD)])
    feed(synchroniser, [("camera_2", 2 * PERIOD), ("camera_2", 3 * PERIOD), ("camera_2", 4 * PERIOD)])
    dropped = synchroniser.statistics.dropped
    assert dropped["late"]["camera_0"] == 1
    assert dropped["duplicate"]["camera_1"] == 1
    assert dropped["overflow"]["camera_2"] == 1
    feed(synchroniser, [("camera_3", -5_000 * MS)])
    assert synchroniser.statistics.dropped["clock_jump"]["camera_2"] == 2


@given(st.integers(0, 10**6), st.floats(0, 0.4))
@settings(max_examples=50)
def test_lost_frames_cost_only_the_sets_they_belong_to(seed, loss):
    generator = random.Random(seed)
    events = [event for event in triggers(30, 5 * MS, seed) if generator.random() > loss]
    complete = sum(
        all(any(n == name and abs(t - k * PERIOD) <= 5 * MS for n, t in events) for name in NAMES)
        for k in range(1, 31)
    )
    # a timeout longer than the recording: a camera with gaps is waited for, it is not absent
    synchroniser = make(timeout=40 * PERIOD, jump=50 * PERIOD, queue_length=40)
    sets = feed(synchroniser, events) + synchroniser.advance(100 * PERIOD)
    assert_sound(synchroniser, sets)
    assert sum(all(s.available) for s in sets) == complete


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"streams": ()}, "streams"),
        ({"streams": ("a", "a")}, "streams"),
        ({"tolerance": -1}, "tolerance"),
        ({"timeout": 1}, "timeout"),
        ({"queue_length": 1}, "queue_length"),
        ({"minimum_streams": 5}, "minimum_streams"),
        ({"jump": 1}, "jump"),
    ],
)
def test_settings_that_make_no_sense_are_named(changes, word):
    with pytest.raises(SynchroniserError, match=word):
        make(**changes)


def test_an_unknown_stream_is_named():
    with pytest.raises(SynchroniserError, match="camera_9"):
        make().add("camera_9", 0, "frame")
