"""The messages: what every one has, what their constants are, and whether a ROS 2 machine knows their hashes."""

import json
import re
import sys
from pathlib import Path

import pytest
from realsimloop.msg import BodyState, CellState, MaterialEstimate, ShapeGoal, ShapeStatus

from realsimloop_ros.evaluation.bags import message_store

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "msg").glob("*.msg"))
# What a ROS 2 installation computes for tf2_msgs/msg/TFMessage: with it, /tf is understood on both sides.
TF_MESSAGE_HASH = "RIHS01_e369d0f05a23ae52508854b66f6aa0437f3449d652e8cbf22d5abe85d020f087"


def installed_hash(package: str, name: str) -> str:
    """The hash that the generated type support carries, from the description installed beside it."""
    description = json.loads((Path(sys.prefix) / "share" / package / "msg" / f"{name}.json").read_text())
    (own,) = [
        entry["hash_string"]
        for entry in description["type_hashes"]
        if entry["type_name"] == f"{package}/msg/{name}"
    ]
    return str(own)


def test_all_messages_of_the_architecture_exist() -> None:
    assert NAMES == [
        "BodyState",
        "CableForces",
        "CellState",
        "MaterialEstimate",
        "MultiViewFrame",
        "ShapeGoal",
        "ShapeStatus",
        "StressField",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_message_starts_with_a_header_and_the_hash_of_the_body(name: str) -> None:
    lines = (ROOT / "msg" / f"{name}.msg").read_text().splitlines()
    fields = [
        line for line in lines if line.strip() and not line.startswith("#") and "=" not in line.split("#")[0]
    ]
    assert fields[0] == "std_msgs/Header header"
    assert re.match(r"string body_hash\s+#", fields[1])


@pytest.mark.parametrize("name", NAMES)
def test_every_field_but_the_header_says_what_it_is(name: str) -> None:
    for line in (ROOT / "msg" / f"{name}.msg").read_text().splitlines():
        if line.strip() and not line.startswith("#") and "=" not in line and "header" not in line:
            assert "#" in line, line


@pytest.mark.parametrize("name", NAMES)
def test_a_bag_names_the_same_definition_as_the_generated_type_support(name: str) -> None:
    assert message_store().hash_rihs01(f"realsimloop/msg/{name}") == installed_hash("realsimloop", name)


def test_transforms_interoperate_with_a_ros_machine() -> None:
    assert installed_hash("tf2_msgs", "TFMessage") == TF_MESSAGE_HASH
    assert message_store().hash_rihs01("tf2_msgs/msg/TFMessage") == TF_MESSAGE_HASH


@pytest.mark.parametrize(
    ("message", "prefix"),
    [(MaterialEstimate, "STATUS_"), (ShapeStatus, "STATUS_"), (ShapeGoal, "KIND_"), (CellState, "STATE_")],
)
def test_the_values_of_an_enumeration_are_distinct_and_without_gaps(message: type, prefix: str) -> None:
    constants = type(message).__dict__["_Metaclass_" + message.__name__ + "__constants"]
    values = [value for name, value in constants.items() if name.startswith(prefix)]
    assert sorted(values) == list(range(len(values)))


def test_an_unobservable_parameter_survives_the_message() -> None:
    estimate = MaterialEstimate(covariance=[float("inf"), 0.0, 0.0, 1e-3])
    assert estimate.covariance.tolist() == [float("inf"), 0.0, 0.0, 1e-3]


def test_vertices_are_single_precision() -> None:
    assert BodyState(vertices=[0.1, 0.2, 0.3]).vertices.itemsize == 4
