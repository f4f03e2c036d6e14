"""The table of a convergence study: observed orders, work, and its file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from .._validation import finite_array, frozen

__all__ = ["ConvergenceTable", "read_tables", "write_tables"]

Array = NDArray[np.float64]

#: Errors below this are rounding of coordinates; no order is fitted to them.
ROUNDING = 1e-14

#: Measured columns.
MEASURED = ("errors", "final_errors", "labelled_errors", "evaluations", "seconds")


@dataclass(frozen=True, kw_only=True, eq=False)
class ConvergenceTable:
    r"""Errors and work of a scheme over several steps, largest step first.

    Attributes
    ----------
    scheme : str
    reference : str
        What the errors are measured against.
    expected_order : int
        The order of the scheme on smooth weight paths.
    steps : (K,)
        Steps :math:`\tau`, decreasing.
    errors : (K,)
        Largest :math:`W_2` to the reference over the common times, in radians.
    final_errors : (K,)
        :math:`W_2` at the end of the span.
    labelled_errors : (K,)
        As ``errors``, for the labelled distance :math:`(\sum_i a_i d(x_i, y_i)^2)^{1/2} \ge W_2`.
    evaluations : (K,)
        Kernel passes of the whole run.
    seconds : (K,)
        Wall time of the run (of little meaning if members ran in parallel).
    messages : tuple of str
        What a reader must know before trusting the orders; empty if nothing was found.
    """

    scheme: str
    reference: str
    expected_order: int
    steps: Array
    errors: Array
    final_errors: Array
    labelled_errors: Array
    evaluations: Array
    seconds: Array
    messages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("steps", *MEASURED):
            object.__setattr__(self, name, frozen(finite_array(getattr(self, name), name, 1)))

    @property
    def order(self) -> float:
        """Observed order: slope of log error over log step, by least squares.

        Raises
        ------
        ValueError
            If fewer than two errors are above rounding.
        """
        return _slope(*self._resolved())[0]

    @property
    def order_interval(self) -> tuple[float, float]:
        """95 % confidence interval of the order; the whole line if there are only two steps."""
        slope, deviation, freedom = _slope(*self._resolved())
        if freedom == 0:
            return -np.inf, np.inf
        half = float(stats.t.ppf(0.975, freedom)) * deviation
        return slope - half, slope + half

    @property
    def pairwise_orders(self) -> Array:
        """Order between neighbouring steps, shape (K - 1,)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.diff(np.log(self.errors)) / np.diff(np.log(self.steps))

    def work_to_reach(self, error: float) -> float:
        """Evaluations for that error, on the line fitted to log evaluations over log error."""
        steps, errors = self._resolved()
        work = self.evaluations[np.isin(self.steps, steps)]
        slope, offset = np.polyfit(np.log(errors), np.log(work), 1)
        return float(np.exp(offset + slope * np.log(error)))

    def _resolved(self) -> tuple[Array, Array]:
        keep = self.errors > ROUNDING
        if keep.sum() < 2:
            raise ValueError(
                f"an order needs two errors above rounding ({ROUNDING:g}), got {self.errors}"
            )
        return self.steps[keep], self.errors[keep]

    def __str__(self) -> str:
        lines = [f"{self.scheme} against {self.reference}"]
        lines.append(f"{'step':>11} {'W2 error':>11} {'order':>7} {'passes':>9} {'seconds':>9}")
        orders = ["", *(f"{order:.3f}" for order in self.pairwise_orders)]
        columns = (self.steps, self.errors, orders, self.evaluations, self.seconds)
        for step, error, order, work, seconds in zip(*columns, strict=True):
            lines.append(f"{step:11.4g} {error:11.4g} {order:>7} {work:9.0f} {seconds:9.3g}")
        return "\n".join([*lines, *self.messages])


#: Columns of the file that `write_tables` writes.
COLUMNS = ("scheme", "reference", "expected_order", "steps", *MEASURED)


def write_tables(path: str | PathLike[str], tables: Sequence[ConvergenceTable]) -> None:
    """Write tables as one CSV file, a row per scheme and step; messages as comment lines.

    The columns are ``scheme, reference, expected_order, steps, errors, final_errors, labelled_errors,
    evaluations, seconds``; ``read_tables(path)`` is the inverse: ``tables == read_tables(path)``.
    """
    with open(path, "w", newline="", encoding="utf-8") as stream:
        for table in tables:
            for message in table.messages:
                stream.write(f"# {table.scheme} | {table.reference} | {message}\n")
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        for table in tables:
            rows = zip(*(getattr(table, name) for name in COLUMNS[3:]), strict=True)
            for row in rows:
                head = (table.scheme, table.reference, table.expected_order)
                writer.writerow([*head, *(repr(float(value)) for value in row)])


def read_tables(path: str | PathLike[str]) -> tuple[ConvergenceTable, ...]:
    """The tables that ``write_tables(path, tables)`` wrote: ``read_tables(path) == tables``."""
    messages: dict[tuple[str, str], list[str]] = {}
    rows: dict[tuple[str, str], list[dict[str, str]]] = {}
    with open(path, newline="", encoding="utf-8") as stream:
        lines = stream.readlines()
    for line in lines:
        if line.startswith("# "):
            scheme, reference, message = line[2:].rstrip("\r\n").split(" | ", 2)
            messages.setdefault((scheme, reference), []).append(message)
    for row in csv.DictReader(line for line in lines if not line.startswith("# ")):
        rows.setdefault((row["scheme"], row["reference"]), []).append(row)
    return tuple(
        ConvergenceTable(
            scheme=key[0],
            reference=key[1],
            expected_order=int(members[0]["expected_order"]),
            messages=tuple(messages.get(key, ())),
            **{name: np.array([float(m[name]) for m in members]) for name in COLUMNS[3:]},
        )
        for key, members in rows.items()
    )


def _slope(steps: Array, errors: Array) -> tuple[float, float, int]:
    """Least-squares slope of log errors over log steps, its standard deviation, and freedom."""
    x, y = np.log(steps), np.log(errors)
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    residual = y - y.mean() - slope * centred
    freedom = x.size - 2
    variance = residual @ residual / max(freedom, 1) / (centred @ centred)
    return slope, float(np.sqrt(variance)), freedom
