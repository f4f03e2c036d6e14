"""The study behind ``jko converge``: tables, a CSV file and a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..config import RunConfig, build_cloud, build_model, load_config
from ..config.errors import ConfigError
from ..diagnostics.convergence import convergence_study
from ..diagnostics.convergence_table import ConvergenceTable, write_tables

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Study", "open_study", "orders_table"]

Array = NDArray[np.float64]

#: Parts of the span that the default steps are.
PARTS = (10, 20, 40, 80, 160)

#: How far an observed order may be from the scheme's, by that order.
BANDS = {1: 0.05, 2: 0.1, 3: 0.2}


@dataclass(frozen=True, kw_only=True)
class Study:
    """A configured study, ready to run."""

    config: RunConfig
    directory: Path
    out: Path

    @property
    def steps(self) -> Array:
        """The configured steps, or the default ones."""
        start, end = self.config.run.span
        given = self.config.converge.steps
        return (end - start) / np.array(PARTS) if given is None else np.array(given)

    def tables(
        self, executor: Executor, show: Callable[[str, int], None]
    ) -> Iterator[ConvergenceTable]:
        """One table per scheme, in order; ``show`` is told which scheme is running."""
        config = self.config
        cloud = build_cloud(config, self.directory)
        model = build_model(config, cloud, self.directory)
        for done, scheme in enumerate(config.converge.schemes):
            show(scheme, done)
            yield convergence_study(
                model,
                cloud,
                config.run.span,
                self.steps,
                scheme,
                config.converge.reference,
                cost=config.run.cost,
                tolerance=config.run.tolerance,
                max_evaluations=config.run.max_evaluations,
                certify=config.converge.certify,
                executor=executor,
            )

    def write(self, tables: list[ConvergenceTable]) -> tuple[Path, Path]:
        """``orders.csv`` and ``orders.png`` in the output directory."""
        from ..plotting.convergence import plot_orders

        rows, figure = self.out / "orders.csv", self.out / "orders.png"
        write_tables(rows, tables)
        plot_orders(tables).savefig(figure, dpi=150)
        return rows, figure


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
    directory = config_file.parent
    build_model(config, build_cloud(config, directory), directory)
    out.mkdir(parents=True, exist_ok=True)
    return Study(config=config, directory=directory, out=out)


def verdict(table: ConvergenceTable) -> str:
    """Whether the order of the finest pair is the scheme's, within its band.

    An order is a limit: the regression over all steps also sees those before it shows.
    """
    off = abs(float(table.pairwise_orders[-1]) - table.expected_order)
    return "holds" if off <= BANDS.get(table.expected_order, 0.2) else "differs"


def orders_table(tables: list[ConvergenceTable]) -> Table:
    """Errors by step and the observed order of every scheme."""
    from rich.table import Table
    from rich.text import Text

    result = Table(title=f"W2 error against the {tables[0].reference}", title_justify="left")
    result.add_column("step", justify="right")
    for table in tables:
        result.add_column(table.scheme, justify="right")
    for row, step in enumerate(tables[0].steps):
        result.add_row(f"{step:.4g}", *(f"{table.errors[row]:.3e}" for table in tables))
    result.add_section()
    result.add_row("order", *(f"{table.order:.3f}" for table in tables))
    result.add_row(
        "95 %", *("{:.2f} .. {:.2f}".format(*table.order_interval) for table in tables)
    )
    result.add_row("finest pair", *(f"{table.pairwise_orders[-1]:.3f}" for table in tables))
    result.add_row("expected", *(str(table.expected_order) for table in tables))
    result.add_row("verdict", *(Text(verdict(table)) for table in tables))
    return result
