"""Maps over independent jobs: local processes, or a Ray cluster where one is named."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Job = TypeVar("Job")
Result = TypeVar("Result")


class MissingRayError(ValueError):
    """A Ray cluster is asked for where Ray is not installed."""


def map_jobs(
    function: Callable[[Job], Result],
    jobs: Sequence[Job],
    *,
    label: str,
    workers: int | None = None,
    ray_address: str | None = None,
) -> list[Result]:
    """function over jobs, results in the order of the jobs, with a progress bar.

    `function` must be importable (spawned processes import it). workers: all cores by default, and this process
    itself where one is enough. ray_address: run on that Ray cluster instead; needs the extra `ray`.
    """
    results: dict[int, Result] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task(label, total=len(jobs))
        for index, result in _completed(function, jobs, workers or os.cpu_count() or 1, ray_address):
            results[index] = result
            progress.advance(task)
    return [results[index] for index in range(len(jobs))]


def _completed(
    function: Callable[[Job], Result], jobs: Sequence[Job], workers: int, ray_address: str | None
) -> Iterator[tuple[int, Result]]:
    if ray_address is not None:
        yield from _on_ray(function, jobs, ray_address)
    elif workers == 1 or len(jobs) == 1:
        yield from ((index, function(job)) for index, job in enumerate(jobs))
    else:
        # spawned, not forked: JAX and numba hold threads that do not survive a fork
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context) as pool:
            waiting = {pool.submit(function, job): index for index, job in enumerate(jobs)}
            for done in as_completed(waiting):
                yield waiting[done], done.result()


def _on_ray(function: Callable[[Job], Result], jobs: Iterable[Job], address: str) -> Iterator[tuple[int, Result]]:
    try:
        import ray
    except ImportError as error:
        raise MissingRayError(
            f"--ray {address}: ray is not installed; install the extra `ray`, or leave --ray out to use local "
            "processes"
        ) from error
    ray.init(address=address, ignore_reinit_error=True)
    remote = ray.remote(function)
    waiting = {remote.remote(job): index for index, job in enumerate(jobs)}
    while waiting:
        done, _ = ray.wait(list(waiting), num_returns=1)
        yield waiting.pop(done[0]), ray.get(done[0])
