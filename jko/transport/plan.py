r"""Optimal plans between weighted points, by the network simplex of POT with every guard.

POT is imported where it is used: it pulls in whatever array libraries are installed.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from .._validation import probability_weights

__all__ = ["OptimalPlan", "PlanError", "PlanTooLargeError", "optimal_plan", "plan_bytes"]

Array = NDArray[np.float64]

#: Dense plans above this many bytes are refused (the solver itself needs several copies).
MEMORY_LIMIT = 8 * 2**30

#: Relative tolerance for the mass and the marginals of a returned plan.
MARGINAL_TOLERANCE = 1e-9


#: Plans whose costs all stay below this fraction of the largest cost are solved again at their
#: own scale (POT's tolerance is absolute, about 1e-14 of the largest).
FINE_COST = 1e-6


class PlanError(RuntimeError):
    """The transport solver did not return an optimal plan."""


class PlanTooLargeError(MemoryError):
    """A dense transport problem would not fit in memory."""


@dataclass(frozen=True, kw_only=True)
class OptimalPlan:
    """An optimal coupling.

    Attributes
    ----------
    plan : (n, m) sparse array
        At most ``n + m - 1`` positive entries.
    cost : float
        ``sum_ij pi_ij c_ij``, evaluated with the unscaled cost.
    """

    plan: coo_array
    cost: float


def plan_bytes(n: int, m: int) -> int:
    """Memory of a dense ``n x m`` problem in POT (cost, scaled cost, plan, network): ``40 * n * m`` bytes."""
    return 8 * 5 * n * m


def optimal_plan(cost: Array, a: Array, b: Array) -> OptimalPlan:
    r"""Solve :math:`\min_\pi \sum_{ij} \pi_{ij} c_{ij}` over couplings of ``a`` and ``b``.

    The cost is shifted to minimum zero and scaled to maximum one (POT's optimality tolerance
    is absolute), weightless points are left out, and the result is checked: result code, mass,
    marginals, finiteness.

    Parameters
    ----------
    cost : (n, m) array
        Finite; any sign and scale.
    a, b : (n,) and (m,) arrays
        Nonnegative weights of unit sum.

    Raises
    ------
    ValueError
        If an entry of the cost is not finite (its index is named), or a weight is invalid.
    PlanTooLargeError
        If the problem would take more than `MEMORY_LIMIT` bytes.
    PlanError
        If POT fails, warns or returns something that is not a coupling.
    """
    require_fits(*cost.shape)
    cost = np.asarray(cost, dtype=float)
    a = probability_weights(a, cost.shape[0], "a")
    b = probability_weights(b, cost.shape[1], "b")
    bad = ~np.isfinite(cost)
    if bad.any():
        row, column = (int(k) for k in np.argwhere(bad)[0])
        raise ValueError(f"cost must be finite, got cost[{row}, {column}] = {cost[row, column]}")
    rows, columns = np.flatnonzero(a > 0), np.flatnonzero(b > 0)
    everything = rows.size == a.size and columns.size == b.size
    reduced = cost if everything else cost[np.ix_(rows, columns)]
    dense = _network_simplex(reduced, a[rows], b[columns])
    i, j = np.nonzero(dense)
    mass = dense[i, j]
    plan = coo_array((mass, (rows[i], columns[j])), shape=cost.shape)
    return OptimalPlan(plan=plan, cost=float(mass @ reduced[i, j]))


def require_fits(n: int, m: int) -> None:
    """Raise `PlanTooLargeError` if a dense ``n x m`` problem is out of reach."""
    needed = plan_bytes(n, m)
    if needed > MEMORY_LIMIT:
        raise PlanTooLargeError(
            f"an optimal plan between {n} and {m} points needs {needed / 2**30:.1f} GiB, more "
            f"than the limit of {MEMORY_LIMIT / 2**30:.0f} GiB; a step whose certificate is "
            "'proven' needs no dense plan"
        )


def _network_simplex(cost: Array, a: Array, b: Array) -> Array:
    """An optimal plan, the simplex run at the scale of the costs that the plan pays.

    Where all mass moves by far less than the largest cost, the solver's absolute tolerance
    swamps the costs that matter.  They are then capped: a cycle of exchanges has at most
    ``min(n, m)`` edges of the plan found, so an edge dearer than ``min(n, m)`` times the longest
    of them is in no optimal plan, capped or not.
    """
    shifted = cost - cost.min()
    ceiling = shifted.max()
    while True:
        plan = _scaled_simplex(np.minimum(shifted, ceiling), a, b)
        # rounding of the marginals leaves specks of mass, which say nothing about the scale
        longest = shifted[plan > 1e-14 * plan.max()].max()
        lower = (min(cost.shape) + 1) * longest
        if longest == 0 or longest >= FINE_COST * ceiling or lower >= ceiling:
            return plan
        ceiling = lower


def _scaled_simplex(cost: Array, a: Array, b: Array) -> Array:
    import ot

    high = cost.max()
    if high > 0:
        cost = cost / high
    a, b = a / a.sum(), b / b.sum()
    limit = 10**6 + 1000 * (a.size + b.size)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            plan, log = ot.emd(a, b, cost, numItermax=limit, log=True)
        except (UserWarning, AssertionError) as problem:
            raise PlanError(f"the transport solver failed: {problem}") from problem
    if log["result_code"] != 1 or log["warning"] is not None:
        raise PlanError(f"the transport solver ended with code {log['result_code']}")
    plan = np.asarray(plan)
    error = max(np.abs(plan.sum(axis=1) - a).max(), np.abs(plan.sum(axis=0) - b).max())
    if not error <= MARGINAL_TOLERANCE * max(a.max(), b.max()) or (plan < 0).any():
        raise PlanError(f"the transport solver returned marginals that are off by {error:.3g}")
    return plan
