"""What the virtual cell's sensors make of the truth: noise, bias, exposure, jitter and delay, all from a seed.

Every measurement draws from a generator of its own, made of the seed, the sensor and the measurement's number. So
it does not depend on what else was measured, or in which order.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from scipy.spatial.transform import Rotation

from realsimloop_ros.body.poses import make_pose

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]

# jitter beyond this many standard deviations does not happen: exposures keep their order
_JITTER_LIMIT = 3.0


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CameraSensorDescription(_Strict):
    """A camera's imperfections; light is in units of the brightest value an image can hold.

    shot_noise: standard deviation of light of value one, growing with its root; read_noise: standard deviation in
    the dark; exposure_change: relative amplitude of a slow change of gain, with exposure_period s, another phase
    per camera; gamma: light to the power 1/gamma is stored. jitter: standard deviation of the time of exposure
    about the camera's schedule, s; delay: by how much the stamp is later than the exposure, s.
    """

    shot_noise: NonNegative
    read_noise: NonNegative
    exposure_change: Share
    exposure_period: Positive
    gamma: Positive
    jitter: Annotated[float, Field(ge=0, le=0.01)]
    delay: Annotated[float, Field(ge=0, le=0.5)]


class ArmSensorDescription(_Strict):
    """What an arm reports, at `rate` Hz.

    position_noise: m; rotation_noise: rad; force_noise: N, moment_noise: N m; force_bias, moment_bias: standard
    deviations from which each arm's constant bias is drawn. Noise is per axis.
    """

    rate: Annotated[float, Field(gt=0, le=1000)]
    position_noise: NonNegative
    rotation_noise: NonNegative
    force_noise: NonNegative
    moment_noise: NonNegative
    force_bias: NonNegative
    moment_bias: NonNegative


class MarkerSensorDescription(_Strict):
    """Motion capture of the body's markers: rate in Hz, noise in m per axis, share of markers lost per frame."""

    rate: Annotated[float, Field(gt=0, le=1000)]
    noise: NonNegative
    lost: Share


@dataclass(frozen=True)
class Exposure:
    """When an image is taken and what its stamp will say, ns."""

    time_ns: int
    stamp_ns: int


def generator_for(seed: int, sensor: str, number: int = 0) -> np.random.Generator:
    """The random numbers of one measurement of one sensor."""
    return np.random.default_rng([seed, zlib.crc32(sensor.encode()), number])


class CameraSensor:
    """Turns light into images. name: unique; rate: Hz."""

    def __init__(self, description: CameraSensorDescription, name: str, rate: float, seed: int) -> None:
        self._description = description
        self._name = name
        self._period = 1.0 / rate
        self._seed = seed
        self._phase = generator_for(seed, f"{name}/phase").uniform(0.0, 2.0 * np.pi)

    def exposure(self, number: int) -> Exposure:
        """Of image `number`, from 0; the first is due half a period after the start."""
        jitter = generator_for(self._seed, f"{self._name}/jitter", number).normal()
        jitter = float(np.clip(jitter, -_JITTER_LIMIT, _JITTER_LIMIT)) * self._description.jitter
        time = max((number + 0.5) * self._period + jitter, 0.0)
        return Exposure(round(time * 1e9), round((time + self._description.delay) * 1e9))

    def gain(self, time: float) -> float:
        """Relative exposure at `time` s."""
        turn = 2.0 * np.pi * time / self._description.exposure_period + self._phase
        return 1.0 + self._description.exposure_change * float(np.sin(turn))

    def image(self, number: int, time: float, radiance: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Image `number` (H, W, 3), taken at `time` s of radiance (H, W, 3), linear RGB."""
        generator = generator_for(self._seed, f"{self._name}/noise", number)
        light = radiance * np.float32(self.gain(time))
        variance = self._description.shot_noise**2 * light + self._description.read_noise**2
        light = light + np.sqrt(variance) * generator.standard_normal(light.shape, dtype=np.float32)
        stored = np.clip(light, 0.0, 1.0) ** np.float32(1.0 / self._description.gamma)
        return np.rint(255.0 * stored).astype(np.uint8)


class ArmSensor:
    """Turns an arm's tool pose and wrench into what the arm reports. name: unique."""

    def __init__(self, description: ArmSensorDescription, name: str, seed: int) -> None:
        self._description = description
        self._name = name
        self._seed = seed
        scale = np.repeat([description.force_bias, description.moment_bias], 3)
        self.wrench_bias: NDArray[np.float64] = scale * generator_for(seed, f"{name}/bias").normal(size=6)

    def pose(self, number: int, pose: NDArray[np.float64]) -> NDArray[np.float64]:
        """Reported tool pose (7,) of measurement `number`."""
        noise = generator_for(self._seed, f"{self._name}/pose", number).normal(size=6)
        turn = Rotation.from_rotvec(self._description.rotation_noise * noise[3:])
        position = pose[:3] + self._description.position_noise * noise[:3]
        return make_pose(position, turn * Rotation.from_quat(pose[3:]))

    def wrench(self, number: int, wrench: NDArray[np.float64]) -> NDArray[np.float64]:
        """Reported force and moment (6,), N and N m, of measurement `number`."""
        noise = generator_for(self._seed, f"{self._name}/wrench", number).normal(size=6)
        scale = np.repeat([self._description.force_noise, self._description.moment_noise], 3)
        return wrench + self.wrench_bias + scale * noise


class MarkerSensor:
    """Turns marker positions into what a motion capture system reports."""

    def __init__(self, description: MarkerSensorDescription, seed: int) -> None:
        self._description = description
        self._seed = seed

    def positions(self, number: int, positions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Reported positions (k, 3), m, of frame `number`; rows of lost markers are NaN."""
        generator = generator_for(self._seed, "markers", number)
        reported = positions + self._description.noise * generator.normal(size=positions.shape)
        reported[generator.uniform(size=len(positions)) < self._description.lost] = np.nan
        return reported
