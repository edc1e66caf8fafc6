"""What sensors report has the described statistics, and depends on nothing but the seed and the number."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from realsimloop_ros.cell.sensors import (
    ArmSensor,
    ArmSensorDescription,
    CameraSensor,
    CameraSensorDescription,
    MarkerSensor,
    MarkerSensorDescription,
)

CAMERA = CameraSensorDescription(
    shot_noise=0.02,
    read_noise=0.005,
    exposure_change=0.1,
    exposure_period=5.0,
    gamma=1.0,
    jitter=0.001,
    delay=0.003,
)
ARM = ArmSensorDescription(
    rate=125.0,
    position_noise=1e-4,
    rotation_noise=1e-3,
    force_noise=0.05,
    moment_noise=0.002,
    force_bias=0.3,
    moment_bias=0.01,
)
POSE = np.array([0.1, 0.2, 0.3, *Rotation.from_rotvec([0.4, -0.2, 0.9]).as_quat()])


@pytest.mark.parametrize("light", [0.1, 0.3, 0.6])
def test_pixel_noise_grows_with_the_root_of_light(light):
    still = CAMERA.model_copy(update={"exposure_change": 0.0})
    sensor = CameraSensor(still, "camera_0", 10.0, seed=1)
    # light this far from both ends of the range that no noise is cut off
    radiance = np.full((120, 160, 3), light, np.float32)
    image = sensor.image(0, 0.0, radiance) / 255.0
    expected = np.sqrt(still.shot_noise**2 * light + still.read_noise**2 + 1.0 / (12 * 255**2))
    # 57,600 samples: the mean is off by sigma / 240, the deviation by sigma / 339; four of each
    assert abs(image.mean() - light) < 4 * expected / 240
    assert abs(image.std() - expected) < 4 * expected / 339


def test_noise_is_independent_between_pixels_and_images():
    sensor = CameraSensor(CAMERA, "camera_0", 10.0, seed=1)
    radiance = np.full((120, 160, 3), 0.4, np.float32)
    first, second = (sensor.image(k, 0.0, radiance).astype(float) for k in (0, 1))
    for other in (second, np.roll(first, 1, axis=1), np.roll(first, 1, axis=2)):
        # correlation of 57,600 independent pairs: 1/240 by chance, four of it allowed
        assert abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 4 / 240


def test_exposure_changes_slowly_and_differently_per_camera():
    first, second = (CameraSensor(CAMERA, name, 10.0, seed=1) for name in ("camera_0", "camera_1"))
    times = np.linspace(0.0, 5.0, 101)
    gains = np.array([[sensor.gain(t) for t in times] for sensor in (first, second)])
    np.testing.assert_allclose(gains.max(axis=1), 1.1, atol=1e-3)  # a hundredth of the period from the peak
    np.testing.assert_allclose(gains.min(axis=1), 0.9, atol=1e-3)
    assert np.abs(gains[0] - gains[1]).max() > 0.01


def test_gamma_is_applied_after_the_noise():
    sensor = CameraSensor(
        CAMERA.model_copy(update={"gamma": 2.2, "shot_noise": 0.0, "read_noise": 0.0, "exposure_change": 0.0}),
        "camera_0",
        10.0,
        seed=1,
    )
    image = sensor.image(0, 0.0, np.array([[[0.0, 0.2, 1.5]]], np.float32))
    np.testing.assert_array_equal(image, [[[0, round(255 * 0.2 ** (1 / 2.2)), 255]]])


def test_images_are_taken_about_their_schedule_and_stamped_late_by_the_delay():
    sensor = CameraSensor(CAMERA, "camera_0", 10.0, seed=1)
    exposures = [sensor.exposure(k) for k in range(2000)]
    offsets = np.array([e.time_ns * 1e-9 - (k + 0.5) * 0.1 for k, e in enumerate(exposures)])
    # 2,000 samples: standard error of the mean sigma / 45, of the deviation sigma / 63; four of each, and the cut
    # at three sigma takes 1.4 % of the deviation
    assert abs(offsets.mean()) < 4 * CAMERA.jitter / 45
    assert abs(offsets.std() - CAMERA.jitter) < (4 / 63 + 0.014) * CAMERA.jitter
    assert np.abs(offsets).max() <= 3 * CAMERA.jitter + 1e-9
    delays = np.array([e.stamp_ns - e.time_ns for e in exposures])
    assert np.abs(delays - 3_000_000).max() <= 1  # rounding to ns


def test_pose_noise_is_small_and_even_in_all_directions():
    sensor = ArmSensor(ARM, "left", seed=1)
    reported = np.array([sensor.pose(k, POSE) for k in range(2000)])
    shift = reported[:, :3] - POSE[:3]
    turn = (Rotation.from_quat(reported[:, 3:]) * Rotation.from_quat(POSE[3:]).inv()).as_rotvec()
    for sample, sigma in ((shift, ARM.position_noise), (turn, ARM.rotation_noise)):
        # 2,000 samples per axis: see above
        assert np.abs(sample.mean(axis=0)).max() < 4 * sigma / 45
        assert np.abs(sample.std(axis=0) - sigma).max() < 4 * sigma / 63


def test_wrench_has_noise_about_a_constant_bias_of_its_own():
    wrench = np.array([1.0, -2.0, 3.0, 0.1, 0.2, -0.3])
    left, right = ArmSensor(ARM, "left", seed=1), ArmSensor(ARM, "right", seed=1)
    reported = np.array([left.wrench(k, wrench) for k in range(2000)])
    sigma = np.repeat([ARM.force_noise, ARM.moment_noise], 3)
    assert (np.abs(reported.mean(axis=0) - wrench - left.wrench_bias) < 4 * sigma / 45).all()
    assert (np.abs(reported.std(axis=0) - sigma) < 4 * sigma / 63).all()
    assert not np.array_equal(left.wrench_bias, right.wrench_bias)
    scale = np.repeat([ARM.force_bias, ARM.moment_bias], 3)
    biases = np.array([ArmSensor(ARM, "left", seed=s).wrench_bias for s in range(500)]) / scale
    # 3,000 standard normal numbers
    assert abs(biases.std() - 1.0) < 4 / np.sqrt(2 * 3000)


def test_markers_are_noisy_and_some_are_lost():
    sensor = MarkerSensor(MarkerSensorDescription(rate=100.0, noise=2e-4, lost=0.1), seed=1)
    truth = np.arange(12.0).reshape(4, 3)
    reported = np.array([sensor.positions(k, truth) for k in range(1500)])
    lost = np.isnan(reported).all(axis=-1)
    assert (np.isnan(reported).any(axis=-1) == lost).all()
    # 6,000 draws of a tenth: standard error 0.0039
    assert abs(lost.mean() - 0.1) < 4 * 0.0039
    error = (reported - truth)[~lost]
    assert abs(error.std() - 2e-4) < 4 * 2e-4 / np.sqrt(2 * error.size)


def test_measurements_depend_on_seed_sensor_and_number_only():
    radiance = np.full((4, 5, 3), 0.4, np.float32)
    sensor = CameraSensor(CAMERA, "camera_0", 10.0, seed=1)
    later = sensor.image(7, 0.7, radiance)
    sensor.image(3, 0.3, radiance)
    assert np.array_equal(sensor.image(7, 0.7, radiance), later)
    assert np.array_equal(CameraSensor(CAMERA, "camera_0", 10.0, seed=1).image(7, 0.7, radiance), later)
    assert not np.array_equal(CameraSensor(CAMERA, "camera_0", 10.0, seed=2).image(7, 0.7, radiance), later)
    assert np.array_equal(ArmSensor(ARM, "left", 1).pose(5, POSE), ArmSensor(ARM, "left", 1).pose(5, POSE))
    assert not np.array_equal(ArmSensor(ARM, "left", 1).pose(5, POSE), ArmSensor(ARM, "right", 1).pose(5, POSE))
