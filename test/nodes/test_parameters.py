"""Parameters of a node: declared once, validated, documented."""

from collections.abc import Iterator
from typing import Any

import pytest
import rclpy
from rclpy.context import Context
from rclpy.node import Node

from realsimloop_ros.nodes.parameters import Parameter, ParameterError, declare_parameters, parameter_table

PARAMETERS = (
    Parameter("cell", "str", "cell file"),
    Parameter("rate", "float", "rate of publication", 10.0, unit="Hz", minimum=0.1, maximum=100.0),
    Parameter("window", "int", "frames in a window", 8, minimum=1),
    Parameter("views", "str[]", "cameras to use; empty: all", []),
    Parameter("law", "str", "material law", "neo_hookean", choices=("neo_hookean", "yeoh")),
    Parameter("verbose", "bool", "log every frame", False),
)


@pytest.fixture
def context(domain: int) -> Iterator[Context]:
    context = Context()
    rclpy.init(context=context, domain_id=domain)
    yield context
    rclpy.shutdown(context=context)


def declared(context: Context, *rules: str) -> dict[str, Any]:
    arguments = ["--ros-args", *(part for rule in rules for part in ("-p", rule))]
    node = Node("stress", context=context, cli_args=arguments)
    try:
        return declare_parameters(node, PARAMETERS)
    finally:
        node.destroy_node()


def test_defaults_hold_where_nothing_is_given(context: Context) -> None:
    assert declared(context, "cell:=a.yaml") == {
        "cell": "a.yaml",
        "rate": 10.0,
        "window": 8,
        "views": [],
        "law": "neo_hookean",
        "verbose": False,
    }


def test_an_empty_list_may_be_given(context: Context) -> None:
    assert declared(context, "cell:=a", "views:=[]")["views"] == []


def test_given_values_win(context: Context) -> None:
    values = declared(context, "cell:=a", "rate:=50.0", "views:=[camera_0, camera_2]", "verbose:=true")
    assert values["rate"] == 50.0
    assert values["views"] == ["camera_0", "camera_2"]
    assert values["verbose"] is True


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([], "stress.cell is not set; it is cell file"),
        (["cell:=a", "rate:=50"], r"stress.rate is 50, expected float \(write 50.0, not 50\)"),
        (["cell:=a", "rate:=500.0"], r"stress.rate is 500.0, expected a value from 0.1 to 100"),
        (["cell:=a", "window:=0"], r"stress.window is 0, expected a value from 1 to inf"),
        (["cell:=a", "window:=many"], r"stress.window is 'many', expected int"),
        (["cell:=a", "law:=hooke"], r"stress.law is 'hooke', expected one of neo_hookean, yeoh"),
        (["cell:=a", "windw:=3"], r"stress has no parameter 'windw'; it has cell, law, rate"),
    ],
)
def test_a_wrong_value_is_named_with_its_remedy(context: Context, rules: list[str], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        declared(context, *rules)


def test_simulated_time_is_no_unknown_parameter(context: Context) -> None:
    assert declared(context, "cell:=a", "use_sim_time:=true")["cell"] == "a"


def test_a_parameter_is_fixed_and_described(context: Context) -> None:
    node = Node("stress", context=context, cli_args=["--ros-args", "-p", "cell:=a"])
    declare_parameters(node, PARAMETERS)
    descriptor = node.describe_parameter("rate")
    assert descriptor.read_only
    assert descriptor.description == "rate of publication (Hz)"
    node.destroy_node()


def test_the_table_shows_every_parameter() -> None:
    lines = parameter_table(PARAMETERS).splitlines()
    assert len(lines) == 2 + len(PARAMETERS)
    assert lines[2] == "| `cell` | str | (required) |  | cell file |"
    assert lines[3] == "| `rate` | float | `10.0` | from 0.1 to 100 | rate of publication (Hz) |"
