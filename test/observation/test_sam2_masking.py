"""The SAM 2 masker with random weights: what it makes of them is meaningless, how it goes about it is not."""

import hashlib
import importlib.util
from collections import OrderedDict

import cv2
import numpy as np
import pytest

from realsimloop_ros.observation import sam2_masking
from realsimloop_ros.observation.masking import MaskerError
from realsimloop_ros.observation.sam2_masking import Sam2Masker, Sam2Settings

INSTALLED = all(importlib.util.find_spec(name) for name in ("torch", "sam2"))
needs_sam2 = pytest.mark.skipif(not INSTALLED, reason="torch or sam2 is not installed: `make segmentation`")
# the smallest model at a sixteenth of its resolution: 0.1 s an image on one core
TINY = Sam2Settings(image_size=64, reseed_quality=0.0)
HEIGHT, WIDTH = 96, 128


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Two threads on a busy machine wait for each other, for minutes."""
    if not INSTALLED:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def picture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (HEIGHT, WIDTH, 3), dtype=np.uint8)


def bar(shift: int = 0) -> np.ndarray:
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[40:56, 20 + shift : 100 + shift] = 255
    return mask


@needs_sam2
def test_same_images_give_the_same_masks_and_the_memory_does_not_grow():
    first, second = Sam2Masker(TINY), Sam2Masker(TINY)
    for masker in (first, second):
        masker.seed(picture(0), bar())
    sizes = []
    for k in range(1, 20):
        one, two = (masker.update(picture(k), bar()) for masker in (first, second))
        np.testing.assert_array_equal(one.mask, two.mask)
        assert one.mask.shape == (HEIGHT, WIDTH) and set(np.unique(one.mask)) <= {0, 255}
        assert 0.0 <= one.quality <= 1.0 and one.seconds > 0.0
        sizes.append(first.remembered)
    # the seed's frame, and the sixteen after it that the memory attends to
    assert sizes[:3] == [2, 3, 4]
    assert sizes[-4:] == [17] * 4


@needs_sam2
def test_tracking_is_that_of_the_package_s_own_predictor():
    import sam2
    import torch
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    masker = Sam2Masker(TINY)
    masker.seed(picture(0), bar())
    configuration = OmegaConf.load(sam2.__path__[0] + "/configs/sam2.1/sam2.1_hiera_t.yaml").model
    configuration._target_ = "sam2.sam2_video_predictor.SAM2VideoPredictor"
    configuration.image_size = 64
    configuration.binarize_mask_from_pts_for_mem_enc = True
    configuration.sam_mask_decoder_extra_args = {
        "dynamic_multimask_via_stability": True,
        "dynamic_multimask_stability_delta": 0.05,
        "dynamic_multimask_stability_thresh": 0.98,
    }
    predictor = instantiate(configuration, _recursive_=True).eval()
    predictor.load_state_dict(masker._model.state_dict())
    names = ("output_dict_per_obj", "temp_output_dict_per_obj", "frames_tracked_per_obj")
    state = dict(
        images={}, num_frames=100, offload_video_to_cpu=False, offload_state_to_cpu=False, video_height=HEIGHT,
        video_width=WIDTH, device=torch.device("cpu"), storage_device=torch.device("cpu"),
        point_inputs_per_obj={0: {}}, mask_inputs_per_obj={0: {0: None}}, cached_features={}, constants={},
        obj_id_to_idx=OrderedDict({1: 0}), obj_idx_to_id=OrderedDict({0: 1}), obj_ids=[1],
        **{name: {0: {}} for name in names},
    )  # fmt: skip
    # both begin from the same prompted frame
    state["output_dict_per_obj"][0] = {
        "cond_frame_outputs": {0: dict(masker._memory["cond_frame_outputs"][0])},
        "non_cond_frame_outputs": {},
    }
    state["temp_output_dict_per_obj"][0] = {"cond_frame_outputs": {}, "non_cond_frame_outputs": {}}
    mean, deviation = (np.array(v) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    # float32 through the same layers; then its memory, which the package keeps in bfloat16, of 8 bits, comes in
    for k, tolerance in ((1, 1e-4), (2, 1e-2)):
        small = cv2.resize(picture(k), (64, 64), interpolation=cv2.INTER_AREA) / 255.0
        pixels = ((small - mean) / deviation).astype(np.float32)
        state["images"] = {k: torch.from_numpy(pixels.transpose(2, 0, 1))}
        _, _, logits = next(predictor.propagate_in_video(state, start_frame_idx=k, max_frame_num_to_track=0))
        ours, _ = masker._step(picture(k), None)
        theirs = logits[0, 0].numpy()
        np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=tolerance * np.abs(theirs).max())


@needs_sam2
def test_a_mask_of_low_quality_is_prompted_anew_and_keeps_off_the_arms():
    masker = Sam2Masker(Sam2Settings(image_size=64, reseed_quality=1.1))
    masker.seed(picture(0), bar())
    excluded = np.zeros((HEIGHT, WIDTH), np.uint8)
    excluded[:, :60] = 255
    for k in range(1, 4):
        result = masker.update(picture(k), bar(4), excluded)
        # every quality is below 1.1: the memory holds the new prompt alone
        assert masker.remembered == 1
        assert not result.mask[:, :60].any()
    # without a prediction there is nothing to prompt with
    masker.update(picture(5))
    assert masker.remembered == 2


@needs_sam2
def test_the_mask_keeps_near_where_the_body_is_expected():
    masker = Sam2Masker(TINY)
    masker.seed(picture(0), bar())
    result = masker.update(picture(1), bar())
    reach = int(np.ceil(0.07 * WIDTH))
    near = cv2.dilate(bar(), np.ones((2 * reach + 1, 2 * reach + 1), np.uint8))
    assert not result.mask[near == 0].any()


@needs_sam2
def test_weights_come_from_a_file_of_the_given_hash(tmp_path):
    import torch

    path = tmp_path / "weights.pt"
    model = Sam2Masker(TINY)._model
    changed = {
        name: value + 0.01 if "mask_decoder" in name else value for name, value in model.state_dict().items()
    }
    torch.save({"model": changed}, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    loaded = Sam2Masker(Sam2Settings(weights=path, sha256=digest, image_size=64))
    for name, value in loaded._model.state_dict().items():
        torch.testing.assert_close(value, changed[name], rtol=0, atol=0)
    with pytest.raises(MaskerError, match="SHA-256"):
        Sam2Masker(Sam2Settings(weights=path, sha256="0" * 64, image_size=64))
    with pytest.raises(MaskerError, match="cannot be read"):
        Sam2Masker(Sam2Settings(weights=tmp_path / "none.pt", sha256=digest, image_size=64))


@needs_sam2
def test_a_masker_asks_for_its_seed():
    masker = Sam2Masker(TINY)
    assert not masker.seeded
    with pytest.raises(MaskerError, match="no seed"):
        masker.update(picture(0))
    with pytest.raises(MaskerError, match="empty"):
        masker.seed(picture(0), np.zeros((HEIGHT, WIDTH), np.uint8))
    masker.seed(picture(0), bar())
    assert masker.seeded
    with pytest.raises(MaskerError, match="another size"):
        masker.update(picture(0)[:50])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model": "huge"}, "expected one of tiny"),
        ({"image_size": 100}, "multiple of 32"),
        ({"sha256": "ab"}, "together"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values, words):
    with pytest.raises(MaskerError, match=words):
        Sam2Settings(**values)


def test_a_missing_package_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setattr(sam2_masking.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MaskerError, match=r"torch and sam2.*make segmentation"):
        Sam2Masker(Sam2Settings(image_size=192))
