r"""A token step re-proved by a convex program that knows nothing of tokens.

On nodes that contain the step's own end points the token solution is one feasible plan among all
plans that may split mass.  The nodes contain the sources too, so that the program can start from
staying put and has to find the end points by itself.  For a convex energy the program's optimum then satisfies

.. math::  \Phi_{tokens} - \sum_i a_i gap_i \;\le\; \min_{\text{nodes}} \Phi \;\le\; \Phi_{tokens},

where the left-hand gap is the one the step certified.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ... import sphere
from ..._validation import choice
from ...attention.model import AttentionModel
from ...measures import TokenCloud
from ..result import StepResult
from .columns import Goal
from .curvature import curvature
from .problem import support_problem
from .step import GRID_SOLVERS, solve_program

__all__ = ["Reproof", "reprove"]

Array = NDArray[np.float64]

#: Nodes of the default grid.
NODES = {2: 400, 3: 800}


@dataclass(frozen=True, kw_only=True)
class Reproof:
    r"""What the program on nodes says about a token step.

    For a convex energy :math:`\Phi_{tokens} - \sum_i a_i gap_i \le \min_{nodes} \Phi \le \Phi_{tokens}`.

    Attributes
    ----------
    objective : float
        The step's own objective.
    optimum : float
        Objective of the program's solution.
    gap : float
        Its Frank-Wolfe gap.
    lower_bound : float
        No plan on these nodes is below this; for an indefinite energy the concave part has been
        bounded by its largest value.
    certified_gap : float
        The gap that the step's certificate claims.
    convex : bool
        Whether the energy is convex on these nodes.
    nodes : int
    """

    objective: float
    optimum: float
    gap: float
    lower_bound: float
    certified_gap: float
    convex: bool
    nodes: int

    @property
    def difference(self) -> float:
        """How much better the program is than the step (negative: it stopped above it)."""
        return self.objective - self.optimum

    @property
    def confirmed(self) -> bool:
        """Whether step and program agree to their gaps: the step is optimal on these nodes."""
        noise = 1e-13 * max(1.0, abs(self.objective))
        return -self.gap - noise <= self.difference <= self.certified_gap + noise


def reprove(
    result: StepResult,
    model: AttentionModel,
    cloud: TokenCloud,
    nodes: ArrayLike | None = None,
    *,
    cost: str = "source",
    solver: str = "cvxpy",
    tolerance: float = 1e-12,
    max_iterations: int = 200,
) -> Reproof:
    r"""Solve a token step again on nodes, its own end points and its sources, and compare.

    For a convex energy :math:`\Phi_{tokens} - \sum_i a_i gap_i \le \min_{nodes} \Phi \le \Phi_{tokens}`.
    The solver starts from the plan that leaves every token where it is, not from the step's
    solution.  It sees better places among the nodes only: errors of the positions below the
    spacing of the nodes are what the step's own certificate is for.

    Parameters
    ----------
    result : StepResult
        A step on tokens.
    model : AttentionModel
    cloud : TokenCloud
        The measure the step started from.
    nodes : (m, d) array_like, optional
        Nodes to add to the end points and the sources; 400 equispaced ones for d = 2, 800
        Fibonacci nodes for d = 3, none in higher dimension.
    cost : str
        The step's ground cost.
    solver : {"cvxpy", "conditional_gradient"}
    tolerance : float
        Gap of the program, relative to the energy.
    max_iterations : int

    Returns
    -------
    Reproof
    """
    choice(solver, "solver", GRID_SOLVERS)
    if nodes is None:
        count = NODES.get(cloud.dim)
        grid = cloud.points[:0] if count is None else sphere.nodes(count, cloud.dim)
    else:
        grid = TokenCloud(np.asarray(nodes)).points
    everything = np.concatenate([grid, result.cloud.points, cloud.points])
    problem, _, _ = support_problem(
        model, cloud, result.time, result.step, result.energy_time, everything, cost
    )
    shape = curvature(problem.kernel, model.heads(result.energy_time), model.sign)
    goal = Goal(gap=tolerance * abs(result.energy_before), max_iterations=max_iterations)
    state = solve_program(problem, shape, goal, problem.start(), solver).state
    return Reproof(
        objective=result.objective,
        optimum=state.value,
        gap=state.gap,
        lower_bound=state.value - state.gap - shape.excess(state.measure),
        certified_gap=result.certificate.optimality_gap,
        convex=shape.convex,
        nodes=everything.shape[0],
    )
