"""The classical masker: a bending body before clutter, with shadow, exposure steps, occlusion and noise."""

import cv2
import numpy as np
import pytest

from realsimloop_ros.observation.masking import (
    ClassicalMasker,
    MaskerError,
    MaskerSettings,
    intersection_over_union,
)

HEIGHT, WIDTH = 240, 320


def smooth_noise(generator, scale):
    noise = cv2.GaussianBlur(generator.normal(size=(HEIGHT, WIDTH)).astype(np.float32), (0, 0), scale)
    return noise / noise.std()


def film(frames=30, seed=0, step=0.0):
    """Frames (RGB) and true masks of a green body held by a dark finger; halfway the exposure grows by `step`."""
    generator = np.random.default_rng(seed)
    background = np.stack([80 + 25 * smooth_noise(generator, 10) for _ in range(3)], -1)
    background[150:] = background[150:] * 0.6 + np.array([50, 35, 25])
    for _ in range(10):
        x, y = (int(v) for v in generator.integers(0, [WIDTH, HEIGHT]))
        size = [int(v) for v in generator.integers(8, 35, 2)]
        cv2.rectangle(background, (x, y), (x + size[0], y + size[1]), generator.uniform(30, 220, 3).tolist(), -1)
    texture = np.stack([12 * smooth_noise(generator, 3) for _ in range(3)], -1)
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float32)
    images, masks = [], []
    for t in range(frames):
        angle, x, y = 0.3 * np.sin(t / 10), 160 + 30 * np.sin(t / 12), 125 + 15 * np.cos(t / 9)
        u = (columns - x) * np.cos(angle) + (rows - y) * np.sin(angle)
        v = -(columns - x) * np.sin(angle) + (rows - y) * np.cos(angle) - 15 * np.sin(u / 30 + t / 8)
        body = (np.abs(u) / 70) ** 4 + (np.abs(v) / 22) ** 4 < 1
        image = background.copy()
        shade = 0.8 - 0.25 * np.clip(v / 22, -1, 1)
        image[body] = ((np.array([60, 150, 70]) + texture) * shade[..., None])[body]
        finger = np.zeros((HEIGHT, WIDTH), np.uint8)
        corner = int(x + 60 * np.cos(angle)), int(y + 60 * np.sin(angle))
        cv2.rectangle(finger, (corner[0] - 7, corner[1] - 60), (corner[0] + 7, corner[1] + 4), 1, -1)
        image[finger > 0] = 50 + 4 * texture[finger > 0] / 12
        body &= finger == 0
        shadow = cv2.GaussianBlur(np.roll(body.astype(np.float32), 12, 0), (0, 0), 8) * ~body
        image *= 1 - 0.35 * shadow[..., None]
        image *= 1 + 0.15 * np.sin(t / 7) + (step if t > frames // 2 else 0)
        image = cv2.GaussianBlur(image, (3, 3), 0) + generator.normal(0, 5, image.shape)
        images.append(np.clip(image, 0, 255).astype(np.uint8))
        masks.append(np.where(body, 255, 0).astype(np.uint8))
    return images, masks


def disturbed(mask, grow=4, shift=(4, -3)):
    """A silhouette as a twin would predict that is a little off: grown and shifted."""
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * grow + 1, 2 * grow + 1))
    matrix = np.array([[1, 0, shift[0]], [0, 1, shift[1]]], np.float32)
    return cv2.warpAffine(cv2.dilate(mask, kernel), matrix, mask.shape[::-1], flags=cv2.INTER_NEAREST)


def follow(images, masks, predictions=None, settings=None):
    masker = ClassicalMasker(settings)
    masker.seed(images[0], disturbed(masks[0]))
    results = [
        masker.update(image, None if predictions is None else prediction)
        for image, prediction in zip(images[1:], predictions or images[1:], strict=True)
    ]
    return results, [intersection_over_union(r.mask, m) for r, m in zip(results, masks[1:], strict=True)]


@pytest.mark.parametrize("seed", [0, 1])
def test_the_body_is_followed_through_shadow_occlusion_and_exposure(seed):
    images, masks = film(seed=seed, step=0.2)
    results, overlaps = follow(images, masks)
    times = [1e3 * result.seconds for result in results]
    print(f"IoU mean {np.mean(overlaps):.3f}, worst {np.min(overlaps):.3f}; {np.median(times):.1f} ms a mask")
    assert np.mean(overlaps) > 0.94
    assert np.min(overlaps) > 0.88
    assert all(result.found for result in results)


def test_a_rough_prediction_helps():
    images, masks = film(seed=2)
    _, alone = follow(images, masks)
    _, guided = follow(images, masks, [disturbed(mask) for mask in masks[1:]])
    print(f"IoU alone {np.mean(alone):.3f}, with prediction {np.mean(guided):.3f}, worst {np.min(guided):.3f}")
    assert np.mean(guided) > 0.94
    assert np.min(guided) > 0.9


def test_the_exposure_of_half_the_light_is_undone():
    images, masks = film(frames=6)
    masker = ClassicalMasker()
    masker.seed(images[0], masks[0])
    dark = (images[1] * 0.5).astype(np.uint8)
    assert intersection_over_union(masker.update(dark).mask, masks[1]) > 0.9


def test_a_rough_seed_is_enough():
    images, masks = film(frames=1)
    for name, seed in {
        "grown and shifted": disturbed(masks[0]),
        "grown much": disturbed(masks[0], 9, (0, 0)),
        "shrunk": cv2.erode(masks[0], np.ones((15, 15))),
    }.items():
        result = ClassicalMasker().seed(images[0], seed)
        reached = intersection_over_union(result.mask, masks[0])
        print(f"seed {name}: IoU {intersection_over_union(seed, masks[0]):.3f} -> {reached:.3f}")
        assert reached > 0.92


def test_quality_tells_good_masks_from_bad():
    images, masks = film(frames=8)
    masker = ClassicalMasker()
    masker.seed(images[0], masks[0])
    good = masker.update(images[1])
    elsewhere = masker.update(images[2], predicted=np.roll(masks[2], 40, axis=0))
    assert good.quality > 0.5
    assert elsewhere.quality < 0.6 * good.quality
    nothing = masker.update(np.full_like(images[3], 128))
    assert nothing.quality < 0.3 * good.quality


def test_a_body_that_vanishes_is_not_found_and_found_again():
    images, masks = film(frames=8)
    masker = ClassicalMasker(MaskerSettings(refine=False))
    masker.seed(images[0], masks[0])
    masker.update(images[1])
    grey = np.full_like(images[2], 90)
    lost = masker.update(grey)
    assert not lost.found
    assert not lost.mask.any()
    assert lost.quality == 0
    back = masker.update(images[3])
    assert back.found
    assert intersection_over_union(back.mask, masks[3]) > 0.85


def test_excluded_pixels_are_never_the_body():
    images, masks = film(frames=3)
    masker = ClassicalMasker()
    masker.seed(images[0], masks[0])
    arms = np.zeros((HEIGHT, WIDTH), np.uint8)
    arms[:, 150:170] = 255
    mask = masker.update(images[1], excluded=arms).mask
    assert not mask[:, 150:170].any()
    # the body is cut in two, and both parts count
    assert mask[:, :150].any()
    assert mask[:, 170:].any()


def test_the_same_images_give_the_same_masks():
    images, masks = film(frames=6)
    first, _ = follow(images, masks)
    cv2.setRNGSeed(12345)
    second, _ = follow(images, masks)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.mask, other.mask)


def test_images_larger_than_the_working_size_get_masks_of_their_own_size():
    images, masks = film(frames=2)
    large = [cv2.resize(image, (640, 480)) for image in images]
    truth = [cv2.resize(mask, (640, 480), interpolation=cv2.INTER_NEAREST) for mask in masks]
    masker = ClassicalMasker()
    masker.seed(large[0], truth[0])
    mask = masker.update(large[1]).mask
    assert mask.shape == (480, 640)
    assert set(np.unique(mask)) == {0, 255}
    assert intersection_over_union(mask, truth[1]) > 0.92


def test_what_a_masker_cannot_work_with_is_named():
    images, masks = film(frames=1)
    masker = ClassicalMasker()
    with pytest.raises(MaskerError, match="seed"):
        masker.update(images[0])
    with pytest.raises(MaskerError, match="covers 0 of"):
        masker.seed(images[0], np.zeros_like(masks[0]))
    with pytest.raises(MaskerError, match="silhouette is"):
        masker.seed(images[0], masks[0][:10])
    with pytest.raises(MaskerError, match="image is"):
        masker.seed(images[0][..., 0], masks[0])
    masker.seed(images[0], masks[0])
    with pytest.raises(MaskerError, match="seed again"):
        masker.update(images[0][:100, :100])
    with pytest.raises(MaskerError, match="predicted"):
        masker.update(images[0], predicted=masks[0].astype(float))
