"""Images, masks and depths of one moment from all cameras of a cell."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.observation.cameras import Camera


class ImagesError(ValueError):
    """Images, masks and cameras do not belong together; the text names field, value and remedy."""


@dataclass(frozen=True, eq=False)
class MultiViewImages:
    """K views of one moment.

    cameras: K cameras of one image size.
    images: uint8 RGB (K, H, W, 3).
    masks: uint8 (K, H, W), 255 where the body is seen, 0 elsewhere.
    available: bool (K,), False where the camera gave no image; its image and mask are then not read.
    depth: float32 (K, H, W), m along the optical axis, aligned with the colour image pixel by pixel; NaN where
        it is unknown, everywhere for a camera without depth. None where no camera measures it.
    Raises ImagesError.
    """

    cameras: tuple[Camera, ...]
    images: NDArray[np.uint8]
    masks: NDArray[np.uint8]
    available: NDArray[np.bool_]
    depth: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        cameras = tuple(self.cameras)
        object.__setattr__(self, "cameras", cameras)
        if not cameras:
            raise ImagesError("cameras is empty: a view needs its camera")
        names = [camera.name for camera in cameras]
        if len(set(names)) != len(names):
            raise ImagesError(f"cameras has a name twice: {names}; names tell the views apart")
        width, height = cameras[0].width, cameras[0].height
        for camera in cameras:
            if (camera.width, camera.height) != (width, height):
                raise ImagesError(
                    f"camera '{camera.name}' has {camera.width} x {camera.height} pixels, '{names[0]}' has"
                    f" {width} x {height}; scale or crop all views to one size"
                )
        count = len(cameras)
        fields: list[tuple[str, type[np.generic], tuple[int, ...]]] = [
            ("images", np.uint8, (count, height, width, 3)),
            ("masks", np.uint8, (count, height, width)),
            ("available", np.bool_, (count,)),
        ]
        if self.depth is not None:
            fields.append(("depth", np.float32, (count, height, width)))
        for field, kind, shape in fields:
            array = np.asarray(getattr(self, field))
            if array.dtype != kind or array.shape != shape:
                raise ImagesError(
                    f"{field} is {array.dtype} {array.shape}, expected {np.dtype(kind)} {shape} for the cameras"
                    f" {names}"
                )
            object.__setattr__(self, field, array)
        seen = self.masks[self.available]
        if ((seen != 0) & (seen != 255)).any():
            raise ImagesError("masks has values other than 0 and 255; threshold the mask first")
        if self.depth is not None and ((self.depth <= 0) | np.isinf(self.depth)).any():
            raise ImagesError(
                "depth has values that are not positive or infinite; it is in m, with NaN where it is unknown"
            )


def rectify(views: MultiViewImages) -> MultiViewImages:
    """The views as pinhole cameras would have taken them (undistortion maps are cached in each camera)."""
    if all(camera.is_rectified for camera in views.cameras):
        return views
    return MultiViewImages(
        cameras=tuple(camera.rectified for camera in views.cameras),
        images=np.stack([c.undistort(i) for c, i in zip(views.cameras, views.images, strict=True)]),
        masks=np.stack([c.undistort_mask(m) for c, m in zip(views.cameras, views.masks, strict=True)]),
        available=views.available,
        depth=None
        if views.depth is None
        else np.stack([c.undistort_depth(d) for c, d in zip(views.cameras, views.depth, strict=True)]),
    )


def crop_to_masks(views: MultiViewImages, margin: int) -> MultiViewImages:
    """Windows of rectified views, of one size, that hold the masks and `margin` px around them where there are as
    many. A view without a mask keeps its middle.
    """
    cameras = views.cameras
    boxes = np.array([cv2.boundingRect(mask) for mask in views.masks])  # x, y, width, height
    width = min(int(boxes[:, 2].max()) + 2 * margin, cameras[0].width)
    height = min(int(boxes[:, 3].max()) + 2 * margin, cameras[0].height)
    middles = np.where(
        boxes[:, 2:] > 0, boxes[:, :2] + boxes[:, 2:] // 2, (cameras[0].width // 2, cameras[0].height // 2)
    )
    corners = np.clip(
        middles - (width // 2, height // 2), 0, (cameras[0].width - width, cameras[0].height - height)
    ).tolist()
    windows = [np.s_[top : top + height, left : left + width] for left, top in corners]
    return MultiViewImages(
        cameras=tuple(
            camera.cropped(left, top, width, height) for camera, (left, top) in zip(cameras, corners, strict=True)
        ),
        images=np.stack([image[window] for image, window in zip(views.images, windows, strict=True)]),
        masks=np.stack([mask[window] for mask, window in zip(views.masks, windows, strict=True)]),
        available=views.available,
        depth=None
        if views.depth is None
        else np.stack([depth[window] for depth, window in zip(views.depth, windows, strict=True)]),
    )
