"""The study behind ``jko converge``: tables, a CSV file and a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..attention.model import AttentionModel
from ..config import RunConfig, build_cloud, build_model, load_config
from ..config.errors import ConfigError
from ..diagnostics.convergence import StudyError, common_times, convergence_study
from ..diagnostics.convergence_table import ConvergenceTable, Verdict, order_band, write_tables
from ..diagnostics.reference import Reference, is_rough, reference_states
from ..measures import TokenCloud
from ..schemes import JKO, make_scheme
from ..schemes.base import require_labelled
from ..steps.proximal import StepOptions

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Study", "open_study", "orders_table", "verdict_rule"]

Array = NDArray[np.float64]

#: Parts of the span that the default steps are.
PARTS = (10, 20, 40, 80, 160)

#: Work of a run grows with its number of steps to about this power: short steps are cheaper.
WORK_POWER = 0.75

#: What may be done about a run that ended early.
REMEDY = "leave the scheme out of [converge] schemes, or give smaller [converge] steps"


@dataclass(frozen=True, kw_only=True)
class Study:
    """A configured study, ready to run."""

    config: RunConfig
    out: Path
    model: AttentionModel
    cloud: TokenCloud

    @property
    def steps(self) -> Array:
        """The configured steps, or the default ones; decreasing."""
        start, end = self.config.run.span
        given = self.config.converge.steps
        steps = (end - start) / np.array(PARTS) if given is None else np.array(given)
        return np.sort(steps)[::-1]

    @property
    def work(self) -> float:
        """Total of what ``progress`` is told by `tables`."""
        fixed = 0.0 if self.config.converge.reference == "fine" else self._work(self.steps[-1])
        runs = sum(self._work(step) for step in self.steps)
        return fixed + len(self.config.converge.schemes) * runs

    @staticmethod
    def _work(step: float) -> float:
        return float(step) ** -WORK_POWER

    @property
    def plan(self) -> str:
        """What the study will compute, in a sentence."""
        converge, steps = self.config.converge, self.steps
        schemes = len(converge.schemes)
        text = f"{schemes * steps.size} runs: {_list(converge.schemes)}, each with steps "
        text += ", ".join(f"{step:.4g}" for step in steps)
        if converge.reference == "fine":
            return f"{text}; and a run of each scheme with a finer step as its reference"
        return f"{text}; and the {converge.reference} flow as the reference"

    @property
    def warning(self) -> str | None:
        """What makes the study doubtful before it is run."""
        config = self.config
        found = is_rough(self.model.path, config.run.span, float(self.steps[-1]))
        if found is None:
            return None
        return f"{found}; no verdict can be given.  Shorter steps: [converge] steps"

    def tables(
        self, executor: Executor, show: Callable[[str, float], None]
    ) -> Iterator[ConvergenceTable]:
        """One table per scheme, in order; ``show`` is told what is done, and how much of `work`."""
        config = self.config
        reference: str | Reference = config.converge.reference
        show("reference flow" if reference != "fine" else "", 0.0)
        if reference != "fine":
            times = common_times(config.run.span, self.steps)
            smallest = float(self.steps[-1])
            reference = reference_states(
                self.model, self.cloud, config.run.span, times, str(reference), smallest
            )
            show("reference flow", self._work(smallest))
        for scheme in config.converge.schemes:
            show(scheme, 0.0)

            def ended(step: float, scheme: str = scheme) -> None:
                # the run that is the reference of its scheme is none of the steps
                show(scheme, self._work(step) if step >= self.steps[-1] else 0.0)

            yield self._table(scheme, reference, executor, ended)

    def _table(
        self,
        scheme: str,
        reference: str | Reference,
        executor: Executor,
        ended: Callable[[float], None],
    ) -> ConvergenceTable:
        """The table of a scheme; an empty one if none of its runs reached the end."""
        config = self.config
        try:
            return convergence_study(
                self.model,
                self.cloud,
                config.run.span,
                self.steps,
                scheme,
                reference,
                cost=config.run.cost,
                tolerance=config.run.tolerance,
                max_evaluations=config.run.max_evaluations,
                certify=config.converge.certify,
                executor=executor,
                progress=ended,
            )
        except StudyError as problem:
            if not problem.gaps:
                raise
            stepper, none = make_scheme(scheme), np.empty(0)
            return ConvergenceTable(
                scheme=stepper.name,
                reference=getattr(reference, "label", f"{scheme} itself"),
                expected_order=stepper.order,
                steps=none,
                errors=none,
                final_errors=none,
                labelled_errors=none,
                evaluations=none,
                seconds=none,
                messages=(str(problem),),
                gaps=problem.gaps,
            )

    def notes(self, tables: list[ConvergenceTable]) -> Iterator[str]:
        """What must be known of the tables, roughness (said before the runs) apart."""
        said = is_rough(self.model.path, self.config.run.span, float(self.steps[-1]))
        for table in tables:
            for message in table.messages:
                if message != said:
                    yield f"{table.scheme}: {message}"
        if any(table.gaps for table in tables):
            yield REMEDY

    def write(self, tables: list[ConvergenceTable]) -> list[Path]:
        """``orders.csv`` and, if there is an error to draw, ``orders.png`` in the output directory."""
        rows, figure = self.out / "orders.csv", self.out / "orders.png"
        write_tables(rows, tables)
        drawn = [table for table in tables if table.steps.size]
        if not drawn:
            return [rows]
        from ..plotting.convergence import plot_orders

        plot_orders(drawn).savefig(figure, dpi=150)
        return [rows, figure]


def open_study(config_file: Path, out: Path) -> Study:
    """Read and check a configuration, and make the output directory.

    Raises
    ------
    ConfigError
        For an invalid configuration, or one without fixed steps to study.
    """
    config = load_config(config_file)
    start, end = config.run.span
    if config.converge.steps is None and not end > start:
        raise ConfigError("[run]: the span must have a positive length for a study of steps")
    for scheme in config.converge.schemes:
        if not isinstance(make_scheme(scheme), JKO):
            _require_labelled(config, scheme)
    cloud = build_cloud(config, config_file.parent)
    model = build_model(config, cloud, config_file.parent)
    out.mkdir(parents=True, exist_ok=True)
    return Study(config=config, out=out, model=model, cloud=cloud)


def _require_labelled(config: RunConfig, scheme: str) -> None:
    try:
        require_labelled(StepOptions(cost=config.run.cost), scheme)
    except ValueError as problem:
        raise ConfigError(f"[converge] schemes and [run] cost: {problem}") from None


def _list(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def orders_table(tables: list[ConvergenceTable]) -> Table:
    """Errors by step and the observed order of every scheme; steps without a result are gaps."""
    from rich.table import Table
    from rich.text import Text

    reference = next((table.reference for table in tables if table.steps.size), "reference")
    result = Table(title=f"W2 error against the {reference}", title_justify="left")
    result.add_column("step", justify="right")
    for table in tables:
        result.add_column(table.scheme, justify="right")
    steps = {step for t in tables for step in (*t.steps.tolist(), *(gap.step for gap in t.gaps))}
    for step in sorted(steps, reverse=True):
        result.add_row(f"{step:.4g}", *(_cell(table, step) for table in tables))
    result.add_section()
    for name, row in _order_rows(tables).items():
        result.add_row(name, *(Text(value) for value in row))
    return result


def _cell(table: ConvergenceTable, step: float) -> str:
    errors = dict(zip(table.steps.tolist(), table.errors.tolist(), strict=True))
    if step in errors:
        return f"{errors[step]:.3e}"
    return "gap" if any(gap.step == step for gap in table.gaps) else ""


def _order_rows(tables: list[ConvergenceTable]) -> dict[str, list[str]]:
    """What is printed below the errors, by row; a dash where there is no order."""
    rows: dict[str, list[str]] = {}
    for table in tables:
        order, interval, finest = "-", "-", "-"
        try:
            order = f"{table.order:.3f}"
            low, high = table.order_interval
            finest = f"{table.pairwise_orders[-1]:.3f}"
            interval = f"{low:.2f} .. {high:.2f}" if np.isfinite(low) else "(two steps)"
        except ValueError:
            pass
        expected = f"{table.expected_order} ± {order_band(table.expected_order):g}"
        columns = {"order": order, "95 %": interval, "finest pair": finest, "expected": expected}
        for name, value in (columns | {"verdict": table.verdict.value}).items():
            rows.setdefault(name, []).append(value)
    return rows


def verdict_rule(tables: list[ConvergenceTable]) -> str:
    """How the verdicts that are shown were reached."""
    sentences = {
        Verdict.HOLDS: "holds: the finest pair is within the band of the expected order",
        Verdict.UNDECIDED: (
            "undecided: it is not, but the 95 % interval of the fit contains the order, or the two "
            "finest pairs still disagree by more than the band"
        ),
        Verdict.DIFFERS: (
            "differs: the pairs have settled on another order, or the finest one has less than half "
            "of it: the errors level off"
        ),
        Verdict.ROUGH_PATH: (
            "rough path: all steps are longer than the grid of the weight path, no order to expect"
        ),
        Verdict.NO_ORDER: "no order: fewer than two errors above rounding",
    }
    shown = {table.verdict for table in tables}
    shown |= {Verdict.HOLDS} if Verdict.UNDECIDED in shown else set()
    return "\n".join(text for verdict, text in sentences.items() if verdict in shown)
