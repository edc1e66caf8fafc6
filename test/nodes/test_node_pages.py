"""The pages in docs/nodes say what the nodes do: their topics, and their parameters."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rclpy.context import Context
from rclpy.parameter import Parameter as RosParameter

from nodes.small_cell import context_of, small_body, write_cell
from realsimloop_ros.nodes.camera_sync import CameraSync
from realsimloop_ros.nodes.estimator import Estimator
from realsimloop_ros.nodes.parameters import parameter_table
from realsimloop_ros.nodes.simulator import Simulator
from realsimloop_ros.nodes.stress import Stress
from realsimloop_ros.nodes.twin_node import CELL, TwinNode

PAGES = Path(__file__).parents[2] / "docs" / "nodes"
NODES = {"camera_sync": CameraSync, "simulator": Simulator, "estimator": Estimator, "stress": Stress}
# Every node has these; the pages name them in words.
OF_ALL = re.compile(r"/?(rosout|parameter_events|diagnostics|ready|clock|.*transition_event)")


@pytest.fixture
def context(domain: int) -> Iterator[Context]:
    with context_of(domain) as context:
        yield context


def topics_of(page: str) -> set[tuple[str, str, str]]:
    """(name, direction, type) of every row of the page's table of topics."""
    rows = re.findall(r"^\| `(\S+)` \| (in|out) \| (\S+) \|", page, re.MULTILINE)
    return set(rows)


def topics_of_node(node: TwinNode) -> set[tuple[str, str, str]]:
    found = set()
    for direction, endpoints in (("in", node.subscriptions), ("out", node.publishers)):
        for endpoint in endpoints:
            name = endpoint.topic_name.lstrip("/")
            if OF_ALL.fullmatch(name):
                continue
            name = re.sub(r"^(left|right)/", "ARM/", re.sub(r"camera_\d+", "CAMERA", name, count=1))
            package = endpoint.msg_type.__module__.split(".")[0]
            found.add((name, direction, f"{package}/{endpoint.msg_type.__name__}"))
    return found


@pytest.mark.parametrize("name", NODES)
def test_a_page_lists_the_topics_of_its_node(name: str, context: Context, tmp_path: Path) -> None:
    found: set[tuple[str, str, str]] = set()
    sources = ("images", "markers") if name == "estimator" else ("",)
    path = write_cell(tmp_path, small_body({"a": (0.0, 0.015, 0.0)}), wrenches=True)
    for source in sources:
        overrides = [RosParameter("cell", value=str(path))]
        overrides += [RosParameter("source", value=source)] if source else []
        node = NODES[name](context=context, parameter_overrides=overrides)
        node.connect()
        found |= topics_of_node(node)
        node.close()
        node.destroy_node()
    assert found == topics_of((PAGES / f"{name}.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_has_the_table_of_its_parameters(page: Path) -> None:
    module = importlib.import_module(f"realsimloop_ros.nodes.{page.stem}")
    parameters = module.PARAMETERS
    if page.stem in NODES:
        parameters = (CELL, *parameters, TwinNode.AUTOSTART)
    table = parameter_table(parameters)
    assert table in page.read_text(encoding="utf-8"), f"put this table into {page.name}:\n{table}"


def test_every_cause_of_a_drop_is_on_the_page() -> None:
    """Those that the sources of a node name as text."""
    folder = Path(importlib.import_module("realsimloop_ros.nodes").__path__[0])
    for name in NODES:
        source = (folder / f"{name}.py").read_text(encoding="utf-8")
        page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
        causes = re.findall(r'(?:count_drop\(|MessageError\(\s*|cause=)"(\w+)"', source)
        assert [cause for cause in causes if f"`{cause}`" not in page] == []
