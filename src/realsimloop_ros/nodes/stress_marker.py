"""A surface with a colour per vertex as one marker for RViz."""

from __future__ import annotations

import cv2
import numpy as np
from geometry_msgs.msg import Point, Vector3
from numpy.typing import NDArray
from std_msgs.msg import ColorRGBA
from visualization_msgs.msg import Marker

from realsimloop_ros.nodes.message_checks import header

# Evenly growing brightness, and readable for people who do not tell red from green.
_TABLE = cv2.applyColorMap(np.arange(256, dtype=np.uint8)[:, None], cv2.COLORMAP_VIRIDIS)[:, 0, ::-1]


def colours_of(shares: NDArray[np.floating]) -> NDArray[np.uint8]:
    """RGB colours (n, 3) of numbers (n,), 0 to 1; beyond, the end colours."""
    return _TABLE[np.clip(np.rint(255 * shares), 0, 255).astype(int)]


class SurfaceMarker:
    """Makes a TRIANGLE_LIST marker again and again; its thousands of points are made once and moved.

    triangles: (f, 3); frame: of the vertices.
    """

    def __init__(self, triangles: NDArray[np.int64], frame: str) -> None:
        self._frame = frame
        self._used, places = np.unique(triangles, return_inverse=True)
        self._corners = places.ravel().tolist()
        # the message holds each point once per triangle, but they are the same objects
        self._points = [Point() for _ in self._used]
        self._palette = [ColorRGBA(r=r / 255, g=g / 255, b=b / 255, a=1.0) for r, g, b in _TABLE.tolist()]
        self._marker = Marker(ns="stress", id=0, type=Marker.TRIANGLE_LIST, action=Marker.ADD)
        self._marker.pose.orientation.w = 1.0
        self._marker.scale = Vector3(x=1.0, y=1.0, z=1.0)
        self._marker.points = [self._points[corner] for corner in self._corners]

    def message(self, vertices: NDArray[np.float64], shares: NDArray[np.floating], stamp_ns: int) -> Marker:
        """The marker at vertices (n, 3), m, with colours of shares (n,), 0 to 1. The next call overwrites it."""
        for point, (x, y, z) in zip(self._points, vertices[self._used].tolist(), strict=True):
            point.x, point.y, point.z = x, y, z
        places = np.clip(np.rint(255 * shares[self._used]), 0, 255).astype(int).tolist()
        colours = [self._palette[place] for place in places]
        self._marker.colors = [colours[corner] for corner in self._corners]
        self._marker.header = header(self._frame, stamp_ns)
        return self._marker
