"""What is wrong with the images of a cell's cameras, told from the images themselves and how they arrive.

A camera that shows nothing of the body any more is left out of the sets: one that is dark, blinded, or stuck. The
others are used, and what is odd about them is said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class HealthSettings:
    """Limits.

    dark, bright: grey level (0 to 255) below which nearly all of an image is dark, above which most of it is
    blinded; repeats: images in a row that are the same to the last bit, noise included, before a camera counts as
    stuck; brightness_step: factor by which the mean grey level leaves its recent median; mask_share: part of its
    recent median to which a mask's quality may fall; recent: sets that recent medians and gaps are counted over;
    gaps: of these in which a camera may be missing.
    """

    dark: float = 16.0
    bright: float = 250.0
    repeats: int = 4
    brightness_step: float = 1.2
    mask_share: float = 0.75
    recent: int = 10
    gaps: int = 1


class _Camera:
    def __init__(self, recent: int) -> None:
        self.last: NDArray[np.uint8] | None = None
        self.repeated = 0
        self.brightness: deque[float] = deque(maxlen=recent)
        self.quality: deque[float] = deque(maxlen=recent)
        self.there: deque[bool] = deque(maxlen=recent)
        self.newest: int | None = None


class CameraHealth:
    """Looks at every image once, in the order of arrival. Methods return conditions: texts by `KIND.CAMERA`."""

    def __init__(self, names: Sequence[str], settings: HealthSettings | None = None) -> None:
        self._names = tuple(names)
        self._settings = settings or HealthSettings()
        self.reset()

    def reset(self) -> None:
        """Forget what was seen: the clock was set, or the scene is another."""
        self._cameras = {name: _Camera(self._settings.recent) for name in self._names}

    def arrived(self, camera: str, stamp_ns: int, jump_ns: int) -> dict[str, str]:
        """An image came; a stamp that is older than the newest by more than jump_ns begins anew."""
        state = self._cameras[camera]
        newest, state.newest = state.newest, max(stamp_ns, state.newest or stamp_ns)
        if newest is None or stamp_ns >= newest:
            return {}
        if stamp_ns < newest - jump_ns:
            self.reset()
            self._cameras[camera].newest = stamp_ns
            return {f"clock_jump.{camera}": f"{camera}: stamps jumped back in time; was the clock set?"}
        return {f"order.{camera}": f"{camera}: images come out of order; is its network at fault?"}

    def look(
        self, frames: Sequence[NDArray[np.uint8] | None]
    ) -> tuple[list[NDArray[np.uint8] | None], dict[str, str]]:
        """The images of a set, (H, W, 3) or None per camera: those that can be used, and conditions."""
        usable: list[NDArray[np.uint8] | None] = []
        found: dict[str, str] = {}
        for name, image in zip(self._names, frames, strict=True):
            state = self._cameras[name]
            state.there.append(image is not None)
            missing = len(state.there) - sum(state.there)
            if missing > self._settings.gaps and any(state.there):
                found[f"gaps.{name}"] = f"{name}: no image in {missing} of the last {len(state.there)} sets"
            blind = {} if image is None else self._blind(name, image)
            found |= blind
            if image is not None and not blind:
                found |= self._exposure(name, image)
            usable.append(None if blind else image)
        return usable, found

    def masked(self, quality: Mapping[str, float]) -> dict[str, str]:
        """Quality of the masks of a set by camera, 0 to 1: one that falls means that something is in the way."""
        found = {}
        for name, value in quality.items():
            before = self._cameras[name].quality
            if len(before) == before.maxlen and value < self._settings.mask_share * float(np.median(before)):
                found[f"hidden.{name}"] = (
                    f"{name}: the mask's quality fell to {value:.2f} from {np.median(before):.2f}; is something "
                    "before the body?"
                )
                continue  # else the median would follow, and what stays in the way would be forgotten
            before.append(value)
        return found

    def _blind(self, name: str, image: NDArray[np.uint8]) -> dict[str, str]:
        state, limits = self._cameras[name], self._settings
        same = state.last is not None and np.array_equal(state.last, image)
        state.last, state.repeated = image, state.repeated + 1 if same else 0
        if np.percentile(image, 99) < limits.dark:
            return {f"dark.{name}": f"{name} is dark and is not used; is its lens covered, its light off?"}
        if np.median(image) > limits.bright:
            return {f"bright.{name}": f"{name} is overexposed and is not used; shorten its exposure"}
        if state.repeated >= limits.repeats:
            return {f"stuck.{name}": f"{name} repeats one image and is not used; start its driver anew"}
        return {}

    def _exposure(self, name: str, image: NDArray[np.uint8]) -> dict[str, str]:
        state, level = self._cameras[name], float(image.mean())
        usual = float(np.median(state.brightness)) if state.brightness else level
        state.brightness.append(level)
        change = max(level, 1.0) / max(usual, 1.0)
        if max(change, 1.0 / change) < self._settings.brightness_step:
            return {}
        return {f"exposure.{name}": f"{name}: brightness went from {usual:.0f} to {level:.0f} at once"}
