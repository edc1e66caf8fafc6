"""Masks of one body in all cameras of a cell, from its expected shape: one masker per camera, of either kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.observation.cameras import Camera
from realsimloop_ros.observation.images import MultiViewImages
from realsimloop_ros.observation.masking import ClassicalMasker, Masker, MaskerError, MaskerSettings
from realsimloop_ros.observation.sam2_masking import Sam2Masker, Sam2Settings
from realsimloop_ros.observation.silhouettes import Capsule, hidden_by, silhouette


@dataclass(frozen=True, eq=False)
class MaskedViews:
    """Views with their masks, and what was made of each camera.

    views: a camera whose mask was not found counts as not available. quality: by camera, 0 to 1 (see MaskResult);
    failures: by camera, why there is no mask; seconds: by camera, the time that its mask took.
    """

    views: MultiViewImages
    quality: dict[str, float]
    failures: dict[str, str]
    seconds: dict[str, float]


class ViewMasker:
    """The maskers of all cameras. A camera is seeded with the expected silhouette by its first image.

    kinds: of the cameras' maskers, classical or sam2, all classical where it is None; sam2: settings of that kind.
    Deterministic: same images and shapes in the same order give the same masks. Raises MaskerError.
    """

    def __init__(
        self,
        cameras: Sequence[Camera],
        triangles: NDArray[np.int64],
        settings: MaskerSettings | None = None,
        kinds: Sequence[str] | None = None,
        sam2: Sam2Settings | None = None,
    ) -> None:
        self._cameras = tuple(cameras)
        self._triangles = triangles
        self._settings = settings or MaskerSettings()
        self._sam2 = sam2
        self.kinds = tuple(kinds) if kinds is not None else ("classical",) * len(self._cameras)
        self.reset()

    def reset(self) -> None:
        """Forget what was learnt; the next image of each camera seeds its masker."""
        self._maskers = [self._made(kind) for kind in self.kinds]

    def choose(self, kinds: Sequence[str]) -> None:
        """Other kinds of maskers, by camera. A camera whose kind stays keeps what it has learnt.

        Raises MaskerError, and then changes nothing.
        """
        changed = [
            masker if kind == before else self._made(kind)
            for masker, kind, before in zip(self._maskers, kinds, self.kinds, strict=True)
        ]
        self._maskers, self.kinds = changed, tuple(kinds)

    def _made(self, kind: str) -> Masker:
        if kind == "classical":
            return ClassicalMasker(self._settings)
        if kind != "sam2":
            raise MaskerError(f"masker: '{kind}' is unknown, expected classical or sam2")
        if self._sam2 is None:
            raise MaskerError(
                "masker: sam2 needs weights: give the cell file a block `sam2` with weights and sha256"
            )
        return Sam2Masker(self._sam2)

    def mask(
        self,
        images: Sequence[NDArray[np.uint8] | None],
        expected_vertices: NDArray[np.float64],
        arms: Sequence[Capsule] = (),
    ) -> MaskedViews:
        """images: (H, W, 3) per camera, None where there is none; expected_vertices: (n, 3), m, roughly.

        arms: what else is in the cell, where its kinematics say; the mask keeps off it where it hides the body.
        """
        shape = (len(self._cameras), self._cameras[0].height, self._cameras[0].width)
        pixels, masks = np.zeros((*shape, 3), np.uint8), np.zeros(shape, np.uint8)
        available = np.zeros(shape[0], bool)
        quality: dict[str, float] = {}
        failures: dict[str, str] = {}
        seconds: dict[str, float] = {}
        for k, (camera, masker, image) in enumerate(zip(self._cameras, self._maskers, images, strict=True)):
            if image is None:
                continue
            expected = silhouette(camera, expected_vertices, self._triangles)
            excluded = hidden_by(camera, arms, expected_vertices, expected) if arms else None
            try:
                if masker.seeded:
                    found = masker.update(image, expected, excluded)
                else:
                    # what hides the body must not be learnt as its colours
                    found = masker.seed(image, expected if excluded is None else expected & ~excluded)
            except MaskerError as error:
                failures[camera.name] = str(error)
                continue
            quality[camera.name], seconds[camera.name] = found.quality, found.seconds
            if not found.found:
                failures[camera.name] = "nothing in the image has the body's colours where it is expected"
                continue
            pixels[k], masks[k], available[k] = image, found.mask, True
        return MaskedViews(MultiViewImages(self._cameras, pixels, masks, available), quality, failures, seconds)
