"""The image likelihood: derivatives, robustness to exposure and occlusion, and what it says about each camera."""

from dataclasses import replace

import cv2
import jax.numpy as jnp
import numpy as np
import pytest

from realsimloop_ros.observation import likelihood_kernels, splat_kernels, splat_projection
from realsimloop_ros.observation.appearance import AppearanceSettings, fit_appearance, initialise_splats
from realsimloop_ros.observation.cameras import CameraError, pinhole_views
from realsimloop_ros.observation.image_likelihood import (
    ImageNoise,
    ImageNoiseError,
    compile_kernels,
    correlated_pixels,
    image_loss_gradient,
    image_term,
    measured_noise,
)
from realsimloop_ros.observation.images import MultiViewImages
from realsimloop_ros.observation.likelihoods import FrameObservation, ImageLikelihood, PredictedState
from realsimloop_ros.observation.rasterizers import render
from realsimloop_ros.observation.splats import Splats

ROBUST = ("huber", "geman_mcclure")


@pytest.fixture(scope="module")
def splats(bar, cell_cameras, box_views):
    return initialise_splats(
        bar, bar.rest_positions, box_views(cell_cameras), AppearanceSettings(count=1500, iterations=60)
    )


@pytest.fixture(scope="module")
def few(splats):
    """40 of the splats, widened: a scene so smooth that differences see few rims."""
    chosen = np.arange(0, 1050, 26)
    attachment = type(splats.attachment)(
        splats.attachment.tet[chosen], splats.attachment.weights[chosen], splats.attachment.gradients[chosen]
    )
    return Splats(
        attachment,
        splats.nodes[chosen],
        30 * splats.rest_covariances[chosen],
        splats.colours[chosen],
        0.6 * splats.opacities[chosen],
    )


def modes(x):
    """Two motions of the vertices (2, n, 3) per unit: up, and a sag."""
    zero = np.zeros(len(x))
    return np.stack(
        [np.stack([zero, zero, zero + 1], 1), np.stack([zero, zero, np.cos(np.pi * x[:, 0] / 0.2)], 1)]
    )


def term_at(splats, x, views, noise, dtype=np.float32):
    return image_term(splats, views, *splats.place(x), *splats.place_tangents(x, modes(x)), noise, dtype)


@pytest.mark.parametrize("robust", ROBUST)
def test_both_derivatives_agree(splats, bar, cell_cameras, box_views, robust):
    x = bar.rest_positions
    views = box_views(cell_cameras, shift=(0, 0, 0.001), gain=0.8)
    noise = ImageNoise(robust=robust)
    for dtype, tolerance in ((np.float64, 1e-9), (np.float32, 1e-3)):
        term = term_at(splats, x, views, noise, dtype)
        reverse = image_loss_gradient(splats, views, *splats.place(x), noise, dtype)
        vertices = splats.place_transpose(x, reverse.centres, reverse.covariances)
        np.testing.assert_allclose(term.loss, reverse.loss, rtol=tolerance)
        expected = np.einsum("pni,ni->p", modes(x), vertices)
        np.testing.assert_allclose(term.gradient, expected, rtol=tolerance)
        assert term.cameras == reverse.cameras


@pytest.mark.parametrize("robust", ROBUST)
def test_the_gradient_is_the_central_difference_of_the_loss(few, bar, cell_cameras, box_views, robust):
    x = bar.rest_positions
    views = box_views(cell_cameras, shift=(0.002, 0.001, 0.002), gain=0.9)
    # the gain must be at its minimum for the gradient to hold without its derivative
    noise = ImageNoise(robust=robust, gain_tolerance=1e-14, minimum_overlap=0.05)
    assert all(camera.used for camera in term_at(few, x, views, noise).cameras)

    def loss(displacement):
        return image_loss_gradient(few, views, *few.place(x + displacement), noise, np.float64).loss

    # A step of 1e-9 m is 6e-7 px. Rims that cross a pixel centre within it change the loss at once, by up to
    # (1/255) of a colour; the median over several places keeps clear of them.
    for j, mode in enumerate(modes(x)):
        errors = []
        for place in np.linspace(-1e-6, 1e-6, 5):
            difference = (loss((place + 1e-9) * mode) - loss((place - 1e-9) * mode)) / 2e-9
            gradient = term_at(few, x + place * mode, views, noise, np.float64).gradient[j]
            errors.append(abs(difference / gradient - 1))
        print(f"{robust}, mode {j}: relative errors {np.array(errors)}")
        # losses of some thousands have a rounding of 1e-12, over the step 1e-3, of gradients near 1e5
        assert np.median(errors) < 1e-6


def test_gauss_newton_finds_the_displacement(splats, bar, cell_cameras, box_views):
    x = bar.rest_positions
    truth = 0.0015
    views = box_views(cell_cameras, shift=(0, 0, truth), gain=0.8)
    estimate = np.zeros(2)
    for _ in range(8):
        term = term_at(splats, x + np.einsum("p,pni->ni", estimate, modes(x)), views, ImageNoise())
        estimate -= np.linalg.solve(term.gauss_newton, term.gradient)
    print(f"displacement {1e3 * estimate} mm, truth {1e3 * truth} 0 mm")
    # a tenth of a millimetre is a twentieth of a pixel here: what the splats' own error leaves
    np.testing.assert_allclose(estimate, [truth, 0], atol=1.5e-4)
    for camera in term.cameras:
        assert camera.used
        assert abs(camera.gain - 0.8) < 0.02
        assert camera.overlap > 0.95
        assert camera.outlier_share < 0.05


def test_masks_that_are_too_wide_are_not_taken_for_a_thicker_body(splats, bar, cell_cameras, box_views):
    x = bar.rest_positions
    views = box_views(cell_cameras)
    wide = replace(views, masks=np.stack([cv2.dilate(mask, np.ones((3, 3), np.uint8)) for mask in views.masks]))
    thicker = (x - x.mean(0)) * [0.0, 1.0, 1.0]

    def thickness(target, sigma_offset):
        estimate, noise = 0.0, ImageNoise(sigma_offset=sigma_offset)
        for _ in range(8):
            placed = splats.place(x + estimate * thicker)
            tangents = splats.place_tangents(x + estimate * thicker, thicker[None])
            term = image_term(splats, target, *placed, *tangents, noise)
            estimate -= term.gradient[0] / term.gauss_newton[0, 0]
        return estimate, term.cameras

    taken, _ = thickness(wide, 1e-3)
    told, cameras = thickness(wide, 2.0)
    clear, _ = thickness(views, 2.0)
    print(f"thickness: {taken:.4f} without an offset, {told:.4f} with one, {clear:.4f} of the true masks")
    # of what a pixel on either side of 18 px leaves, half: the step of a mask is steeper than the rim of splats
    assert abs(told - clear) < 0.7 * abs(taken - clear)
    for camera in cameras:
        assert 0.3 < camera.offset < 1.2


def test_an_occluder_moves_the_minimum_little(splats, bar, cell_cameras, box_views):
    x = bar.rest_positions
    views = box_views(cell_cameras)
    images, masks = views.images.copy(), views.masks.copy()
    # something grey before a third of the bar in two views; the masker leaves it out
    images[:2, :, 60:100] = 70
    masks[:2, :, 60:100] = 0
    hidden = MultiViewImages(views.cameras, images, masks, views.available)
    clear, occluded = np.zeros(2), np.zeros(2)
    for target, estimate in ((views, clear), (hidden, occluded)):
        for _ in range(8):
            term = term_at(splats, x + np.einsum("p,pni->ni", estimate, modes(x)), target, ImageNoise())
            estimate -= np.linalg.solve(term.gauss_newton, term.gradient)
    print(f"clear {1e3 * clear} mm, occluded {1e3 * occluded} mm")
    np.testing.assert_allclose(clear, [0, 0], atol=1.5e-4)
    np.testing.assert_allclose(occluded, clear, atol=3e-4)
    assert term.cameras[0].outlier_share > 0.2


def test_correlated_pixels_share_their_information(splats, bar, cell_cameras, box_views):
    x = bar.rest_positions
    views = box_views(cell_cameras, shift=(0, 0, 0.001))
    alone = term_at(splats, x, views, ImageNoise(correlation_length=0.0))
    shared = term_at(splats, x, views, ImageNoise(correlation_length=2.0))
    factor = correlated_pixels(2.0)
    assert correlated_pixels(0.0) == 1
    # 2 pi length^2 in the continuum; the sum over the grid adds its corner
    assert 2 * np.pi * 4 == pytest.approx(factor, rel=0.02)
    np.testing.assert_allclose(shared.loss * factor, alone.loss)
    np.testing.assert_allclose(shared.gradient * factor, alone.gradient)
    np.testing.assert_allclose(shared.gauss_newton * factor, alone.gauss_newton)
    assert shared.residual_rms == alone.residual_rms


def test_the_noise_of_a_fitted_frame_is_measured(splats, bar, cell_cameras, box_views):
    x = bar.rest_positions
    views = box_views(cell_cameras)
    generator = np.random.default_rng(0)
    for sigma, blur in ((0.06, 0), (0.06, 2)):
        noise = generator.normal(size=views.images.shape)
        if blur:
            weights = np.exp(-0.5 * (np.arange(-6, 7) / blur) ** 2)
            for axis in (1, 2):
                noise = np.apply_along_axis(np.convolve, axis, noise, weights, mode="same")
            noise /= noise.std()
        images = np.clip(views.images + 255 * sigma * noise, 0, 255).astype(np.uint8)
        noisy = MultiViewImages(views.cameras, images, views.masks, views.available)
        found = measured_noise(render(splats.gaussians(x), pinhole_views(cell_cameras)), noisy, ImageNoise())
        # the splats' own residual comes on top; sigma is from a few thousand pixels
        assert 0.9 * sigma < found.sigma_colour < 1.3 * sigma
        assert found.correlation_length < 1 if blur == 0 else found.correlation_length > 3


def test_cameras_that_say_nothing_are_left_out_and_say_why(splats, bar, cell_cameras, box_views):
    x = bar.rest_positions
    views = box_views(cell_cameras)
    images, masks, available = views.images.copy(), views.masks.copy(), views.available.copy()
    available[0] = False
    masks[1] = 0
    masks[2] = np.roll(masks[2], 50, axis=0)
    images[3] = 0
    broken = MultiViewImages(views.cameras, images, masks, available)
    term = term_at(splats, x, broken, ImageNoise())
    reasons = [camera.reason for camera in term.cameras]
    assert [camera.camera for camera in term.cameras] == [f"camera_{i}" for i in range(4)]
    assert "no image" in reasons[0]
    assert "mask is empty" in reasons[1]
    assert "overlap" in reasons[2]
    assert "exposure gain" in reasons[3]
    assert term.loss == 0
    assert not term.gradient.any()
    assert not term.gauss_newton.any()
    assert np.isnan(term.residual_rms)
    none = MultiViewImages(views.cameras, images, masks, np.zeros(4, bool))
    assert image_loss_gradient(splats, none, *splats.place(x), ImageNoise()).loss == 0

    three = term_at(splats, x, replace(views, available=np.array([True, False, True, True])), ImageNoise())
    single = [
        term_at(splats, x, replace(views, available=np.arange(4) == index), ImageNoise()) for index in (0, 2, 3)
    ]
    np.testing.assert_allclose(three.loss, sum(term.loss for term in single))
    np.testing.assert_allclose(three.gauss_newton, sum(term.gauss_newton for term in single))


def test_the_same_frame_gives_the_same_bits(splats, bar, cell_cameras, box_views):
    x = bar.rest_positions
    views = box_views(cell_cameras, shift=(0, 0, 0.001))
    first, second = (term_at(splats, x, views, ImageNoise()) for _ in range(2))
    assert first.loss == second.loss
    np.testing.assert_array_equal(first.gradient, second.gradient)
    np.testing.assert_array_equal(first.gauss_newton, second.gauss_newton)


def test_nothing_is_compiled_after_the_kernels_were(splats, bar, cell_cameras, box_views):
    compile_kernels()
    kernels = [
        splat_kernels.composite,
        splat_kernels.composite_tangents,
        splat_kernels.composite_transpose,
        splat_projection.project_view,
        splat_projection.project_view_tangents,
        splat_projection.project_view_transpose,
        likelihood_kernels.view_sums,
        likelihood_kernels.gain_sums,
        likelihood_kernels.view_image_gradient,
    ]
    before = [len(kernel.signatures) for kernel in kernels]
    views = box_views(cell_cameras)
    # as they come from messages and from JAX
    for array in (views.images, views.masks):
        array.setflags(write=False)
    x = np.asarray(jnp.asarray(bar.rest_positions))
    term_at(splats, x, views, ImageNoise())
    image_loss_gradient(splats, views, *(np.asarray(jnp.asarray(a)) for a in splats.place(x)), ImageNoise())
    assert [len(kernel.signatures) for kernel in kernels] == before


def test_distorted_views_are_refused(splats, bar, cell_cameras, box_views):
    views = box_views(cell_cameras)
    distorted = replace(views, cameras=tuple(replace(c, distortion=np.full(5, 0.01)) for c in views.cameras))
    with pytest.raises(CameraError, match="rectify"):
        term_at(splats, bar.rest_positions, distorted, ImageNoise())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sigma_colour": 0.0}, "sigma_colour is 0"),
        ({"sigma_silhouette": float("nan")}, "sigma_silhouette"),
        ({"correlation_length": -1.0}, "correlation_length"),
        ({"robust": "tukey"}, "huber, geman_mcclure"),
    ],
)
def test_a_noise_model_that_makes_no_sense_is_named(changes, words):
    with pytest.raises(ImageNoiseError, match=words):
        ImageNoise(**changes)


def test_an_appearance_is_renewed_over_several_frames_and_in_use_when_it_is_done(bar, cell_cameras, box_views):
    settings = AppearanceSettings(count=200, iterations=2, opacity_rate=0.0, scale_rate=0.0)
    likelihood = ImageLikelihood(bar, appearance=settings, refresh_iterations=5, iterations_per_frame=2)
    x = bar.rest_positions
    predicted = PredictedState(x, np.moveaxis(modes(x), 0, 2), np.zeros(2))
    likelihood.prepare(predicted, FrameObservation(0, views=box_views(cell_cameras)))
    first, later = likelihood.splats, box_views(cell_cameras, gain=0.8)
    likelihood.refresh(predicted, FrameObservation(1, views=later))
    for _ in range(2):
        likelihood.work()
        assert likelihood.splats is first
    likelihood.work()
    at_once = fit_appearance(first, x, later, replace(settings, iterations=5))
    np.testing.assert_array_equal(likelihood.splats.colours, at_once.colours)
    assert not np.array_equal(at_once.colours, first.colours)
