"""The commands."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from ..config import ConfigError, example_config
from ..diagnostics.convergence import StudyError
from ..diagnostics.convergence_table import ConvergenceTable
from ..runs.curve import CurveStatus
from ..runs.monitors import Monitor
from ..runs.store import StoreError
from .converge import open_study, orders_table, verdict_rule
from .directory import MOVEMENT, Job, create_run, open_run
from .progress import TIMED, ProgressMonitor, progress_bars, terminated_like_interrupted
from .summary import advice, summary_table

__all__ = ["app", "main"]

Prepared = TypeVar("Prepared")

FAILED, MISUSED, INTERRUPTED = 1, 2, 130

app = typer.Typer(
    help="JKO schemes in the weighted Wasserstein distance of multi-head attention.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    """Entry point of the command ``jko``."""
    app()


def _consoles() -> tuple[Console, Console]:
    """Where results and where progress and errors go; made per call, for the current streams."""
    return Console(highlight=False), Console(stderr=True, highlight=False)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"jko {version('jko')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """JKO schemes in the weighted Wasserstein distance of multi-head attention."""


@app.command()
def example() -> None:
    """Print a commented configuration: the article's case on the sphere."""
    typer.echo(example_config(), nl=False)


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="TOML configuration; see: jko example.")],
    out: Annotated[Path, typer.Option("--out", help="Directory of the run.")],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run that is there.")
    ] = False,
) -> None:
    """Compute the movement and the direct flows of a configuration, and report on them."""
    job = _or_misused(lambda: create_run(config, out, overwrite))
    _compute(job)


@app.command()
def resume(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of the run.")],
) -> None:
    """Complete a run that was interrupted; the result is as if it had not been."""
    job = _or_misused(lambda: open_run(directory))
    _compute(job)


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of the run.")],
) -> None:
    """Write the report and the figures of a run."""
    _or_misused(lambda: open_run(directory))
    _write_report(directory)


@app.command()
def converge(
    config: Annotated[Path, typer.Argument(help="TOML configuration; see: jko example.")],
    out: Annotated[
        Path, typer.Option("--out", help="Where the table and the figure go.")
    ] = Path("jko-convergence"),
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes.")] = 2,
) -> None:
    """Measure the order of the schemes in the step, on the problem of a configuration."""
    study = _or_misused(lambda: open_study(config, out))
    output, errors = _consoles()
    typer.echo(study.plan, err=True)
    if study.warning is not None:
        typer.echo(f"note: {study.warning}", err=True)
    tables: list[ConvergenceTable] = []
    try:
        with (
            terminated_like_interrupted(),
            progress_bars(errors, "{task.description}") as bars,
            ProcessPoolExecutor(workers, get_context("spawn")) as executor,
        ):
            task = bars.add_task("runs", total=study.work, lumpy=True)

            def show(part: str, done: float) -> None:
                bars.update(task, description=part, advance=done)

            for table in study.tables(executor, show):
                tables.append(table)
    except KeyboardInterrupt:
        typer.echo(f"interrupted after {len(tables)} schemes", err=True)
    except StudyError as problem:
        typer.echo(f"error: {problem}", err=True)
        raise typer.Exit(FAILED) from None
    if tables:
        output.print(orders_table(tables))
        output.print(verdict_rule(tables), soft_wrap=True)
        for note in study.notes(tables):
            typer.echo(f"note: {note}", err=True)
        for path in study.write(tables):
            typer.echo(f"wrote: {path}")
    if len(tables) < len(study.config.converge.schemes):
        raise typer.Exit(INTERRUPTED)
    if any(table.gaps for table in tables):
        raise typer.Exit(FAILED)


@app.command()
def verify(
    quick: Annotated[
        bool, typer.Option("--quick", help="Reduced versions, under 2 minutes.")
    ] = False,
    out: Annotated[
        Path, typer.Option("--out", help="Where the report and its figures go.")
    ] = Path("jko-verification"),
) -> None:
    """Check the theory's claims numerically and print the theorem card."""
    from ..report import write_verification_report
    from ..verify import run_verification

    output, errors = _consoles()
    try:
        with terminated_like_interrupted(), progress_bars(errors, "{task.description}") as bars:
            task = bars.add_task("claims", total=None)

            def show(claim: str, done: int, total: int) -> None:
                bars.update(task, description=claim, completed=done, total=total)

            card = run_verification(quick, out, show)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    output.print(card.table())
    typer.echo(f"report: {write_verification_report(card, out)}")
    if card.failed:
        raise typer.Exit(FAILED)


def _or_misused(prepare: Callable[[], Prepared]) -> Prepared:
    """What ``prepare`` returns; where the user can mend what is wrong, one line and exit."""
    try:
        return prepare()
    except (ConfigError, StoreError, OSError) as problem:
        typer.echo(f"error: {problem}", err=True)
        raise typer.Exit(MISUSED) from None


def _compute(job: Job) -> None:
    output, errors = _consoles()
    try:
        with terminated_like_interrupted(), progress_bars(errors, TIMED) as bars:

            def monitor_for(title: str, span: tuple[float, float], reached: float) -> Monitor:
                return ProgressMonitor(bars, title, span, reached)

            curves = job.compute(monitor_for)
            if any(curve.status is CurveStatus.INTERRUPTED for curve in curves.values()):
                raise KeyboardInterrupt
            step_error = job.flow_step_error(curves, monitor_for)
            job.finish(curves)
    except KeyboardInterrupt:
        root = job.place.root
        typer.echo(f"interrupted; {root} keeps what was done, continue with: jko resume {root}")
        raise typer.Exit(INTERRUPTED) from None
    output.print(summary_table(curves, step_error))
    advised = advice(curves[MOVEMENT])
    if advised is not None:
        typer.echo(f"note: {advised}", err=True)
    if job.config.output.report:
        _write_report(job.place.root)
    if not all(curve.success for curve in curves.values()):
        raise typer.Exit(FAILED)


def _write_report(directory: Path) -> None:
    from ..report import write_run_report

    typer.echo(f"report: {write_run_report(directory)}")
