"""Headers of messages, and what is said about messages that cannot be used."""

from __future__ import annotations

from builtin_interfaces.msg import Time
from std_msgs.msg import Header

from realsimloop_ros.body.body import Body


class MessageError(ValueError):
    """A message that cannot be used. cause: name of the drop; the text names topic, field, value and remedy."""

    def __init__(self, cause: str, text: str) -> None:
        super().__init__(text)
        self.cause = cause


def time_message(stamp_ns: int) -> Time:
    """A stamp."""
    seconds, nanoseconds = divmod(stamp_ns, 10**9)
    return Time(sec=seconds, nanosec=nanoseconds)


def stamp_ns(header: Header) -> int:
    """The stamp of a header, ns."""
    return header.stamp.sec * 10**9 + header.stamp.nanosec


def header(frame: str, stamp: int) -> Header:
    """A header."""
    return Header(stamp=time_message(stamp), frame_id=frame)


def check_frame(found: Header, expected: str, topic: str) -> None:
    """Raises MessageError where a message is in another frame than `expected`."""
    if found.frame_id != expected:
        raise MessageError(
            "wrong_frame",
            f"{topic}: frame_id is {found.frame_id!r}, expected {expected!r}; publish it in that frame",
        )


def check_body(body_hash: str, body: Body, topic: str) -> None:
    """Raises MessageError where a message speaks of another body."""
    if body_hash != body.content_hash:
        raise MessageError(
            "wrong_body",
            f"{topic}: body_hash is {body_hash or '(empty)'}, this node's body {body.name!r} has"
            f" {body.content_hash}; start both nodes with the same cell file and reduced model",
        )
