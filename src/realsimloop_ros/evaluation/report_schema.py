"""The schema of report.json. `docs/report_schema.md` describes it for readers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

FORMAT = "realsimloop-report-1"


class _Part(BaseModel):
    # a number that is not finite is null in the file, never NaN or Infinity, which are no JSON
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ParameterReport(_Part):
    """A material parameter at the end of the run, in SI units.

    std: null where the parameter was held or the data do not tell it; reference: what it is compared with;
    relative_error: (estimate - reference) / reference.
    """

    estimate: float | None
    std: float | None
    reference: float | None
    relative_error: float | None


class ZoneReport(_Part):
    """One zone. reference_how: how the reference values were obtained; viscosity, density: null in a report that
    does not tell them."""

    youngs_modulus: ParameterReport
    poisson_ratio: ParameterReport
    reference_how: str | None
    viscosity: ParameterReport | None = None
    density: ParameterReport | None = None


class ReconstructionReport(_Part):
    """Distances between twin and reality over all points and frames in which both are known.

    percent_of_size: mean in per cent of the body's longest edge; points: what the points are; frames:
    compared.
    """

    mean_mm: float | None
    p95_mm: float | None
    max_mm: float | None
    percent_of_size: float | None
    points: str | None
    frames: int


class MarkerReport(_Part):
    """One marker.

    sag: drop along gravity from the held pose to the settled stretch; displacement: the length of the whole way
    between them; frequency and decay of the free oscillation in the two seconds after the release, fitted from the
    first turning point on; error: distance between measured and predicted position.
    """

    sag_measured_mm: float | None
    sag_predicted_mm: float | None
    displacement_measured_mm: float | None
    displacement_predicted_mm: float | None
    frequency_measured_hz: float | None
    frequency_predicted_hz: float | None
    decay_measured_per_s: float | None
    decay_predicted_per_s: float | None
    error_mean_mm: float | None


class ExperimentReport(_Part):
    """One of the recordings that were evaluated together."""

    markers: dict[str, MarkerReport]
    reconstruction: ReconstructionReport


class TimingReport(_Part):
    """Wall-clock time of one stage. count: null where only the percentiles are known."""

    p50_ms: float | None
    p99_ms: float | None
    count: int | None


class ProvenanceReport(_Part):
    """Where the run came from."""

    command: str
    started: str
    versions: dict[str, str]
    seed: int | None
    body_hashes: dict[str, str]


class Report(_Part):
    """report.json.

    markers: by marker where there is one experiment, by EXPERIMENT/MARKER where there are more; updates: how many
    updates of theta ended with each status.
    """

    format: str
    title: str
    theta_source: str
    theta: dict[str, ZoneReport]
    reconstruction: ReconstructionReport
    markers: dict[str, MarkerReport]
    experiments: dict[str, ExperimentReport]
    timing: dict[str, TimingReport]
    real_time_factor: float | None
    drops: dict[str, int]
    updates: dict[str, int]
    notes: list[str]
    provenance: ProvenanceReport
