r"""De Giorgi's identity on fixed nodes.

With :math:`\Phi_r` the optimal value for the step ``r`` (same energy time, same frozen mobility) and ``W_r`` the
distance that its minimiser travels,

.. math::  E(\mu_k, t_e) - \Phi_\tau = \int_0^\tau \frac{W_r^2}{2 r^2}\, dr = \int_{1/\tau}^{1/r_0} \tfrac12 W_{1/s}^2\, ds .

It is the envelope theorem and needs global minimisers: it holds for convex energies, and for others as long
as the solver follows the global branch.  Two things are special to nodes.  Below a first step ``r_0``, which is
known in closed form, no mass moves: the nodes pin it.  Above, :math:`W_r^2` is nearly a staircase, as one source
after the other goes over to its next node, so that no quadrature is fast.  But as a function of
``s = 1/r`` it never increases (:math:`\Phi` is a minimum of functions linear in ``s``, hence concave in it), so
that sums from the left and from the right *bracket* the integral.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..._validation import choice, positive_integer
from ...attention.model import AttentionModel
from ...measures import TokenCloud
from ..result import StepRecord
from .columns import Goal
from .curvature import curvature
from .problem import SupportProblem, support_problem
from .step import GRID_SOLVERS, require_on_nodes, solve_program

__all__ = ["GridIdentity", "first_moving_step", "grid_de_giorgi_integral"]


@dataclass(frozen=True, kw_only=True)
class GridIdentity:
    r"""A De Giorgi integral :math:`\int_0^\tau W^2(\mu, \tilde\mu_r)/(2r^2)\,dr` on nodes.

    Attributes
    ----------
    value : float
        Trapezoidal sum.
    error : float
        Half the bracket: the integral is ``value +- error`` if all minimisers are global.
    first_step : float
        The step ``r_0`` below which the nodes pin all mass.
    solves : int
        Programs solved.
    """

    value: float
    error: float
    first_step: float
    solves: int


def first_moving_step(problem: SupportProblem, step: float) -> float:
    """The smallest proximal step at which mass leaves its nodes; infinite if it never does.

    ``problem`` is that of the proximal step ``step``, whose sources are nodes.
    """
    start = problem.start()
    own = start.potential[start.plan.columns]
    drop = own[:, None] - start.potential
    gains = drop > start.rounding
    if not gains.any():
        return float(np.inf)
    return step * float((problem.rate[gains] / drop[gains]).min())


def grid_de_giorgi_integral(
    model: AttentionModel,
    cloud: TokenCloud,
    record: StepRecord,
    *,
    support: ArrayLike | None = None,
    cost: str = "source",
    solver: str = "conditional_gradient",
    solves: int = 200,
) -> GridIdentity:
    r""":math:`\int_0^\tau W_r^2/(2 r^2) dr` of a step that was taken on nodes, bracketed.

    Halves the interval of ``s = 1/r`` that contributes most to the bracket until the programs are
    spent.

    Parameters
    ----------
    model : AttentionModel
    cloud : TokenCloud
        The density the step started from; its points are the nodes.
    record : StepRecord
        The step.
    support : array_like, optional
        The nodes, if they were given to the step.
    cost, solver : str
        As in `solve_on_support`.
    solves : int
        Programs to spend; the bracket shrinks as one over their number, the error of the value
        faster.

    Raises
    ------
    NodesError
        If the cloud does not live on the nodes.
    """
    choice(solver, "solver", GRID_SOLVERS)
    positive_integer(solves, "solves", 2)
    require_on_nodes(cloud, support)
    problem, _, _ = support_problem(
        model, cloud, record.time, record.step, record.energy_time, cloud.points, cost
    )
    shape = curvature(problem.kernel, model.heads(record.energy_time), model.sign)
    goal = Goal(gap=1e-13 * abs(record.energy_before), max_iterations=1000)
    first = first_moving_step(problem, record.step)
    if first >= record.step:
        return GridIdentity(value=0.0, error=0.0, first_step=first, solves=0)

    def rate(s: float) -> float:
        scaled = SupportProblem(
            rate=problem.rate * (record.step * s), weights=problem.weights, kernel=problem.kernel
        )
        state = solve_program(scaled, shape, goal, scaled.start(), solver).state
        return state.transport / s

    nodes = [1 / record.step, 1 / first]
    values = [rate(nodes[0]), 0.0]
    for _ in range(solves - 1):
        widths, drops = np.diff(nodes), -np.diff(values)
        k = int((widths * np.maximum(drops, 0)).argmax())
        middle = (nodes[k] + nodes[k + 1]) / 2
        nodes.insert(k + 1, middle)
        values.insert(k + 1, rate(middle))
    widths, drops = np.diff(nodes), -np.diff(values)
    return GridIdentity(
        value=float(np.trapezoid(values, nodes)),
        error=float(widths @ np.abs(drops)) / 2,
        first_step=first,
        solves=solves,
    )
