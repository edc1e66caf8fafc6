"""Masks of one body in all cameras of a cell, from its expected shape: one classical masker per camera."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.observation.cameras import Camera
from realsimloop_ros.observation.images import MultiViewImages
from realsimloop_ros.observation.masking import ClassicalMasker, MaskerError, MaskerSettings
from realsimloop_ros.observation.silhouettes import silhouette


@dataclass(frozen=True, eq=False)
class MaskedViews:
    """Views with their masks, and what was made of each camera.

    views: a camera whose mask was not found counts as not available. quality: by camera, 0 to 1 (see MaskResult);
    failures: by camera, why there is no mask.
    """

    views: MultiViewImages
    quality: dict[str, float]
    failures: dict[str, str]


class ViewMasker:
    """The maskers of all cameras. A camera is seeded with the expected silhouette by its first image.

    Deterministic: same images and shapes in the same order give the same masks.
    """

    def __init__(
        self, cameras: Sequence[Camera], triangles: NDArray[np.int64], settings: MaskerSettings | None = None
    ) -> None:
        self._cameras = tuple(cameras)
        self._triangles = triangles
        self._settings = settings or MaskerSettings()
        self.reset()

    def reset(self) -> None:
        """Forget what was learnt; the next image of each camera seeds its masker."""
        self._maskers = [ClassicalMasker(self._settings) for _ in self._cameras]

    def mask(
        self, images: Sequence[NDArray[np.uint8] | None], expected_vertices: NDArray[np.float64]
    ) -> MaskedViews:
        """images: (H, W, 3) per camera, None where there is none; expected_vertices: (n, 3), m, roughly."""
        shape = (len(self._cameras), self._cameras[0].height, self._cameras[0].width)
        pixels, masks = np.zeros((*shape, 3), np.uint8), np.zeros(shape, np.uint8)
        available = np.zeros(shape[0], bool)
        quality: dict[str, float] = {}
        failures: dict[str, str] = {}
        for k, (camera, masker, image) in enumerate(zip(self._cameras, self._maskers, images, strict=True)):
            if image is None:
                continue
            expected = silhouette(camera, expected_vertices, self._triangles)
            try:
                found = masker.seed(image, expected) if masker.state is None else masker.update(image, expected)
            except MaskerError as error:
                failures[camera.name] = str(error)
                continue
            quality[camera.name] = found.quality
            if not found.found:
                failures[camera.name] = "nothing in the image has the body's colours where it is expected"
                continue
            pixels[k], masks[k], available[k] = image, found.mask, True
        return MaskedViews(MultiViewImages(self._cameras, pixels, masks, available), quality, failures)
