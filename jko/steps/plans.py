r"""Is the coupling an optimal plan?  Asked of the cheapest instrument that can answer.

At a minimum of the step the first variation gives Kantorovich potentials: with
:math:`\psi_j = 2\tau V(y_j)` and :math:`\varphi_i = \min_j (c(x_i, y_j) + \psi_j)`, weak duality bounds the excess of a plan by

.. math::

    \sum_{ij} \pi_{ij} c(x_i, y_j) - W^2 \le \sum_{ij} \pi_{ij} \big(c(x_i, y_j) + \psi_j - \varphi_i\big),

which vanishes if no token would rather be at another token's place.

1. The O(n) proof of the positions answers for the plan too: nowhere on the sphere is better.
2. The same among the new positions only, in ``n^2`` products: arcs are longer than their
   chords, and the few pairs that chords do not decide are evaluated exactly.
3. The network simplex, which also finds the better plan.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..transport.cost import SourceCost
from ..transport.plan import MEMORY_LIMIT, optimal_plan, plan_bytes
from .certificate import GapReport, local_gap, token_values
from .pointwise import TokenProblems
from .problem import Coupling, Evaluation, StepProblem

__all__ = ["PlanCheck", "check_plan", "cost_floor", "potential_excess"]

Array = NDArray[np.float64]
IntArray = NDArray[np.intp]

#: A plan is exchanged if another one costs less by this share.
PLAN_TOLERANCE = 1e-9

#: Share of the cost up to which an excess over the dual value is rounding.
DUAL_TOLERANCE = 1e-13

#: Pairs of tokens whose chords are compared at once, and in all.
PAIR_BLOCK = 2_000_000
PAIR_LIMIT = 4_000_000_000


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanCheck:
    """What is known about a coupling.

    Attributes
    ----------
    better : Coupling or None
        A cheaper one.
    gap : float
        Excess of the cost over the optimal one, relative; a bound where potentials answered.
    checked_by : str
        ``"potentials"``, ``"network simplex"`` or ``"labels"`` where the plan is not free.
    proof : GapReport
        The O(n) proof of the positions.
    evaluations, plans : int
        Kernel passes and calls of the network simplex that were spent.
    """

    better: Coupling | None = None
    gap: float = 0.0
    checked_by: str
    proof: GapReport
    evaluations: int = 0
    plans: int = 0


def check_plan(
    problem: StepProblem, coupling: Coupling, at: Evaluation, certify: str
) -> PlanCheck:
    """Ask for a cheaper coupling; the proof of the positions is skipped for ``certify="none"``."""
    problems = TokenProblems(problem, at.points, problem.anchors)
    known = certify != "none"
    proof = local_gap(problems, at, coupling) if known else GapReport.unchecked(at.points)
    spent = problems.evaluations
    if not problem.optimises_plan:
        return PlanCheck(checked_by="labels", proof=proof, evaluations=spent)
    used, floor = 2 * problem.step * at.transport, cost_floor(problem)
    proven = bool(proof.proven.all())
    everywhere = 2 * problem.step * float(problem.weights @ proof.gap)
    excess = everywhere if proven else potential_excess(problems, coupling, at)
    n = at.points.shape[0]
    unsolvable = plan_bytes(n, n) > MEMORY_LIMIT
    if proven or unsolvable or excess <= DUAL_TOLERANCE * used + floor:
        gap = excess / max(used, floor)
        return PlanCheck(gap=gap, checked_by="potentials", proof=proof, evaluations=spent)
    cost = problem.anchors[0].cost
    best = optimal_plan(cost.matrix(at.points), problem.weights, problem.weights)
    cheaper = used - best.cost > PLAN_TOLERANCE * best.cost + floor
    return PlanCheck(
        better=Coupling.from_plan(best.plan, problem.weights) if cheaper else None,
        gap=max(used - best.cost, 0.0) / max(best.cost, floor),
        checked_by="network simplex",
        proof=proof,
        evaluations=spent,
        plans=1,
    )


def cost_floor(problem: StepProblem) -> float:
    """Transport costs below this are rounding: squared distances of a few ulp."""
    mobility = float(problem.anchors[0].cost.mobility.max())
    return 1e4 * float(np.finfo(float).eps) ** 2 * mobility


def potential_excess(problems: TokenProblems, coupling: Coupling, at: Evaluation) -> float:
    r"""Bound :math:`\sum_{ij} \pi_{ij} (c(x_i, y_j) + \psi_j - \varphi_i)` on the excess of a plan's cost.

    Infinite where chords are no bound (the cost is not ``"source"``) or pairs are too many.
    """
    cost = problems.anchors[0].cost
    n = at.points.shape[0]
    if not isinstance(cost, SourceCost) or n * n > PAIR_LIMIT:
        return np.inf
    problem = problems.problem
    own, potential = token_values(problem, at, coupling), at.fields.first_variation
    stiffness = cost.mobility / (2 * problem.step)
    # rounding of 2 - 2 <x, y>, and of the values themselves
    noise = 16 * np.finfo(float).eps * (stiffness + np.abs(own) + np.abs(potential).max())
    # f_i(y_j) < own_i needs 2 stiffness_i (1 - <x_i, y_j>) + V_j - own_i < 0
    one = np.ones((n, 1))
    sources = [(-2 * stiffness)[:, None] * cost.points, one, (2 * stiffness - own - noise)[:, None]]
    left = np.concatenate(sources, axis=1)
    right = np.concatenate([at.points, potential[:, None], one], axis=1).T
    excess = 0.0
    height = max(1, PAIR_BLOCK // n)
    for start in range(0, n, height):
        bound = left[start : start + height] @ right
        if coupling.identity:
            np.fill_diagonal(bound[:, start:], np.inf)
        if bound.min() >= 0:
            continue
        rows, columns = np.nonzero(bound < 0)
        rows += start
        drop = own[rows] - problems.values(rows, at.points[columns], potential[columns])
        largest = np.zeros(n)
        np.maximum.at(largest, rows, drop)
        excess += float(problem.weights @ largest)
    return 2 * problem.step * excess
