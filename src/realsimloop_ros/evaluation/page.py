"""report.html: one page that needs nothing beside itself."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

import cv2
import numpy as np
from numpy.typing import NDArray

from realsimloop_ros.evaluation.figures import (
    error_figure,
    reconstruction_figure,
    theta_figure,
    tracks_figure,
)
from realsimloop_ros.evaluation.page_style import STYLE
from realsimloop_ros.evaluation.quantities import SHOWN, ShownQuantity, band
from realsimloop_ros.evaluation.record import Picture, RunRecord
from realsimloop_ros.evaluation.report_schema import MarkerReport, ParameterReport, Report

_NONE = "–"


def render_page(record: RunRecord, report: Report) -> str:
    """The whole page: figures as embedded SVG, pictures as embedded JPEG, no script, no outside resource."""
    sections = [
        _headline(record, report),
        _theta_section(record, report),
        _reconstruction_section(record, report),
        _marker_sections(record, report),
        _pictures(record, "camera", "What the cameras see, and the twin over it"),
        _pictures(record, "stress", "Stress inside the body"),
        _pictures(record, "other", "More pictures"),
        _timing_section(report),
        _provenance_section(record, report),
    ]
    body = "\n".join(section for section in sections if section)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def number(value: float | None, digits: int = 3, unit: str = "") -> str:
    """A number with so many significant digits, or a dash where there is none."""
    if value is None:
        return _NONE
    text = f"{value:#.{digits}g}".removesuffix(".")
    if "e" in text and 1.0 <= abs(value) < 1e9:
        text = f"{value:,.0f}"
    return f"{text} {unit}".strip()


def percent(value: float | None, digits: int = 1) -> str:
    """A signed percentage of a fraction."""
    if value is None:
        return _NONE
    text = f"{value * 100.0:+.{digits}f}"
    sign = "" if float(text) == 0.0 else text[0].replace("-", "−")
    return f"{sign}{text[1:]} %"


def relative(predicted: float | None, measured: float | None) -> float | None:
    """(predicted - measured) / measured."""
    return None if predicted is None or not measured else (predicted - measured) / measured


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: int = 1) -> str:
    """An HTML table; the first columns hold text, the others numbers. Cells are taken as HTML."""
    head = "".join(
        f"<th{'' if k < text_columns else ' class=number'}>{escape(cell)}</th>" for k, cell in enumerate(header)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{'' if k < text_columns else ' class=number'}>{cell}</td>" for k, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _section(title: str, *parts: str) -> str:
    content = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>" if content else ""


def _svg(image: bytes, label: str) -> str:
    data = base64.b64encode(image).decode("ascii")
    # as an image, not inline: ids inside one figure never meet those of another
    return f'<img class="figure" alt="{escape(label)}" src="data:image/svg+xml;base64,{data}">'


def _card(label: str, value: str, detail: str) -> str:
    return (
        f'<div class="card"><div class="label">{escape(label)}</div><div class="value">{value}</div>'
        f'<div class="detail">{detail}</div></div>'
    )


def _headline(record: RunRecord, report: Report) -> str:
    cards = []
    theta = record.theta
    for k, (zone, entry) in enumerate(report.theta.items()):
        for quantity in SHOWN:
            parameter, deviations = getattr(entry, quantity.name), getattr(theta, f"{quantity.name}_std")
            if parameter is None or deviations is None:
                continue
            told = _told(deviations[:, k])
            if told != "held" or quantity.name == "youngs_modulus":
                cards.append(_card(f"{quantity.label}, {zone}", *_parameter_card(parameter, quantity, told)))
    reconstruction = report.reconstruction
    if reconstruction.mean_mm is not None:
        cards.append(
            _card(
                "Twin to reality, mean",
                number(reconstruction.mean_mm, 3, "mm"),
                f"{number(reconstruction.percent_of_size, 2)} % of the body, "
                f"95 % below {number(reconstruction.p95_mm, 3)} mm",
            )
        )
    for label, worst in (("Settled sag", _worst(report, "sag")), ("Frequency", _worst(report, "frequency"))):
        if worst is not None:
            cards.append(_card(f"{label}, worst marker", percent(worst[1]), escape(worst[0])))
    if report.real_time_factor is not None:
        cards.append(
            _card("Real-time factor", number(report.real_time_factor, 3), "simulated over wall-clock time")
        )
    source = {"prior": "theta at its prior", "estimate": "theta estimated"}.get(
        report.theta_source, f"theta from {report.theta_source}"
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    return (
        f'<header><div class="kicker">realsimloop run report</div><h1>{escape(report.title)}</h1>'
        f'<p class="meta">{escape(source)} · {escape(record.provenance.started)}</p></header>\n'
        f'<div class="cards">{"".join(cards)}</div>' + (f'<ul class="notes">{notes}</ul>' if notes else "")
    )


def _told(deviations: NDArray[np.float64]) -> str:
    """What the last deviation says: a 95 % band, that the data do not tell the parameter, or that it was held."""
    if len(deviations) == 0 or np.isnan(deviations[-1]):
        return "held"
    return "95 % band" if np.isfinite(deviations[-1]) else "not told by the data"


def _parameter_card(parameter: ParameterReport, quantity: ShownQuantity, told: str) -> tuple[str, str]:
    scale, unit = quantity.scale, quantity.unit
    estimate = None if parameter.estimate is None else parameter.estimate * scale
    value = number(estimate, 4)
    if parameter.estimate is not None and parameter.std is not None:
        wide = band(quantity, parameter.estimate, parameter.std, lambda reach: number(reach, 2), "±")
        value += f' <span class="band">{wide}</span>'
    value += f" {unit}"
    if parameter.relative_error is not None and parameter.reference is not None:
        reference = number(parameter.reference * scale, 4, unit)
        return value, f"{percent(parameter.relative_error)} from the reference, {reference}"
    return value, told


def _worst(report: Report, quantity: str) -> tuple[str, float] | None:
    unit = "mm" if quantity == "sag" else "hz"
    found: list[tuple[str, float]] = []
    for name, marker in report.markers.items():
        error = relative(
            getattr(marker, f"{quantity}_predicted_{unit}"), getattr(marker, f"{quantity}_measured_{unit}")
        )
        if error is not None:
            found.append((name, error))
    return max(found, key=lambda entry: abs(entry[1])) if found else None


def _theta_section(record: RunRecord, report: Report) -> str:
    rows = []
    for zone, entry in report.theta.items():
        for quantity in SHOWN:
            parameter = getattr(entry, quantity.name)
            if parameter is None:
                continue
            estimate, std, reference = (
                None if value is None else value * quantity.scale
                for value in (parameter.estimate, parameter.std, parameter.reference)
            )
            rows.append(
                (
                    escape(zone),
                    f"{escape(quantity.label)}{f' ({quantity.unit})' if quantity.unit else ''}",
                    number(estimate, 4),
                    number(std, 2),
                    number(reference, 4),
                    percent(parameter.relative_error),
                )
            )
    header = ("zone", "parameter", "estimate", "std", "reference", "error")
    how = "".join(
        f"<p class=small><b>Reference, {escape(zone)}:</b> {escape(entry.reference_how)}</p>"
        for zone, entry in report.theta.items()
        if entry.reference_how
    )
    updates = ", ".join(
        f"{count} {escape(status.lower().replace('_', ' '))}" for status, count in report.updates.items()
    )
    figure = ""
    if len(record.theta.stamps_ns) > 1:
        figure = _svg(theta_figure(record.theta, record.references), "material parameters over time")
    return _section(
        "Material",
        figure,
        table(header, rows, text_columns=2),
        how,
        f"<p class=small>Updates: {updates}.</p>" if updates else "",
    )


def _reconstruction_section(record: RunRecord, report: Report) -> str:
    summary = report.reconstruction
    if summary.mean_mm is None:
        return ""
    row = (
        escape(summary.points or ""),
        str(summary.frames),
        number(summary.mean_mm),
        number(summary.p95_mm),
        number(summary.max_mm),
        number(summary.percent_of_size, 2),
    )
    header = ("points", "frames", "mean (mm)", "p95 (mm)", "max (mm)", "mean (% of size)")
    trace = record.reconstruction
    figure = "" if trace is None else _svg(reconstruction_figure(trace), "reconstruction error over time")
    return _section("Reconstruction", figure, table(header, [row]))


def _marker_sections(record: RunRecord, report: Report) -> str:
    parts = []
    for tracks in record.markers:
        entries = report.experiments[tracks.experiment].markers
        parts.append(
            _section(
                f"Markers, {tracks.experiment}",
                _svg(tracks_figure(tracks), f"marker heights of {tracks.experiment}"),
                _marker_table(entries),
                _svg(error_figure(tracks), f"marker errors of {tracks.experiment}"),
            )
        )
    if parts:
        parts[-1] = parts[-1].replace("</section>", _MARKER_LEGEND + "</section>")
    return "\n".join(parts)


_MARKER_LEGEND = (
    "<p class=small>Sag: drop along gravity between the mean of the held pose and the mean of the last second. "
    "Frequency and decay: damped sinusoid about a creeping mean, fitted to the height from the first turning "
    "point to two seconds after the release. The same functions for what was measured and for the twin.</p>"
)


def _marker_table(entries: dict[str, MarkerReport]) -> str:
    rows = []
    for name, m in entries.items():
        rows.append(
            (
                escape(name),
                number(m.sag_measured_mm, 4),
                number(m.sag_predicted_mm, 4),
                percent(relative(m.sag_predicted_mm, m.sag_measured_mm)),
                number(m.frequency_measured_hz),
                number(m.frequency_predicted_hz),
                percent(relative(m.frequency_predicted_hz, m.frequency_measured_hz)),
                number(m.decay_measured_per_s),
                number(m.decay_predicted_per_s),
                number(m.error_mean_mm),
            )
        )
    header = (
        "marker",
        "sag (mm)",
        "twin",
        "error",
        "frequency (Hz)",
        "twin",
        "error",
        "decay (1/s)",
        "twin",
        "mean distance (mm)",
    )
    return table(header, rows)


def _pictures(record: RunRecord, kind: str, title: str) -> str:
    chosen = [picture for picture in record.pictures if picture.kind == kind]
    if not chosen:
        return ""
    return _section(title, '<div class="pictures">' + "".join(_picture(picture) for picture in chosen) + "</div>")


def _picture(picture: Picture) -> str:
    height, width = picture.image.shape[:2]
    done, data = cv2.imencode(
        ".jpg", cv2.cvtColor(picture.image, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 92]
    )
    if not done:
        raise ValueError(f"picture {picture.caption!r}: {width} x {height} cannot be encoded")
    source = base64.b64encode(data.tobytes()).decode("ascii")
    # a strip of several views needs the whole width
    wide = " class=wide" if width > 2 * height else ""
    return (
        f'<figure{wide}><img alt="{escape(picture.caption)}" width="{width}" height="{height}" '
        f'src="data:image/jpeg;base64,{source}"><figcaption>{escape(picture.caption)}</figcaption></figure>'
    )


def _timing_section(report: Report) -> str:
    longest = max((entry.p99_ms or 0.0 for entry in report.timing.values()), default=0.0)
    rows = []
    for stage, entry in report.timing.items():
        share = 100.0 * (entry.p50_ms or 0.0) / longest if longest else 0.0
        tail = 100.0 * (entry.p99_ms or 0.0) / longest if longest else 0.0
        bar = (
            f'<div class="bar"><div class="tail" style="width:{tail:.1f}%"></div>'
            f'<div class="median" style="width:{share:.1f}%"></div></div>'
        )
        rows.append(
            (
                escape(stage),
                bar,
                number(entry.p50_ms),
                number(entry.p99_ms),
                _NONE if entry.count is None else str(entry.count),
            )
        )
    timing = table(("stage", "", "p50 (ms)", "p99 (ms)", "samples"), rows, text_columns=2) if rows else ""
    drops = [(escape(cause), str(count)) for cause, count in report.drops.items()]
    dropped = table(("dropped because of", "count"), drops) if drops else ""
    factor = (
        f"<p>Real-time factor {number(report.real_time_factor, 3)}.</p>"
        if report.real_time_factor is not None
        else ""
    )
    return _section("Time and drops", timing, factor, dropped)


def _provenance_section(record: RunRecord, report: Report) -> str:
    provenance = report.provenance
    rows = [
        ("command", f"<code>{escape(provenance.command)}</code>"),
        ("started", escape(provenance.started)),
        ("seed", _NONE if provenance.seed is None else str(provenance.seed)),
        *(
            (f"body hash, {escape(name)}", f"<code>{escape(value)}</code>")
            for name, value in provenance.body_hashes.items()
        ),
        ("versions", escape(", ".join(f"{name} {version}" for name, version in provenance.versions.items()))),
    ]
    settings = "".join(
        f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>"
        for name, text in record.provenance.settings.items()
    )
    body = "".join(f"<tr><th>{label}</th><td>{value}</td></tr>" for label, value in rows)
    return _section("Provenance", f'<div class="scroll"><table class="facts">{body}</table></div>', settings)
