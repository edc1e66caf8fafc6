"""Streams of stamps whose clock may be set back, as when a recording begins anew."""

from __future__ import annotations


class ClockJumps:
    """Tells when a stream's stamp is older than its newest by more than a threshold, ns."""

    def __init__(self, threshold_ns: int) -> None:
        self._threshold_ns = threshold_ns
        self._newest: dict[str, int] = {}
        self.count = 0

    def jumped(self, stream: str, stamp_ns: int) -> bool:
        """Take a stamp in; True where the clock was set back, after which every stream begins anew."""
        newest = self._newest.get(stream)
        jumped = newest is not None and stamp_ns < newest - self._threshold_ns
        if jumped:
            self._newest.clear()
            self.count += 1
        self._newest[stream] = max(stamp_ns, self._newest.get(stream, stamp_ns))
        return jumped
