r"""The step on fixed nodes by convex programming, with columns grown by reduced costs.

Almost every source sends its mass to one to three nodes, so the program carries a few plan
entries a row.  One loop does three things at once:

1. *majorise*: with ``delta = nu - nu_k``, replace the energy by :math:`V_k\cdot\delta + \frac12 |L^T \delta|^2`, which lies
   above it and touches it at ``nu_k`` (it is the energy itself, if that is convex);
2. *solve* the convex program on the present columns (Clarabel, through cvxpy);
3. *grow*: add to every row the entries of smallest reduced cost below those it has.

It ends when the Frank-Wolfe gap over *all* entries meets the tolerance.  Re-centring at the last
measure also refines: the next solve works on what the last one left over.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from .curvature import Curvature
from .problem import GridPlan, GridState, SupportProblem, histogram

__all__ = ["Goal", "GridSolution", "restricted_step", "solve_columns"]

Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.intp]

#: Columns of every row in the first program, and added to it at most in every round.
FIRST_COLUMNS = 2
NEW_COLUMNS = 4

#: Conditional-gradient iterations that predict the potential which picks the first columns, and
#: how many of the last ones keep the nodes they chose.
PREDICTION = 30
VISITED = 10

#: Plan entries below this share of their row are left by the interior point method, not meant.
DUST = (1e-9, 0.0)

#: Rounds without progress after which the loop gives up.
PATIENCE = 3

ACCURACY = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12}


@dataclass(frozen=True, kw_only=True)
class Goal:
    """Gap to reach, in units of energy, and the iterations that may be spent on it."""

    gap: float
    max_iterations: int


@dataclass(frozen=True, kw_only=True, eq=False)
class GridSolution:
    """The outcome of a solver on fixed nodes.

    Attributes
    ----------
    state : GridState
    iterations : int
        Convex programs solved, or conditional-gradient iterations and sweeps.
    exhausted : bool
        Whether it ran out of iterations.
    """

    state: GridState
    iterations: int
    exhausted: bool


def restricted_step(
    rows: IntArray,
    columns: IntArray,
    reduced: Array,
    weights: Array,
    factor: Array,
    centre: Array,
    scale: float,
) -> GridPlan | None:
    r"""The majorised step on the given plan entries, by Clarabel; None if it fails.

    .. math::

        \min_{q \ge 0} \frac1s \sum_k a_{i_k} r_k q_k + \frac12 |w|^2, \quad
        \sum_{k: i_k = i} q_k = 1, \quad \sum_{k: j_k = j} a_{i_k} q_k = \nu_j, \quad
        w = \frac{1}{\sqrt s} L^T (\nu - \nu_k)

    ``q_k`` is a share of a row's weight, so that rows of any weight are equally well scaled, and
    ``s`` the gap at the centre, so that the objective is of order one.  With the measure ``nu`` as a
    variable of its own the factorisation stays sparse: without it the solve takes three times
    as long.  The cost is a constant, not a parameter: cvxpy holds a parametrised objective as a
    dense matrix of the entries squared (1.9 GiB for 12,000 entries instead of 0.3), and compiles
    a new program in a fraction of the time that the solver takes.

    Parameters
    ----------
    rows, columns : (E,)
        The plan entries.
    reduced : (E,)
        ``r_k``, up to a constant for every row.
    weights : (n,)
        Source weights.
    factor : (m, r)
        ``L``.
    centre : (m,)
        ``nu_k``.
    scale : float
        ``s``.
    """
    cvxpy = _cvxpy()
    count, entries = rows.size, np.arange(rows.size)
    used, position = np.unique(columns, return_inverse=True)
    scaled = factor / np.sqrt(scale)
    sources = csr_array((np.ones(count), (rows, entries)), shape=(weights.size, count))
    targets = csr_array((weights[rows], (position, entries)), shape=(used.size, count))
    share = cvxpy.Variable(count, nonneg=True)
    measure, modes = cvxpy.Variable(used.size), cvxpy.Variable(factor.shape[1])
    cost = weights[rows] * reduced / scale
    program = cvxpy.Problem(
        cvxpy.Minimize(cost @ share + cvxpy.sum_squares(modes) / 2),
        [
            sources @ share == np.ones(weights.size),
            targets @ share == measure,
            modes == scaled[used].T @ measure - centre @ scaled,
        ],
    )
    with warnings.catch_warnings():
        # what an inaccurate solution is worth is measured by its gap
        warnings.simplefilter("ignore")
        try:
            program.solve(solver=cvxpy.CLARABEL, **ACCURACY)
        except cvxpy.SolverError:
            return None
    if share.value is None or not np.isfinite(share.value).all():
        return None
    return GridPlan(rows, columns, weights[rows] * share.value)


def _cvxpy() -> Any:
    """The library, imported where it is needed: it takes a second and is only partly typed."""
    return import_module("cvxpy")


def solve_columns(
    problem: SupportProblem, shape: Curvature, goal: Goal, start: GridState
) -> GridSolution:
    """Solve by column generation and majorisation; the objective never increases."""
    if start.gap <= max(goal.gap, start.rounding):
        return GridSolution(state=start, iterations=0, exhausted=False)
    state, active = start, _first_columns(problem, start)
    iterations, idle = 0, 0
    while state.gap > max(goal.gap, state.rounding) and idle < PATIENCE:
        if iterations >= goal.max_iterations:
            return GridSolution(state=state, iterations=iterations, exhausted=True)
        iterations += 1
        plans = _majorised_step(problem, shape, state, active)
        trial = min(
            (problem.state(plan) for plan in plans), key=lambda s: (s.value, s.gap), default=state
        )
        grown = _grow(problem, active, trial)
        progress = trial.value < state.value or trial.gap < state.gap / 2
        if progress and trial.value <= state.value + state.rounding:
            state = trial
        idle = 0 if progress or grown else idle + 1
    return GridSolution(state=state, iterations=iterations, exhausted=False)


def _first_columns(problem: SupportProblem, start: GridState) -> BoolArray:
    """The start's entries, those the last predicting iterations chose, and their runners-up."""
    active = np.zeros(problem.rate.shape, dtype=bool)
    active[start.plan.rows, start.plan.columns] = True
    measure, potential, transport = start.measure, start.potential, start.transport
    rows = np.arange(problem.weights.size)
    for left in reversed(range(PREDICTION)):
        best = (problem.rate + potential).argmin(axis=1)
        if left < VISITED:
            active[rows, best] = True
        target = histogram(best, problem.weights, problem.nodes)
        ahead = float(problem.weights @ problem.rate[rows, best])
        change = problem.potential(target) - potential
        slope = ahead - transport + float((target - measure) @ potential)
        bend = float((target - measure) @ change)
        if slope >= 0:
            break
        length = min(1.0, -slope / bend) if bend > 0 else 1.0
        measure = measure + length * (target - measure)
        potential = potential + length * change
        transport += length * (ahead - transport)
    _mark_smallest(active, problem.rate + potential, FIRST_COLUMNS)
    return active


def _mark_smallest(active: BoolArray, values: Array, count: int) -> None:
    """Mark the ``count`` smallest finite values of every row."""
    count = min(count, values.shape[1])
    chosen = np.argpartition(values, count - 1, axis=1)[:, :count]
    finite = np.isfinite(np.take_along_axis(values, chosen, axis=1))
    rows, k = np.nonzero(finite)
    active[rows, chosen[rows, k]] = True


def _grow(problem: SupportProblem, active: BoolArray, state: GridState) -> bool:
    """Add the entries that would improve the state most; whether there were any."""
    reduced = problem.rate + state.potential
    own = np.where(active, reduced, np.inf).min(axis=1)
    improving = reduced < (own - state.rounding)[:, None]
    if not improving.any():
        return False
    reduced[~improving] = np.inf
    _mark_smallest(active, reduced, NEW_COLUMNS)
    return True


def _majorised_step(
    problem: SupportProblem, shape: Curvature, state: GridState, active: BoolArray
) -> list[GridPlan]:
    """The solver's plan with exact marginals, with and without the dust it leaves.

    Without a convex part the step is linear in the plan, and its minimiser one argmin per source.
    """
    if shape.linear_step:
        return [GridPlan.assignment(state.best, problem.weights)]
    rows, columns = np.nonzero(active)
    reduced = problem.rate[rows, columns] + state.potential[columns]
    # a constant a row changes nothing and costs digits
    lowest = np.full(problem.weights.size, np.inf)
    np.minimum.at(lowest, rows, reduced)
    plan = restricted_step(
        rows,
        columns,
        reduced - lowest[rows],
        problem.weights,
        shape.convex_factor,
        state.measure,
        state.gap,
    )
    return [] if plan is None else [plan.repaired(problem.weights, dust) for dust in DUST]
