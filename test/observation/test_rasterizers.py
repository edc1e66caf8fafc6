"""The compiled rasterizer against the slow oracle: values, tangents and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from realsimloop_ros.observation import rasterizers
from realsimloop_ros.observation.cameras import pinhole_views
from realsimloop_ros.observation.rasterizer_oracle import render_oracle
from realsimloop_ros.observation.rasterizers import (
    Gaussians,
    SplatShapeError,
    render,
    render_jax,
    render_tangents,
    render_transpose,
)

oracle = jax.jit(render_oracle, static_argnums=4)

FIELDS = ("centres", "covariances", "opacities", "colours")


@pytest.fixture(scope="module")
def views(cell_cameras):
    """Two of the cell's views at 80 x 60: what a dense oracle can still draw in a second."""
    return pinhole_views([camera.scaled(0.5) for camera in cell_cameras[:2]])


@pytest.fixture(scope="module")
def crowd(scattered):
    """300 Gaussians, so many on top of each other that pixels close."""
    return scattered(300)


def arrays(gaussians):
    return tuple(jnp.asarray(getattr(gaussians, field)) for field in FIELDS)


def directions(count, number, seed=1):
    generator = np.random.default_rng(seed)
    covariances = generator.normal(size=(number, count, 3, 3)) * 3e-6
    return generator.normal(size=(number, count, 3)) * 3e-3, covariances + covariances.swapaxes(2, 3)


def test_the_crowd_closes_pixels_and_reaches_the_largest_alpha(crowd, views):
    rendering = render(crowd, views, np.float64)
    # no pixel falls to 1e-4, and some come near it: the rule that closes pixels was at work
    assert 1e-4 < rendering.transmittance.min() < 3e-4
    assert (crowd.opacities > 0.99).any()


def test_values_are_those_of_the_oracle(crowd, views):
    expected = np.asarray(oracle(*arrays(crowd), views))
    # float64: rounding over 300 layers
    np.testing.assert_allclose(render(crowd, views, np.float64).image, expected, atol=1e-12)
    # float32: 6e-8 per operation over some 20 layers of a pixel; a rim at the cut of 1/255 would show as 4e-3
    np.testing.assert_allclose(render(crowd, views).image, expected, atol=1e-5)


def test_tangents_are_those_of_the_oracle(crowd, views):
    number = 3
    centres, covariances = directions(300, number)
    layers = render_tangents(crowd, views, centres, covariances, np.float64)
    _, _, opacities, colours = arrays(crowd)
    np.testing.assert_array_equal(layers[..., 0, :], render(crowd, views, np.float64).image)
    single = render_tangents(crowd, views, centres, covariances)
    for j in range(number):
        _, expected = jax.jvp(
            lambda c, s: oracle(c, s, opacities, colours, views),
            arrays(crowd)[:2],
            (jnp.asarray(centres[j]), jnp.asarray(covariances[j])),
        )
        scale = np.abs(expected).max()
        np.testing.assert_allclose(layers[..., 1 + j, :], expected, atol=1e-12 * scale)
        # float32: sums of some 20 terms of both signs
        np.testing.assert_allclose(single[..., 1 + j, :], expected, atol=3e-5 * scale)


def test_gradients_are_those_of_the_oracle(crowd, views):
    rendering = render(crowd, views, np.float64)
    gradient_image = np.random.default_rng(2).normal(size=rendering.image.shape)
    result = render_transpose(rendering, gradient_image)
    single = render_transpose(render(crowd, views), gradient_image)
    expected = jax.grad(
        lambda *gaussians: (oracle(*gaussians, views) * gradient_image).sum(), argnums=(0, 1, 2, 3)
    )(*arrays(crowd))
    for field, value in zip(FIELDS, expected, strict=True):
        value = np.asarray(value)
        if field == "covariances":
            value = (value + value.swapaxes(1, 2)) / 2  # a symmetric matrix has one gradient per pair
        scale = np.abs(value).max()
        np.testing.assert_allclose(getattr(result, field), value, atol=1e-11 * scale)
        # float32: dividing the transmittance back out of up to 20 layers costs two digits
        np.testing.assert_allclose(getattr(single, field), value, atol=1e-4 * scale)


def test_tangents_and_gradients_are_each_others_transpose(crowd, views):
    centres, covariances = directions(300, 8, seed=3)
    layers = render_tangents(crowd, views, centres, covariances, np.float64)
    rendering = render(crowd, views, np.float64)
    gradient_image = np.random.default_rng(4).normal(size=rendering.image.shape)
    result = render_transpose(rendering, gradient_image)
    forward = np.einsum("khwjc,khwc->j", layers[..., 1:, :], gradient_image)
    backward = np.einsum("jki,ki->j", centres, result.centres)
    backward += np.einsum("jkil,kil->j", covariances, result.covariances)
    np.testing.assert_allclose(forward, backward, rtol=1e-10)


def test_tangents_are_central_differences(scattered, views):
    # A step moves rims across pixel centres, where 1/255 appears or vanishes at once. A few Gaussians and a small
    # step make that rare; it leaves single pixels wrong, so nearly all must agree, not all.
    gaussians = scattered(20, seed=5)
    centres, covariances = directions(20, 1, seed=6)
    layers = render_tangents(gaussians, views, centres, covariances, np.float64)
    step = 1e-6

    def moved(sign):
        return render(
            Gaussians(
                gaussians.centres + sign * step * centres[0],
                gaussians.covariances + sign * step * covariances[0],
                gaussians.opacities,
                gaussians.colours,
            ),
            views,
            np.float64,
        ).image

    difference = (moved(1) - moved(-1)) / (2 * step)
    error = np.abs(difference - layers[..., 1, :])
    # differences of values near 1 with rounding 1e-16 over a step of 1e-6
    assert np.mean(error > 1e-8) < 1e-3
    assert np.abs(difference).max() > 0.1


def test_what_cannot_be_seen_is_not_drawn(views):
    camera_from_world = views.camera_from_world[0]
    behind = -camera_from_world[:3, :3].T @ (camera_from_world[:3, 3] + (0, 0, 0.2))
    beside = behind + camera_from_world[:3, :3].T @ np.array([3.0, 0, 0.7])
    centres = np.stack([behind, beside, (0, 0, 0.4)])
    gaussians = Gaussians(
        centres, np.tile(1e-5 * np.eye(3), (3, 1, 1)), np.array([0.9, 0.9, 1e-3]), np.ones((3, 3))
    )
    rendering = render(gaussians, views)
    assert (rendering.transmittance[0] == 1).all()
    assert (rendering.colour[0] == 0).all()
    result = render_transpose(rendering, np.ones_like(rendering.image))
    assert not np.any(result.centres[[0, 2]])


def test_no_gaussians_leave_the_background(views):
    rendering = render(Gaussians(*(np.zeros((0, *shape)) for shape in ((3,), (3, 3), (), (3,)))), views)
    np.testing.assert_array_equal(
        rendering.over((0.1, 0.2, 0.3)), np.broadcast_to(np.float32([0.1, 0.2, 0.3]), (2, 60, 80, 3))
    )


def test_the_number_of_threads_does_not_change_a_bit(crowd, views, monkeypatch):
    centres, covariances = directions(300, 2)

    def everything():
        rendering = render(crowd, views)
        result = render_transpose(rendering, np.ones_like(rendering.image))
        return [
            rendering.image,
            render_tangents(crowd, views, centres, covariances),
            result.centres,
            result.covariances,
        ]

    several = everything()
    monkeypatch.setattr(rasterizers, "core_count", lambda: 7)
    for first, second in zip(several, everything(), strict=True):
        np.testing.assert_array_equal(first, second)


def test_jax_draws_and_differentiates_the_same(crowd, views):
    def loss(*gaussians):
        return jnp.sum(render_jax(*gaussians, views, np.float64) ** 2)

    value, gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)))(*arrays(crowd))
    rendering = render(crowd, views, np.float64)
    result = render_transpose(rendering, 2 * rendering.image)
    np.testing.assert_allclose(value, (rendering.image**2).sum(), rtol=1e-12)
    for field, gradient in zip(FIELDS, gradients, strict=True):
        np.testing.assert_allclose(gradient, getattr(result, field), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("covariances", np.zeros((300, 3)), "covariances has shape"),
        ("opacities", np.zeros(3), "opacities has shape"),
        ("centres", np.full((300, 3), np.nan), "centres .* not finite"),
    ],
)
def test_bad_gaussians_are_named(crowd, field, value, words):
    with pytest.raises(SplatShapeError, match=words):
        Gaussians(**{**{name: getattr(crowd, name) for name in FIELDS}, field: value})


def test_tangents_of_the_wrong_shape_are_named(crowd, views):
    with pytest.raises(SplatShapeError, match="tangents_covariances"):
        render_tangents(crowd, views, np.zeros((2, 300, 3)), np.zeros((1, 300, 3, 3)))
