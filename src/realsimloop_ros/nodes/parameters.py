"""A node's parameters: declared once, and from that validated, described to ROS and documented."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
from rclpy.node import Node
from rclpy.parameter import Parameter as RosParameter

_TYPES = {
    "bool": RosParameter.Type.BOOL,
    "int": RosParameter.Type.INTEGER,
    "float": RosParameter.Type.DOUBLE,
    "str": RosParameter.Type.STRING,
    "bool[]": RosParameter.Type.BOOL_ARRAY,
    "int[]": RosParameter.Type.INTEGER_ARRAY,
    "float[]": RosParameter.Type.DOUBLE_ARRAY,
    "str[]": RosParameter.Type.STRING_ARRAY,
}

# Parameters that rclpy itself declares.
_OF_RCLPY = ("use_sim_time", "start_type_description_service", "qos_overrides.")


class ParameterError(ValueError):
    """A parameter is missing, unknown or has a wrong value; the text names node, parameter and remedy."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a node, fixed while the node runs unless it is `changeable`.

    kind: bool, int, float or str, with [] behind it for a list; default: None where the user must give a
    value;
    unit: SI unit of a number; minimum, maximum: inclusive bounds of a number; choices: allowed values of a
    str.
    """

    name: str
    kind: str
    description: str
    default: Any = None
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    changeable: bool = False

    def descriptor(self) -> ParameterDescriptor:
        """What `ros2 param describe` shows."""
        descriptor = ParameterDescriptor(description=self._sentence(), read_only=not self.changeable)
        if self.choices:
            descriptor.additional_constraints = f"one of {', '.join(self.choices)}"
        if self.minimum is None and self.maximum is None:
            return descriptor
        if self.kind == "float":
            low = -math.inf if self.minimum is None else self.minimum
            high = math.inf if self.maximum is None else self.maximum
            descriptor.floating_point_range = [FloatingPointRange(from_value=low, to_value=high, step=0.0)]
        elif self.kind == "int":
            low_int = -(2**63) if self.minimum is None else int(self.minimum)
            high_int = 2**63 - 1 if self.maximum is None else int(self.maximum)
            descriptor.integer_range = [IntegerRange(from_value=low_int, to_value=high_int, step=1)]
        return descriptor

    def range_text(self) -> str:
        """The allowed values in words; empty where every value is allowed."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.minimum is None and self.maximum is None:
            return ""
        low = "-inf" if self.minimum is None else f"{self.minimum:g}"
        high = "inf" if self.maximum is None else f"{self.maximum:g}"
        return f"from {low} to {high}"

    def _sentence(self) -> str:
        return f"{self.description} ({self.unit})" if self.unit else self.description


def declare_parameters(node: Node, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Declare `parameters` and return their values by name. Raises ParameterError for a missing value, a
    wrong type, a value out of range, and a value given for a parameter that the node does not have.
    """
    _refuse_unknown(node, parameters)
    return {parameter.name: _declare(node, parameter) for parameter in parameters}


def parameter_table(parameters: Sequence[Parameter]) -> str:
    """The parameters as a Markdown table."""
    lines = ["| parameter | type | default | allowed | meaning |", "|---|---|---|---|---|"]
    for parameter in parameters:
        default = "(required)" if parameter.default is None else f"`{parameter.default}`"
        cells = (
            f"`{parameter.name}`",
            parameter.kind,
            default,
            parameter.range_text(),
            parameter._sentence(),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _refuse_unknown(node: Node, parameters: Sequence[Parameter]) -> None:
    known = {parameter.name for parameter in parameters}
    # rclpy keeps what the command line and parameter files set for this node here, and offers no public
    # access
    for name in node._parameter_overrides:
        if name not in known and not name.startswith(_OF_RCLPY):
            raise ParameterError(
                f"{node.get_name()} has no parameter {name!r}; it has {', '.join(sorted(known)) or 'none'}"
            )


def _declare(node: Node, parameter: Parameter) -> Any:
    where = f"{node.get_name()}.{parameter.name}"
    kind = _TYPES[parameter.kind]
    given = node._parameter_overrides.get(parameter.name)
    if given is None and parameter.default is None:
        raise ParameterError(f"{where} is not set; it is {parameter._sentence()}")
    # rclpy takes an empty list for one of bytes, so its type is declared instead, and it stays unset
    default = kind if parameter.default is None or parameter.default == [] else parameter.default
    if given is None and default is kind:
        node.declare_parameter(parameter.name, kind, parameter.descriptor())
        return []
    try:
        value = node.declare_parameter(parameter.name, default, parameter.descriptor()).value
    except InvalidParameterTypeException:
        remedy = " (write 50.0, not 50)" if parameter.kind.startswith("float") else ""
        shown = given.value if given is not None else parameter.default
        raise ParameterError(f"{where} is {shown!r}, expected {parameter.kind}{remedy}") from None
    except InvalidParameterValueException:
        shown = given.value if given is not None else parameter.default
        raise ParameterError(f"{where} is {shown!r}, expected a value {parameter.range_text()}") from None
    if parameter.choices and value not in parameter.choices:
        raise ParameterError(f"{where} is {value!r}, expected {parameter.range_text()}")
    # an empty list on the command line reaches rclpy as no value
    return list(value or []) if parameter.kind.endswith("[]") else value
