"""Masks by SAM 2 (Ravi et al. 2024), one image at a time, with a memory that does not grow.

The model's tracking step is called directly: the package's own video predictor keeps every frame. A box and the
rough silhouette prompt the first frame; each later one is segmented from the memory of the first and of the last
few frames. Where the quality of a mask falls, the memory is thrown away and the twin's prediction prompts anew.

Needs the packages torch and sam2, and weights, which no package ships: a checkpoint file and its SHA-256.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from realsimloop_ros.observation.masking import (
    Image,
    Mask,
    MaskerError,
    MaskResult,
    check_image,
    disc,
    intersection_over_union,
)

_CONFIGURATIONS = {"tiny": "t", "small": "s", "base_plus": "b+", "large": "l"}
# What the weights were trained with: mean and standard deviation of ImageNet's colours.
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# The memory attends to so many frames at most (num_maskmem - 1 masks, max_obj_ptrs_in_encoder pointers).
_MEMORY = 16
# Length of a video whose end is not known: times in the memory are scaled as in any long one.
_ENDLESS = 2**31
# Logits within this of 0 are undecided; the share of the mask that they make up tells how stable it is.
_UNDECIDED = 1.0
# The prompt's logit inside and outside of the rough silhouette: sure, but less so than a mask of the model.
_PROMPT_LOGIT = 5.0


@dataclass(frozen=True)
class Sam2Settings:
    """Which model, and how it is used.

    weights: checkpoint file of the model; sha256: its hash, as hexadecimal digits. Without both the weights are
        random, which is of use for tests alone.
    model: tiny, small, base_plus or large.
    image_size: px, edge of the square that the model sees, a multiple of 32; the weights were trained at 1024.
    device: of torch; "" takes CUDA where there is one.
    search_margin: share of the image width, beyond the prediction or else the last mask, where the body may be.
    reseed_quality: quality below which the prediction prompts anew.
    """

    weights: Path | None = None
    sha256: str = ""
    model: str = "tiny"
    image_size: int = 1024
    device: str = ""
    search_margin: float = 0.07
    reseed_quality: float = 0.3

    def __post_init__(self) -> None:
        if self.model not in _CONFIGURATIONS:
            raise MaskerError(f"sam2.model is '{self.model}', expected one of {', '.join(_CONFIGURATIONS)}")
        if self.image_size < 64 or self.image_size % 32:
            raise MaskerError(f"sam2.image_size is {self.image_size}, expected a multiple of 32 from 64 on")
        if (self.weights is None) != (not self.sha256):
            raise MaskerError("sam2.weights and sam2.sha256 belong together: give both, or neither")


class Sam2Masker:
    """The masker of one camera; see masking.ClassicalMasker, whose interface it has.

    Maskers of the same settings share the model. Raises MaskerError where a package is missing, or the weights do
    not have the hash that is given.
    """

    def __init__(self, settings: Sam2Settings | None = None) -> None:
        self.settings = settings or Sam2Settings()
        self._model = _model(self.settings)
        self._memory: dict[str, dict[int, Any]] = {}
        self._index = -1
        self._previous: Mask | None = None

    @property
    def seeded(self) -> bool:
        """Whether `update` may be called."""
        return self._previous is not None

    @property
    def remembered(self) -> int:
        """Number of frames in the memory."""
        return sum(len(frames) for frames in self._memory.values())

    def seed(self, image: Image, silhouette: Mask) -> MaskResult:
        """Forgets everything, and looks for what a rough silhouette (H, W) covers. Raises MaskerError."""
        start = time.perf_counter()
        check_image(image, silhouette=silhouette)
        if not silhouette.any():
            raise MaskerError("the seed is empty; it must show the body")
        self._memory, self._index = {"cond_frame_outputs": {}, "non_cond_frame_outputs": {}}, -1
        logits, certainty = self._step(image, silhouette)
        return self._result(logits, certainty, silhouette, None, start)

    def update(self, image: Image, predicted: Mask | None = None, excluded: Mask | None = None) -> MaskResult:
        """The mask of the next image; see ClassicalMasker.update. Raises MaskerError."""
        start = time.perf_counter()
        check_image(image, predicted=predicted, excluded=excluded)
        if self._previous is None:
            raise MaskerError("the masker has no seed: call seed() with an image and a rough silhouette first")
        if image.shape[:2] != self._previous.shape:
            raise MaskerError(
                f"the image is {image.shape[1]} x {image.shape[0]}, the seed had another size; seed again"
            )
        expected = self._previous if predicted is None or not predicted.any() else predicted
        logits, certainty = self._step(image, None)
        result = self._result(logits, certainty, expected, excluded, start)
        if result.quality < self.settings.reseed_quality and predicted is not None and predicted.any():
            self.seed(image, predicted)
            # judged as any other image is, the arms taken out
            logits, certainty = self._last
            result = self._result(logits, certainty, predicted, excluded, start)
        return result

    def _step(self, image: Image, prompt: Mask | None) -> tuple[np.ndarray, float]:
        """One image through the model: logits (H, W) and how sure it is that the body is in the image, 0 to 1."""
        import torch

        model, self._index = self._model, self._index + 1
        size, (height, width) = self.settings.image_size, image.shape[:2]
        small = cv2.resize(image, (size, size), interpolation=cv2.INTER_AREA).astype(np.float32) / 255
        pixels = torch.from_numpy(((small - _MEAN) / _DEVIATION).astype(np.float32).transpose(2, 0, 1))[None]
        with torch.inference_mode():
            features = model.forward_image(pixels.to(model.device))
            _, values, positions, sizes = model._prepare_backbone_features(features)
            points, logits = None, None
            if prompt is not None:
                points, logits = _prompt(prompt, size, model)
            output = model.track_step(
                frame_idx=self._index,
                is_init_cond_frame=prompt is not None,
                current_vision_feats=values,
                current_vision_pos_embeds=positions,
                feat_sizes=sizes,
                point_inputs=points,
                mask_inputs=None,
                output_dict=self._memory,
                num_frames=_ENDLESS,
                prev_sam_mask_logits=logits,
            )
            low = output["pred_masks"][0, 0].float().cpu().numpy()
            certainty = float(torch.sigmoid(output["object_score_logits"].float())[0, 0])
        kind = "non_cond_frame_outputs" if prompt is None else "cond_frame_outputs"
        kept = ("pred_masks", "maskmem_features", "maskmem_pos_enc", "obj_ptr", "object_score_logits")
        self._memory[kind][self._index] = {name: output[name] for name in kept}
        self._memory["non_cond_frame_outputs"].pop(self._index - _MEMORY, None)
        self._last = (cv2.resize(low, (width, height), interpolation=cv2.INTER_LINEAR), certainty)
        return self._last

    def _result(
        self, logits: np.ndarray, certainty: float, expected: Mask, excluded: Mask | None, start: float
    ) -> MaskResult:
        reach = max(1, math.ceil(self.settings.search_margin * expected.shape[1]))
        allowed = cv2.dilate(np.where(expected > 0, 255, 0).astype(np.uint8), disc(reach)) > 0
        if excluded is not None:
            allowed &= excluded == 0
        mask: Mask = np.where((logits > 0) & allowed, 255, 0).astype(np.uint8)
        found = bool(mask.any())
        # as many pixels stay in the mask when the threshold moves: sure of its rim
        loose = np.count_nonzero((logits > -_UNDECIDED) & allowed)
        separation = certainty * np.count_nonzero((logits > _UNDECIDED) & allowed) / loose if loose else 0.0
        agreement = intersection_over_union(mask, expected)
        if found or self._previous is None:
            self._previous = mask if found else np.where(expected > 0, 255, 0).astype(np.uint8)
        quality = separation * agreement if found else 0.0
        return MaskResult(mask, quality, separation, agreement, time.perf_counter() - start, found)


def check_sam2() -> None:
    """Raises MaskerError where torch or sam2 is missing."""
    missing = [name for name in ("torch", "sam2") if importlib.util.find_spec(name) is None]
    if missing:
        raise MaskerError(
            f"the sam2 masker needs {' and '.join(missing)}, which are not installed: `make segmentation`,"
            " or choose masker: classical"
        )


@cache
def _model(settings: Sam2Settings) -> Any:
    """The model in evaluation mode, on its device."""
    check_sam2()
    import sam2
    import torch
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
    folder = Path(sam2.__path__[0]) / "configs" / "sam2.1"
    configuration = OmegaConf.load(folder / f"sam2.1_hiera_{_CONFIGURATIONS[settings.model]}.yaml").model
    configuration.image_size = settings.image_size
    # as the package's own predictor sets it: several masks where one is not stable, sharp ones into the memory
    configuration.binarize_mask_from_pts_for_mem_enc = True
    configuration.sam_mask_decoder_extra_args = {
        "dynamic_multimask_via_stability": True,
        "dynamic_multimask_stability_delta": 0.05,
        "dynamic_multimask_stability_thresh": 0.98,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = instantiate(configuration, _recursive_=True)
    if settings.weights is not None:
        model.load_state_dict(_weights(settings.weights, settings.sha256))
    return model.to(device).eval()


def _weights(path: Path, sha256: str) -> Any:
    """The tensors of a checkpoint. Raises MaskerError."""
    import torch

    try:
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise MaskerError(f"sam2.weights: {path} cannot be read: {error.strerror or error}") from error
    if found != sha256.lower():
        raise MaskerError(
            f"sam2.weights: {path} has the SHA-256 {found}, but sam2.sha256 is {sha256}; the file is damaged or"
            " another one: download it again, or correct the hash"
        )
    # tensors only: no code of the file is run
    content = torch.load(path, map_location="cpu", weights_only=True)
    return content.get("model", content)


def _prompt(silhouette: Mask, size: int, model: Any) -> tuple[dict[str, Any], Any]:
    """The silhouette's box as two labelled points, and its logits at the resolution of the mask decoder."""
    import torch

    height, width = silhouette.shape
    x, y, box_width, box_height = cv2.boundingRect(silhouette)
    corners = np.array([[x, y], [x + box_width, y + box_height]], np.float32) * (size / width, size / height)
    points = {
        "point_coords": torch.from_numpy(corners.astype(np.float32))[None].to(model.device),
        # 2 and 3 are the model's labels of a box's corners
        "point_labels": torch.tensor([[2, 3]], dtype=torch.int32, device=model.device),
    }
    edge = size // 4
    share = cv2.resize((silhouette > 0).astype(np.float32), (edge, edge), interpolation=cv2.INTER_AREA)
    logits = torch.from_numpy(_PROMPT_LOGIT * (2 * share - 1))[None, None]
    return points, logits.to(model.device)
