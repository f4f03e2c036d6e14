"""The figure of a convergence study: errors with reference slopes, and work for precision."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from ..diagnostics.convergence_table import ConvergenceTable
from .arguments import members
from .style import PALETTE, new_figure, slope_triangle, styled

__all__ = ["plot_orders"]

#: Name, colour and marker of a scheme; options follow in brackets, drawn hollow and dashed.
SCHEME_STYLES = {
    "jko": ("JKO", "blue", "o"),
    "midpoint": ("midpoint", "purple", "s"),
    "bdf2": ("BDF2", "orange", "^"),
    "ve2": ("VE2", "sky", "D"),
    "richardson-jko": ("JKO, extrapolated", "green", "v"),
    "richardson-midpoint": ("midpoint, extrapolated", "vermilion", "P"),
}


@styled
def plot_orders(
    tables: ConvergenceTable | Sequence[ConvergenceTable], title: str = ""
) -> Figure:
    r"""Error against step with reference slopes (left), error against work (right), log-log.

    Parameters
    ----------
    tables : ConvergenceTable or sequence of them
        One per scheme, at least one.
    title : str
        The problem, for instance.
    """
    tables = members(tables, ConvergenceTable, "tables")
    if not tables:
        raise ValueError("tables must hold at least one table")
    figure = new_figure(8.4, 4.8)
    left, right = figure.subplots(1, 2, sharey=True)
    for table in tables:
        label, line = _look(table)
        left.loglog(table.steps, table.errors, label=label, **line)
        right.loglog(table.evaluations, table.errors, label=label, **line)
    _slopes(left, tables)
    _step_axis(left, np.unique(np.concatenate([table.steps for table in tables])))
    left.set_ylabel(f"largest $W_2$ to the {tables[0].reference} [rad]")
    right.set_xlabel("kernel passes of the run")
    _work_axis(right)
    for ax in (left, right):
        ax.yaxis.set_minor_locator(NullLocator())
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)))
    if title:
        figure.suptitle(title, fontsize=10.5, fontweight="bold")
    return figure


def _look(table: ConvergenceTable) -> tuple[str, dict[str, object]]:
    """Label and line style of a table."""
    base, *options = table.scheme.split(",")
    name, color, marker = SCHEME_STYLES.get(base, (base, "grey", "x"))
    described = ", ".join(option.replace("=", ": ") for option in options)
    plain = not options
    line: dict[str, object] = {
        "color": PALETTE[color],
        "marker": marker,
        "linestyle": "-" if plain else "--",
        "markerfacecolor": PALETTE[color] if plain else "white",
    }
    return name if plain else f"{name} ({described})", line


def _slopes(ax: Axes, tables: Sequence[ConvergenceTable]) -> None:
    """A triangle for every expected order, off the lines at the smallest steps.

    The lowest order has the highest lines and its triangle above them, the others below theirs.
    """
    usable = [t for t in tables if t.steps.size > 1 and (t.errors > 0).all()]
    orders = sorted({table.expected_order for table in usable})
    for order in orders:
        members = [table for table in usable if table.expected_order == order]
        above = len(orders) > 1 and order == orders[0]
        choose = max if above else min
        table = choose(members, key=lambda t: float(t.errors[-1] / t.steps[-1] ** t.expected_order))
        x, right = np.sort(table.steps)[:2]
        y = 2.4 * table.errors[-2] if above else 0.35 * table.errors[-1]
        slope_triangle(ax, float(x), float(y), float(order), float(right / x))


def _step_axis(ax: Axes, steps: np.ndarray) -> None:
    """Ticks at the steps themselves, as fractions where they are."""
    ax.set_xlabel(r"step $\tau$ [time]")
    ax.xaxis.set_major_locator(FixedLocator(steps.tolist()))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _fraction(value)))


def _work_axis(ax: Axes) -> None:
    """Plain numbers, at 1, 2 and 5 times the powers of ten where these alone are too few."""
    low, high = ax.get_xlim()
    subs = (1.0,) if high > 100 * low else (1.0, 2.0, 5.0)
    ax.xaxis.set_major_locator(LogLocator(subs=subs))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


def _fraction(value: float) -> str:
    inverse = 1 / value
    whole = abs(inverse - round(inverse)) < 1e-6 * inverse
    return f"1/{round(inverse)}" if whole and inverse > 1 else f"{value:g}"
