"""The proximal step: the public entry to the step solvers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import choice, finite_number, positive_integer, positive_number
from ..attention.fields import Fields
from ..attention.model import AttentionModel
from ..measures import TokenCloud, require_cloud
from ..transport.cost import COSTS, GroundCost, SourceCost, ground_cost
from .grid.step import GRID_SOLVERS, solve_on_support
from .memory import pass_order
from .particles import TokenSolution, solve_tokens
from .pointwise import TokenProblems
from .problem import Anchor, StepProblem
from .result import StepError, StepResult

__all__ = ["StepOptions", "jko_problem", "proximal_step"]

Array = NDArray[np.float64]

CERTIFY = ("full", "local", "none")
SOLVERS = ("particles", *GRID_SOLVERS)

#: Default relative gradient norm of a step.
TOLERANCE = 1e-10


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """How steps are solved: the keyword arguments of `proximal_step` that a run fixes."""

    cost: str = "source"
    solver: str = "particles"
    support: ArrayLike | None = None
    tolerance: float = TOLERANCE
    max_evaluations: int = 1000
    certify: str = "full"

    def __post_init__(self) -> None:
        choice(self.cost, "cost", COSTS)
        choice(self.solver, "solver", SOLVERS)
        choice(self.certify, "certify", CERTIFY)
        positive_number(self.tolerance, "tolerance")
        positive_integer(self.max_evaluations, "max_evaluations")
        if self.solver == "particles" and self.support is not None:
            raise ValueError(
                "support must be None for solver='particles', whose tokens move freely"
            )


def proximal_step(
    model: AttentionModel,
    cloud: TokenCloud,
    t: float,
    step: float,
    cost: str = "source",
    solver: str = "particles",
    support: ArrayLike | None = None,
    energy_time: float | None = None,
    *,
    tolerance: float = TOLERANCE,
    max_evaluations: int = 1000,
    certify: str = "full",
) -> StepResult:
    r"""One JKO step: minimise :math:`\Phi(\nu) = W^2(\mu, \nu)/(2\tau) + E(\nu, t_e)`.

    On tokens, over positions and plan:

    .. math::

        \Phi(y) = \frac{1}{2\tau} \min_\pi \sum_{ij} \pi_{ij}\, c(x_i, y_j) + E(y, t_e),

    the ground cost carrying the effective mobility frozen at ``(cloud, t)``.

    Parameters
    ----------
    model : AttentionModel
    cloud : TokenCloud
        The measure the step starts from; tokens of weight zero are test particles and move by
        their own problem :math:`\min_y c(x_i, y)/(2\tau) + V(y)`.
    t : float
        Time of the cloud and of the mobility.
    step : float
        Proximal step :math:`\tau > 0`.
    cost : {"source", "midpoint", "geodesic"}
        Ground cost, see `jko.transport.cost`.  Proofs exist for ``"source"``.
    solver : {"particles", "cvxpy", "conditional_gradient"}
        Step solver; the last two keep the new measure on fixed nodes, see
        `jko.steps.grid.solve_on_support`.
    support : (m, d) array_like, optional
        Nodes of the solvers on a fixed support, default the cloud's own points.
    energy_time : float, optional
        Time at which the energy is taken, default ``t + step``.
    tolerance : float
        Gradient norm to reach, relative to its value at ``y = x``; on fixed nodes the gap to
        reach, relative to the energy.
    max_evaluations : int
        Kernel passes the position solver may spend; on fixed nodes, iterations.
    certify : {"full", "local", "none"}
        ``"full"``: prove or search every token's optimality and restart where a better position
        is found; ``"local"``: only the O(n) proof; ``"none"``: plan and stationarity alone.  On
        fixed nodes every step has its full gap.

    Returns
    -------
    StepResult

    Raises
    ------
    ValueError, TypeError
        For invalid arguments, before any work.
    KernelOverflowError
        If the energy exceeds the largest double.
    StepError
        If the result would break ``Phi <= E(mu, t_e)``.
    """
    require_cloud(cloud)
    t = finite_number(t, "t")
    step = positive_number(step, "step")
    energy_time = t + step if energy_time is None else finite_number(energy_time, "energy_time")
    StepOptions(
        cost=cost,
        solver=solver,
        support=support,
        tolerance=tolerance,
        max_evaluations=max_evaluations,
        certify=certify,
    )
    if solver != "particles":
        return solve_on_support(
            model,
            cloud,
            t,
            step,
            energy_time,
            support=support,
            cost=cost,
            solver=solver,
            tolerance=tolerance,
            max_iterations=max_evaluations,
        )
    problem = jko_problem(model, cloud, t, step, energy_time, cost)
    solution = solve_tokens(problem, tolerance, max_evaluations, certify)
    _require_decrease(solution)
    charged = np.flatnonzero(cloud.weights > 0)
    points = cloud.points.copy()
    points[charged] = solution.at.points
    if charged.size < cloud.n:
        test = np.flatnonzero(cloud.weights == 0)
        anchors = (Anchor(ground_cost(cost, model, cloud, t).take(test)),)
        problems = TokenProblems(problem, solution.at.points, anchors)
        points[test] = problems.minimise(np.arange(test.size), cloud.points[test])[0]
    return StepResult(
        time=t,
        step=step,
        energy_time=energy_time,
        objective=solution.at.value,
        distance_squared=2 * step * solution.at.transport,
        energy_before=solution.energy_before,
        energy=solution.at.energy,
        certificate=solution.certificate,
        status=solution.status,
        stats=solution.stats,
        cloud=cloud._at(points),
        plan=solution.coupling.plan_on(charged, cloud.n),
    )


def jko_problem(
    model: AttentionModel,
    cloud: TokenCloud,
    t: float,
    step: float,
    energy_time: float,
    cost: str = "source",
) -> StepProblem:
    """The proximal problem of a JKO step on the tokens of positive weight."""
    charged = np.flatnonzero(cloud.weights > 0)
    whole = charged.size == cloud.n
    known: Fields | None = None
    if cost == "source" and whole and model.heads(t) is model.heads(energy_time):
        # one kernel pass has the mobility and the gradient that the step starts with
        known = model.own_fields(cloud, t, pass_order(cloud.dim))
        base: GroundCost = SourceCost(cloud.points, known.effective_mobility)
    else:
        base = ground_cost(cost, model, cloud, t)
    if not whole:
        base = base.take(charged)
    return StepProblem(
        model=model,
        weights=cloud.weights if whole else cloud.weights[charged],
        step=step,
        energy_time=energy_time,
        anchors=(Anchor(base),),
        start=base.points,
        known=known,
    )


def _require_decrease(solution: TokenSolution) -> None:
    before, after = solution.energy_before, solution.at.value
    if after > before + 1e-13 * max(1.0, abs(before)):
        raise StepError(
            f"the step would end with objective {after:.17g} above the energy {before:.17g} of "
            "the measure it starts from; this is a defect of the minimiser, please report it"
        )
