import warnings
from pathlib import Path

import numpy as np
import pytest

from realsimloop_ros.evaluation import bags
from realsimloop_ros.evaluation.bags import BagError, TruncatedBagWarning, bag_topics, bag_writer, read_bag
from realsimloop_ros.evaluation.captures import MarkerCapture
from realsimloop_ros.evaluation.marker_messages import (
    marker_array,
    marker_positions,
    read_marker_bag,
    write_marker_bag,
)

TYPES = bags.message_store().types
START = 1_700_000_000_000_000_000


def image(stamp: int, value: int = 0) -> object:
    header = TYPES["std_msgs/msg/Header"](
        stamp=TYPES["builtin_interfaces/msg/Time"](sec=stamp // 10**9, nanosec=stamp % 10**9), frame_id="cam"
    )
    data = np.full(48 * 64 * 3, value, np.uint8)
    return TYPES["sensor_msgs/msg/Image"](
        header=header, height=48, width=64, encoding="rgb8", is_bigendian=0, step=192, data=data
    )


def estimate(stamp: int) -> object:
    message = TYPES["realsimloop/msg/MaterialEstimate"]
    header = image(stamp).header
    return message(
        header=header,
        body_hash="ab",
        zone_names=["bar"],
        youngs_modulus=np.array([2.4e5]),
        poisson_ratio=np.array([0.49]),
        density=np.array([1070.0]),
        viscosity=np.array([0.0]),
        parameter_names=["bar.log_youngs_modulus"],
        covariance=np.array([np.inf]),
        status=0,
        reason="",
        loss_before=1.0,
        loss_after=0.5,
        frames_used=8,
        solve_time=0.01,
    )


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    with bag_writer(path) as bag:
        for i in range(40):
            bag.write("camera_0/image_raw", START + i * 10**7, image(START + i * 10**7, i))
            bag.write("theta", START + i * 10**7 + 5, estimate(START + i * 10**7))
    return path


def cut(recording: Path, tmp_path: Path, fraction: float, *, chunked: bool = True) -> Path:
    """What a killed recorder leaves: a folder without metadata, its file without an end."""
    whole = next(recording.glob("*.mcap")).read_bytes()
    folder = tmp_path / "killed"
    folder.mkdir()
    (folder / "killed.mcap").write_bytes(whole[: int(len(whole) * fraction)])
    return folder


def test_own_and_standard_messages_come_back_in_the_order_of_their_stamps(recording: Path) -> None:
    messages = list(read_bag(recording))
    assert [m.stamp_ns for m in messages] == sorted(m.stamp_ns for m in messages)
    assert len(messages) == 80
    first = messages[1]
    assert first.topic == "theta"
    assert first.message.youngs_modulus == [2.4e5]
    assert np.isinf(first.message.covariance[0])


def test_a_bag_is_read_as_folder_and_as_file(recording: Path) -> None:
    file = next(recording.glob("*.mcap"))
    assert [m.stamp_ns for m in read_bag(file, ["theta"])] == [m.stamp_ns for m in read_bag(recording, ["/theta"])]
    assert {t.name: t.count for t in bag_topics(recording)} == {"camera_0/image_raw": 40, "theta": 40}


def test_a_time_range_is_read_inclusively(recording: Path) -> None:
    stamps = [m.stamp_ns for m in read_bag(recording, ["theta"], first_ns=START + 5, last_ns=START + 10**7 + 5)]
    assert stamps == [START + 5, START + 10**7 + 5]


def test_a_cut_bag_is_read_up_to_its_last_whole_message(tmp_path: Path) -> None:
    # several chunks are needed, so that some are whole: 400 images of 9 kB exceed the writer's chunk
    path = tmp_path / "run"
    with bag_writer(path) as bag:
        for i in range(400):
            bag.write("camera_0/image_raw", START + i, image(START + i, i % 256))
    killed = cut(path, tmp_path, 0.9)
    with pytest.warns(TruncatedBagWarning, match=r"killed\.mcap: cut off .* stamp 17\d+ ns") as caught:
        messages = list(read_bag(killed, ["camera_0/image_raw"]))
    assert 0 < len(messages) < 400
    assert [m.message.data[0] for m in messages] == [i % 256 for i in range(len(messages))]
    assert str(messages[-1].stamp_ns) in str(caught[0].message)


def test_a_bag_cut_before_its_first_chunk_is_an_error(recording: Path, tmp_path: Path) -> None:
    killed = cut(recording, tmp_path, 0.01)
    with pytest.raises(BagError, match="nothing is left"):
        list(read_bag(killed))


def test_a_missing_bag_is_named_with_those_beside_it(recording: Path) -> None:
    with pytest.raises(BagError, match=r"other: no such bag; .* holds the bags run"):
        list(read_bag(recording.parent / "other"))


def test_a_missing_topic_is_named_with_those_there(recording: Path) -> None:
    with pytest.raises(BagError, match=r"no topic 'markers'; its topics are camera_0/image_raw, theta"):
        list(read_bag(recording, ["markers"]))


def test_a_folder_that_is_no_bag_is_an_error_and_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("keep me")
    with pytest.raises(BagError, match="is no bag"):
        list(read_bag(tmp_path))
    with pytest.raises(BagError, match="not overwritten"), bag_writer(tmp_path):
        pass
    assert (tmp_path / "notes.txt").read_text() == "keep me"


def test_a_failed_write_leaves_the_former_bag(recording: Path) -> None:
    with pytest.raises(RuntimeError), bag_writer(recording) as bag:
        bag.write("theta", START, estimate(START))
        raise RuntimeError
    assert len(list(read_bag(recording))) == 80
    assert [p.name for p in recording.parent.iterdir()] == ["run"]


def test_a_message_of_another_definition_is_refused(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bags.message_store()
    monkeypatch.setattr(type(store), "hash_rihs01", lambda self, name: "RIHS01_changed")
    with pytest.raises(BagError, match=r"realsimloop/msg/MaterialEstimate was recorded with another definition"):
        list(read_bag(recording, ["theta"]))


def test_markers_survive_a_bag_bit_for_bit_and_unseen_ones_stay_unseen(tmp_path: Path) -> None:
    positions = np.random.default_rng(1).normal(size=(30, 2, 3))
    positions[10:12, 1] = np.nan
    stamps = START + np.arange(30) * 10**7
    capture = MarkerCapture("made", ("Tip - 1", "base"), stamps, positions, "capture")
    frames = []
    write_marker_bag(tmp_path / "bag", capture, "mocap", progress=lambda: frames.append(1))
    back = read_marker_bag(tmp_path / "bag", "mocap")
    assert back.names == capture.names
    assert back.frame == "capture"
    assert len(frames) == 30
    np.testing.assert_array_equal(back.stamps_ns, stamps)
    np.testing.assert_array_equal(back.positions, positions)


def test_an_unseen_marker_is_a_delete(tmp_path: Path) -> None:
    message = marker_array(5, "capture", ["a", "b"], np.array([[1.0, 2.0, 3.0], [np.nan, 0.0, 0.0]]))
    assert [m.action for m in message.markers] == [0, 2]
    assert [m.type for m in message.markers] == [2, 2]
    assert np.isnan(marker_positions(message)["b"]).all()


def test_markers_on_a_topic_of_another_type_are_refused(recording: Path) -> None:
    with pytest.raises(BagError, match="expected visualization_msgs/msg/MarkerArray"):
        read_marker_bag(recording, "theta")


def test_reading_a_whole_bag_warns_of_nothing(recording: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(read_bag(recording))) == 80
