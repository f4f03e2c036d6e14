"""The table of a convergence study: observed orders, work, and its file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from os import PathLike

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from .._validation import finite_array, frozen

__all__ = ["ConvergenceTable", "Gap", "Verdict", "order_band", "read_tables", "write_tables"]

Array = NDArray[np.float64]

#: Errors below this are rounding of coordinates; no order is fitted to them.
ROUNDING = 1e-14

#: Measured columns.
MEASURED = ("errors", "final_errors", "labelled_errors", "evaluations", "seconds")

#: How far an observed order may be from the scheme's, by that order.
BANDS = {1: 0.05, 2: 0.1}
WIDEST_BAND = 0.2


def order_band(order: int) -> float:
    r"""How far an observed order may be from the ``order`` :math:`p` of a scheme: :math:`|p_{obs} - p| \le band`."""
    return BANDS.get(order, WIDEST_BAND)


class Verdict(Enum):
    """Whether a table shows the order of its scheme; the value is what a user reads."""

    HOLDS = "holds"
    UNDECIDED = "undecided"
    DIFFERS = "differs"
    ROUGH_PATH = "rough path"
    NO_ORDER = "no order"


@dataclass(frozen=True, kw_only=True)
class Gap:
    r"""A step whose run did not reach the end, and why.

    Attributes
    ----------
    step : float
        :math:`\tau`.
    reason : str
    """

    step: float
    reason: str


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
        Steps :math:`\tau` whose runs reached the end, decreasing.
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
    gaps : tuple of Gap
        The steps that are missing because their runs ended early.
    kink_spacing : float or None
        Spacing of the grid of kinks of the weight path, None where it has none.
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
    gaps: tuple[Gap, ...] = ()
    kink_spacing: float | None = None

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

    @property
    def rough(self) -> bool:
        """Whether all steps are longer than the weight path's grid: no order is to be expected then."""
        smallest = float(self.steps.min(initial=np.inf))
        return self.kink_spacing is not None and smallest > self.kink_spacing

    @property
    def verdict(self) -> Verdict:
        """Whether the finest pair shows the order of the scheme.

        An order is a limit: the regression over all steps also sees those before it shows.
        ``HOLDS``: the finest pair is within `order_band` of the order.  ``UNDECIDED``: it is not, but
        the 95 % interval of the regression contains the order, or the two finest pairs
        disagree by more than the band.  ``DIFFERS``: they have settled elsewhere, or the errors level
        off (the finest pair has less than half of the order).  ``ROUGH_PATH``: see `rough`.
        ``NO_ORDER``: fewer than two errors above rounding.
        """
        if self.rough:
            return Verdict.ROUGH_PATH
        if (self.errors > ROUNDING).sum() < 2 or self.errors[-1] <= 0:
            return Verdict.NO_ORDER
        pairs, order = self.pairwise_orders, self.expected_order
        band = order_band(order)
        if abs(pairs[-1] - order) <= band:
            return Verdict.HOLDS
        low, high = self.order_interval
        settled = pairs.size > 1 and abs(pairs[-1] - pairs[-2]) <= band
        if pairs[-1] < order / 2 or (settled and not low <= order <= high):
            return Verdict.DIFFERS
        return Verdict.UNDECIDED

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
COLUMNS = (
    "scheme", "reference", "expected_order", "kink_spacing", "steps", *MEASURED, "gap"
)  # fmt: skip


def write_tables(path: str | PathLike[str], tables: Sequence[ConvergenceTable]) -> None:
    """Write tables as one CSV file, a row per scheme and step; messages as comment lines.

    The columns are ``scheme, reference, expected_order, kink_spacing, steps, errors, final_errors,
    labelled_errors, evaluations, seconds, gap``.  A step without a result has its reason in ``gap``
    and nothing in the measured columns.  ``read_tables(path)`` is the inverse: ``tables == read_tables(path)``.
    """
    with open(path, "w", newline="", encoding="utf-8") as stream:
        for table in tables:
            for message in table.messages:
                stream.write(f"# {table.scheme} | {table.reference} | {message}\n")
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        for table in tables:
            spacing = "" if table.kink_spacing is None else repr(table.kink_spacing)
            head = (table.scheme, table.reference, table.expected_order, spacing)
            for row in zip(table.steps, *(getattr(table, n) for n in MEASURED), strict=True):
                writer.writerow([*head, *(repr(float(value)) for value in row), ""])
            for gap in table.gaps:
                writer.writerow([*head, repr(gap.step), *[""] * len(MEASURED), gap.reason])


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
            gaps=tuple(Gap(step=float(m["steps"]), reason=m["gap"]) for m in members if m.get("gap")),
            kink_spacing=float(spacing) if (spacing := members[0].get("kink_spacing")) else None,
            **{
                name: np.array([float(m[name]) for m in members if not m.get("gap")])
                for name in ("steps", *MEASURED)
            },
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
