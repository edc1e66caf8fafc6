"""What the estimator knows of itself, on recordings that a small twin makes of itself: see synthetic.py.

Each study is a function that returns its figures; study_commands.py runs them and writes their pages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from realsimloop_ros.estimation.updates import EstimatorSettings, MaterialUpdate, UpdateStatus
from realsimloop_ros.evaluation.synthetic import (
    POISSON_RATIO,
    Recording,
    SyntheticTwin,
    estimate,
    estimator_of,
    lively,
    record,
    slow,
    small_twin,
    space_of,
)
from realsimloop_ros.jobs import map_jobs

TRUE_MODULUS = 240e3  # Pa
DEVIATION = 5e-5  # m, of a marker's coordinate
# what the estimator is told where its model is right and its material constant, and as it is shipped
RIGHT = EstimatorSettings(window=8, ticks_per_segment=6, forgetting=1.0, model_deviation={})
SHIPPED = EstimatorSettings(window=8, ticks_per_segment=6)
INTERVAL = float(norm.ppf(0.975))


@dataclass(frozen=True, eq=False)
class Coverage:
    """errors, deviations: (s, 2) of log E and nu after the last frame of each of s seeds."""

    errors: NDArray[np.float64]
    deviations: NDArray[np.float64]

    def within(self, level: float = 0.95) -> NDArray[np.float64]:
        """Share (2,) of seeds whose truth lies in the interval that is stated to hold it with `level`."""
        reach = norm.ppf(0.5 + 0.5 * level) * self.deviations
        return np.asarray((np.abs(self.errors) <= reach).mean(axis=0))


def last_update(
    twin: SyntheticTwin, recording: Recording, settings: EstimatorSettings, deviation: float, seed: int
) -> MaterialUpdate:
    """From a start drawn from the prior about the truth, as the prior itself says: log 2 of E, 0.03 of nu."""
    random = np.random.default_rng(10_000 + seed)
    start = TRUE_MODULUS * float(np.exp(np.log(2.0) * random.standard_normal()))
    ratio = float(np.clip(POISSON_RATIO + 0.03 * random.standard_normal(), 0.3, 0.49))
    estimator = estimator_of(twin, space_of(twin, [start], ratio), settings, deviation)
    return list(estimate(estimator, recording.noisy(deviation, seed)))[-1]


@cache
def _constant(frames: int) -> tuple[SyntheticTwin, Recording]:
    twin = small_twin()
    return twin, record(twin, lambda _: [TRUE_MODULUS], lively, frames)


def _covered(seed: int, settings: EstimatorSettings, frames: int) -> tuple[list[float], list[float]]:
    twin, recording = _constant(frames)
    update = last_update(twin, recording, settings, DEVIATION, seed)
    errors = [
        float(np.log(update.material.youngs_modulus[0] / TRUE_MODULUS)),
        float(update.material.poisson_ratio[0] - POISSON_RATIO),
    ]
    return errors, np.sqrt(np.diag(update.covariance)).tolist()


def coverage(seeds: int, settings: EstimatorSettings, *, frames: int = 30, workers: int = 1) -> Coverage:
    """How often the truth lies in the stated interval, over seeds of noise and start."""
    work = partial(_covered, settings=settings, frames=frames)
    found = map_jobs(work, range(seeds), label="seeds", workers=workers)
    return Coverage(np.array([errors for errors, _ in found]), np.array([told for _, told in found]))


@dataclass(frozen=True)
class StartRow:
    """factor: of the start, in parts of the truth; error: of E at the end, in parts; largest: of log E on the way
    after the first frame.
    """

    factor: float
    error: float
    largest: float


def starts(seeds: int = 20, *, frames: int = 30) -> list[StartRow]:
    """Starts between a third and three times the truth, each with noise of its own."""
    twin, recording = _constant(frames)
    rows = []
    for seed, factor in enumerate(np.geomspace(1.0 / 3.0, 3.0, seeds).tolist()):
        space = space_of(twin, [factor * TRUE_MODULUS], 0.43, factor=3.0)
        updates = list(estimate(estimator_of(twin, space, SHIPPED, DEVIATION), recording.noisy(DEVIATION, seed)))
        moduli = np.array([update.material.youngs_modulus[0] for update in updates]) / TRUE_MODULUS
        rows.append(StartRow(factor, float(moduli[-1] - 1.0), float(np.abs(np.log(moduli)).max())))
    return rows


@dataclass(frozen=True)
class ZoneRow:
    """One zone: its true and its estimated modulus, Pa, and the stated deviation of log E."""

    zone: str
    true: float
    estimated: float
    deviation: float


def zones(*, frames: int = 60, seed: int = 0) -> list[ZoneRow]:
    """A stiff and a soft half, both from the same wrong start."""
    twin, true = small_twin(zones=2), [0.74e6, 0.24e6]
    recording = record(twin, lambda _: true, lively, frames).noisy(DEVIATION, seed)
    space = space_of(twin, [0.48e6, 0.48e6], None)
    last = list(estimate(estimator_of(twin, space, SHIPPED, DEVIATION), recording))[-1]
    deviations = np.sqrt(np.diag(last.covariance))
    return [
        ZoneRow(name, modulus, float(last.material.youngs_modulus[k]), float(deviations[k]))
        for k, (name, modulus) in enumerate(zip(twin.body.zone_names, true, strict=True))
    ]


@dataclass(frozen=True, eq=False)
class Drift:
    """seconds (u,); true, estimated: (u,) Pa; lag: s by which the estimate follows, the mean over the ramp's
    second half, when it no longer rests on the start; of a step, until half of it is made.
    """

    seconds: NDArray[np.float64]
    true: NDArray[np.float64]
    estimated: NDArray[np.float64]
    lag: float


def drift(
    *, forgetting: float = SHIPPED.forgetting, seconds: float = 20.0, seed: int = 0, stepwise: bool = False
) -> Drift:
    """Young's modulus doubles over `seconds` as a ramp in log E, or at once half way."""
    twin = small_twin()

    def modulus(time: float) -> float:
        share = float(time >= 0.5 * seconds) if stepwise else min(time / seconds, 1.0)
        return TRUE_MODULUS * 2.0**share

    recording = record(twin, lambda time: [modulus(time)], lively, round(10 * seconds)).noisy(DEVIATION, seed)
    space = space_of(twin, [TRUE_MODULUS], POISSON_RATIO)
    settings = replace(SHIPPED, forgetting=forgetting)
    updates = list(estimate(estimator_of(twin, space, settings, DEVIATION), recording))
    at = np.array([(update.stamp_ns - recording.stamps_ns[0]) * 1e-9 for update in updates])
    estimated = np.array([float(update.material.youngs_modulus[0]) for update in updates])
    true = np.array([modulus(time) for time in at])
    late = at > 0.5 * seconds
    if stepwise:
        made = late & (estimated >= TRUE_MODULUS * 2.0**0.5)
        lag = float(at[made][0] - 0.5 * seconds) if made.any() else np.inf
    else:
        lag = float((at - seconds * np.log2(estimated / TRUE_MODULUS))[late].mean())
    return Drift(at, true, estimated, lag)


@dataclass(frozen=True)
class Unobservable:
    """Whether E is published as unknown, by how much it moved from its prior (parts), whether nu is known, and its
    error at the start and at the end.
    """

    modulus_unknown: bool
    modulus_moved: float
    ratio_known: bool
    ratio_error_before: float
    ratio_error_after: float
    status: UpdateStatus


def unobservable(*, frames: int = 80, seed: int = 0) -> Unobservable:
    """A slow pull without gravity and wrenches: no frame can tell E."""
    twin = small_twin(weight=False)
    recording = record(twin, lambda _: [TRUE_MODULUS], slow, frames).noisy(DEVIATION, seed)
    start, ratio = 2.0 * TRUE_MODULUS, 0.40
    space = space_of(twin, [start], ratio)
    last = list(estimate(estimator_of(twin, space, RIGHT, DEVIATION), recording))[-1]
    variances = np.diag(last.covariance)
    return Unobservable(
        bool(np.isinf(variances[0])),
        float(last.material.youngs_modulus[0] / start - 1.0),
        bool(np.isfinite(variances[1])),
        ratio - POISSON_RATIO,
        float(last.material.poisson_ratio[0] - POISSON_RATIO),
        last.status,
    )


@dataclass(frozen=True)
class AblationRow:
    """One setting: rms errors of log E and nu over seeds, mean stated deviations, and what an update took."""

    factor: str
    value: str
    modulus_error: float
    modulus_deviation: float
    ratio_error: float
    ratio_deviation: float
    update_ms: float


def ablation(seeds: int = 5, *, frames: int = 30) -> list[AblationRow]:
    """Each factor about the usual setting, from starts drawn from the prior."""
    usual, recording = _constant(frames)
    rows = []

    def row(factor: str, value: object, settings: EstimatorSettings, noise: float = DEVIATION) -> None:
        found = [last_update(usual, recording, settings, noise, seed) for seed in range(seeds)]
        errors = np.array(
            [
                [np.log(u.material.youngs_modulus[0] / TRUE_MODULUS), u.material.poisson_ratio[0] - POISSON_RATIO]
                for u in found
            ]
        )
        rms = np.sqrt((errors**2).mean(axis=0))
        told = np.mean([np.sqrt(np.diag(u.covariance)) for u in found], axis=0)
        took = 1e3 * float(np.median([u.solve_time_s for u in found]))
        rows.append(
            AblationRow(factor, str(value), float(rms[0]), float(told[0]), float(rms[1]), float(told[1]), took)
        )

    for window in (1, 2, 4, 8, 16):
        row("window (segments)", window, replace(SHIPPED, window=window))
    for noise in (0.5e-4, 1e-4, 2e-4, 4e-4, 8e-4):
        row("noise of a marker (mm)", 1e3 * noise, SHIPPED, noise)
    for forgetting in (0.8, 0.9, SHIPPED.forgetting, 0.98, 1.0):
        row("forgetting (per segment)", forgetting, replace(SHIPPED, forgetting=forgetting))
    row("online and offline", "online, window 8", RIGHT)
    row("online and offline", "all frames in the window", replace(RIGHT, window=frames + 1))
    return rows
