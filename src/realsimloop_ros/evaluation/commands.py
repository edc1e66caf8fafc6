"""The sub-commands of `realsimloop` that deal with recordings and reports."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from realsimloop_ros.evaluation.c3d import read_c3d
from realsimloop_ros.evaluation.faults import FAULTS, write_faulty_bag
from realsimloop_ros.evaluation.marker_messages import write_marker_bag
from realsimloop_ros.evaluation.quantities import SHOWN, ShownQuantity, band
from realsimloop_ros.evaluation.record import RunRecord, save_record
from realsimloop_ros.evaluation.report import write_report
from realsimloop_ros.evaluation.report_schema import ParameterReport, Report
from realsimloop_ros.resources import configuration_file


@contextmanager
def plain_errors() -> Iterator[None]:
    """Errors that a user can mend become one line on stderr and exit status 1, warnings one line each."""
    shown = warnings.showwarning

    def show(message: Warning | str, *_: object, **__: object) -> None:
        print(f"warning: {message}", file=sys.stderr)

    warnings.showwarning = show  # type: ignore[assignment]
    try:
        yield
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
    finally:
        warnings.showwarning = shown


def import_c3d(
    file: Annotated[Path, typer.Argument(metavar="FILE.c3d", help="The motion capture to read.")],
    out: Annotated[Path, typer.Option("--out", help="The bag folder to write; a bag of that name is replaced.")],
    topic: Annotated[str, typer.Option(help="Topic of the markers (visualization_msgs/MarkerArray).")] = "markers",
    frame: Annotated[str, typer.Option(help="Frame that the positions are given in.")] = "capture",
    unit: Annotated[str | None, typer.Option(help="Unit of length, where the file names none.")] = None,
) -> None:
    """Write a .c3d motion capture as an MCAP bag with its markers on a topic."""
    with plain_errors():
        capture = read_c3d(file, unit=unit, frame=frame)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(f"writing {out}", total=len(capture.stamps_ns))
            write_marker_bag(out, capture, topic, progress=lambda: progress.advance(task))
        missing = int((~capture.seen).sum())
        unseen = f", {missing} positions not seen" if missing else ""
        print(
            f"{out}: {len(capture.names)} markers, {len(capture.stamps_ns)} frames at {capture.rate:g} Hz on "
            f"topic {topic} in frame {frame}{unseen}"
        )


def evaluate(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT...", help="Experiment files (YAML), estimated together; or the bag of a cell."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of report.html, report.json and the record.")],
    theta: Annotated[
        str,
        typer.Option(
            help="`estimate`; `prior`: held at the prior; or a report.json or record folder whose theta is held."
        ),
    ] = "estimate",
    cell: Annotated[
        str | None, typer.Option(help="Cell of the bag: a cell file, or a name in config/cells.")
    ] = None,
    truth: Annotated[
        Path | None,
        typer.Option(help="What a virtual cell left about its truth. Default: the folder `truth` beside the bag."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="Of a cell's bag: `gauss_newton` or `first_order` (Adam), frame by frame; or from all frames at "
            "once `offline` (L-BFGS), `cma` (CMA-ES) or `annealing`. Default: what the estimator file says."
        ),
    ] = None,
    fault: Annotated[
        str | None,
        typer.Option(help=f"Put a fault into the cell's recorded images first: one of {', '.join(FAULTS)}."),
    ] = None,
) -> None:
    """Evaluate recordings without running any node, and write a report. The same input gives the same numbers.

    Ends with status 1 where nothing could be evaluated; what was missing or wrong in part is a warning and a note
    in the report.
    """
    with plain_errors():
        # before the first array: results must not depend on what was computed earlier in this process
        from realsimloop_ros.compute import use_double_precision, use_one_core

        use_one_core()
        use_double_precision()
        command = "realsimloop " + shlex.join(sys.argv[1:])
        record = (
            _evaluated_experiments(inputs, theta, command)
            if cell is None
            else _evaluated_bag(inputs, cell, theta, method, truth, command, fault, out)
        )
        save_record(out / "record", record)
        report = write_report(out, record)
        for line in headline(report):
            print(line)
        print(f"report: {out / 'report.html'}")


def reduce_experiment(
    experiment: Annotated[Path, typer.Argument(metavar="EXPERIMENT.yaml", help="The experiment to make ready.")],
    out: Annotated[Path, typer.Option("--out", help="Where the reduced model (.npz) goes.")],
) -> None:
    """Make the reduced model of an experiment's body ahead of `evaluate`, which else makes it when it needs it."""
    with plain_errors():
        from realsimloop_ros.body.files import with_markers
        from realsimloop_ros.compute import use_double_precision
        from realsimloop_ros.evaluation.experiment_twin import reduction_settings
        from realsimloop_ros.evaluation.experiments import load_experiment
        from realsimloop_ros.evaluation.model_library import make_model

        use_double_precision()
        file = load_experiment(experiment)
        body = with_markers(file.build_body(), {})
        made = make_model(out, body, reduction_settings(file.experiment))
        error = made.card.get("cubature", made.card["all_samples"])
        print(
            f"{out}: {made.basis.shape[2]} shapes, {len(made.sample_index)} strain samples; held-out motions are "
            f"met to {1e3 * error['rms']:.3f} mm ({error['rms_percent']:.3f} % of the body) rms"
        )


def headline(report: Report) -> list[str]:
    """The figures of a report that matter most, a line each."""
    lines = []
    for zone, entry in report.theta.items():
        for quantity in SHOWN:
            parameter = getattr(entry, quantity.name)
            if parameter is not None and (quantity.always or parameter.std is not None):
                lines += _parameter_line(zone, quantity, parameter)
    distance = report.reconstruction
    if distance.mean_mm is not None:
        lines.append(
            f"twin to reality: mean {distance.mean_mm:.2f} mm ({distance.percent_of_size:.2f} % of the body), "
            f"95 % below {distance.p95_mm:.2f} mm, at most {distance.max_mm:.2f} mm"
        )
    if report.real_time_factor is not None:
        lines.append(f"real-time factor {report.real_time_factor:.3f}")
    lost = {cause: count for cause, count in report.drops.items() if count}
    lines.append("dropped: " + (", ".join(f"{count} {cause}" for cause, count in lost.items()) or "nothing"))
    return lines


def _parameter_line(zone: str, quantity: ShownQuantity, found: ParameterReport) -> list[str]:
    if found.estimate is None:
        return []
    scale, digits = quantity.scale, quantity.digits
    unit = f" {quantity.unit}" if quantity.unit else ""
    text = f"{zone}: {quantity.label} {found.estimate * scale:.{digits}f}{unit}"
    if found.std is not None:
        text += f" {band(quantity, found.estimate, found.std, lambda reach: f'{reach:.{digits}f}')} (95 %)"
    if found.relative_error is not None and found.reference is not None:
        text += f", {found.relative_error:+.1%} from the reference {found.reference * scale:.{digits}f}{unit}"
    return [text]


def _evaluated_experiments(paths: list[Path], theta: str, command: str) -> RunRecord:
    from realsimloop_ros.evaluation.experiment_run import evaluate_experiments

    return evaluate_experiments(paths, theta=theta, command=command)


def _evaluated_bag(
    bags: list[Path],
    cell: str,
    theta: str,
    method: str | None,
    truth: Path | None,
    command: str,
    fault: str | None,
    out: Path,
) -> RunRecord:
    from realsimloop_ros.evaluation.cell_evaluation import evaluate_cell_bag
    from realsimloop_ros.observation.cell_file import load_cell

    if len(bags) != 1:
        raise typer.BadParameter("with --cell, name one bag")
    path = configuration_file("cells", cell)
    loaded = load_cell(path)
    settings = [path, loaded.resolve(loaded.estimator)]
    bag = bags[0]
    if fault is not None:
        # kept: it can be replayed to the nodes as well
        truth = bag.parent / "truth" if truth is None else truth
        bag = out / "faulty_bag"
        write_faulty_bag(bags[0], bag, loaded, fault)
    return evaluate_cell_bag(
        bag, loaded, theta=theta, method=method, truth_folder=truth, command=command, settings=settings
    ).record
