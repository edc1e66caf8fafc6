"""Figures of merit. The same function is applied to what was measured and to what was predicted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

FREE_OSCILLATION_SECONDS = 2.0
SETTLED_SECONDS = 1.0


@dataclass(frozen=True)
class Sag:
    """How far a marker sinks between its held pose and where it settles.

    sag: m along gravity; displacement: m, length of the whole displacement; ripple: m, standard deviation of
    the height in the settled stretch, which tells how settled it is.
    """

    sag: float
    displacement: float
    ripple: float


@dataclass(frozen=True)
class Oscillation:
    """A damped sinusoid about a drifting mean.

    frequency: Hz, as observed (damped); decay_rate: 1/s; amplitude: m at the start of the fit; residual: m, root
    mean square of what the fit leaves.
    """

    frequency: float
    decay_rate: float
    amplitude: float
    residual: float


@dataclass(frozen=True)
class ErrorSummary:
    """Distances between reality and twin, m, and their mean in per cent of the body's size."""

    mean: float
    p95: float
    maximum: float
    percent_of_size: float


@dataclass(frozen=True)
class TimingSummary:
    """Time of one stage, s. count: samples; None where only the percentiles are known."""

    p50: float
    p99: float
    count: int | None


def settled_sag(
    seconds: NDArray[np.float64],
    positions: NDArray[np.float64],
    *,
    held: NDArray[np.bool_],
    up: NDArray[np.float64],
    settled_seconds: float = SETTLED_SECONDS,
) -> Sag | None:
    """Sag of a marker: its mean over the held frames less its mean over the last `settled_seconds`.

    seconds: (t,); positions: (t, 3), m; held: (t,) frames of the held pose; up: (3,) unit vector against
    gravity. The settled stretch is at most the last quarter of what follows the held pose, so that a short
    capture does not average its fall. None where either stretch has no finite position.
    """
    finite = np.isfinite(positions).all(axis=1)
    if not (held & finite).any():
        return None
    after = seconds > seconds[held][-1]
    if not after.any():
        return None
    length = min(settled_seconds, (seconds[-1] - seconds[held][-1]) / 4.0)
    settled = after & (seconds >= seconds[-1] - length) & finite
    if not settled.any():
        return None
    change = positions[settled].mean(axis=0) - positions[held & finite].mean(axis=0)
    return Sag(
        sag=float(-change @ up),
        displacement=float(np.linalg.norm(change)),
        ripple=float((positions[settled] @ up).std()),
    )


def free_oscillation(
    seconds: NDArray[np.float64],
    height: NDArray[np.float64],
    *,
    start: float,
    duration: float = FREE_OSCILLATION_SECONDS,
) -> Oscillation | None:
    """Frequency and decay of height (t,), m, in [start, start + duration], seconds (t,).

    Fits, by least squares,  m + c exp(-g t) + exp(-d t) (a cos 2 pi f t + b sin 2 pi f t):  a damped sinusoid
    about a mean that may creep to its final value, since a settling mean would shift the zero crossings of a
    viscoelastic body. Linear in m, c, a, b (solved exactly), searched in f, d, g from the peak of the
    spectrum. `start` is the first turning point after the release, where the hand no longer touches the body.

    None where there are fewer than 16 samples, less than one and a half periods, a frequency above a third of
    the sampling rate, or an amplitude below three times the residual.
    """
    chosen = (seconds >= start - 1e-9) & (seconds <= start + duration + 1e-9) & np.isfinite(height)
    if chosen.sum() < 16:
        return None
    t, y = seconds[chosen] - seconds[chosen][0], height[chosen]
    span = float(t[-1])
    sampling = (len(t) - 1) / span
    scale = float(np.ptp(y))
    if scale == 0.0:
        return None
    y = y / scale

    def basis(shape: NDArray[np.float64]) -> NDArray[np.float64]:
        frequency, decay, creep = shape
        swing = np.exp(-decay * t)
        angle = 2.0 * np.pi * frequency * t
        drift = np.exp(-creep * t)
        return np.stack([np.ones_like(t), drift, swing * np.cos(angle), swing * np.sin(angle)], axis=1)

    def residual(shape: NDArray[np.float64]) -> NDArray[np.float64]:
        matrix = basis(shape)
        return matrix @ np.linalg.lstsq(matrix, y, rcond=1e-10)[0] - y

    lower = np.array([0.5 / span, -0.5 / span, 0.25 / span])
    upper = np.array([sampling / 2.0, 20.0 * sampling / len(t) + 50.0, 20.0 / span])
    best = None
    for frequency in _spectral_peaks(t, y):
        guess = np.clip([frequency, 2.0 / span, 2.0 / span], lower * 1.01, upper * 0.99)
        guess[1] = max(guess[1], 0.1 / span)
        fit = least_squares(residual, guess, bounds=(lower, upper), x_scale=np.array([1.0, 1.0, 1.0]) / span)
        if best is None or fit.cost < best.cost:
            best = fit
    if best is None:
        return None
    frequency, decay, _ = (float(value) for value in best.x)
    weights = np.linalg.lstsq(basis(best.x), y, rcond=1e-10)[0]
    amplitude = float(np.hypot(weights[2], weights[3])) * scale
    rms = float(np.sqrt(np.mean(best.fun**2))) * scale
    if frequency * span < 1.5 or frequency > sampling / 3.0 or amplitude < 3.0 * rms:
        return None
    return Oscillation(frequency, decay, amplitude, rms)


def _spectral_peaks(t: NDArray[np.float64], y: NDArray[np.float64], count: int = 3) -> list[float]:
    even = np.linspace(t[0], t[-1], len(t))
    values = np.interp(even, t, y)
    values -= np.polyval(np.polyfit(even, values, 1), even)
    padded = 8 * len(values)
    spectrum = np.abs(np.fft.rfft(values * np.hanning(len(values)), padded))
    frequencies = np.fft.rfftfreq(padded, even[1] - even[0])
    inner = np.flatnonzero((spectrum[1:-1] >= spectrum[:-2]) & (spectrum[1:-1] > spectrum[2:])) + 1
    highest = inner[np.argsort(spectrum[inner])[::-1][:count]]
    return [float(frequencies[k]) for k in highest]


def summarize_errors(point_errors: NDArray[np.float64], size: float) -> ErrorSummary | None:
    """Mean, 95th percentile and maximum of all finite distances (t, q), m. size: of the body, m.

    Every point of every frame counts once. None where nothing is finite.
    """
    finite = point_errors[np.isfinite(point_errors)].astype(np.float64)
    if finite.size == 0:
        return None
    mean = float(finite.mean())
    return ErrorSummary(mean, float(np.percentile(finite, 95.0)), float(finite.max()), 100.0 * mean / size)


def summarize_timing(samples: NDArray[np.float64]) -> TimingSummary | None:
    """Median and 99th percentile of durations (s,). None without samples."""
    finite = samples[np.isfinite(samples)]
    if finite.size == 0:
        return None
    return TimingSummary(float(np.percentile(finite, 50.0)), float(np.percentile(finite, 99.0)), int(finite.size))
