r"""The proximal step on fixed nodes: build the program, solve it, certify the result."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..._validation import choice, finite_number, positive_integer, positive_number
from ...attention.model import AttentionModel
from ...measures import TokenCloud
from ...transport.cost import COSTS
from ..result import Certificate, StepError, StepResult, StepStats, StepStatus
from .columns import Goal, GridSolution, solve_columns
from .conditional import solve_conditional
from .curvature import Curvature, curvature
from .problem import GridState, SupportProblem, support_problem
from .resolution import Resolution, measure_resolution

__all__ = ["GRID_SOLVERS", "NodesError", "on_nodes", "resolution", "solve_on_support"]

Array = NDArray[np.float64]
IntArray = NDArray[np.intp]

GRID_SOLVERS = ("cvxpy", "conditional_gradient")

#: Default gap, relative to the energy at the start of the step.
TOLERANCE = 1e-10


class NodesError(ValueError):
    """A cloud does not live on the nodes it should live on."""


def solve_on_support(
    model: AttentionModel,
    cloud: TokenCloud,
    t: float,
    step: float,
    energy_time: float | None = None,
    *,
    support: ArrayLike | None = None,
    cost: str = "source",
    solver: str = "cvxpy",
    tolerance: float = TOLERANCE,
    max_iterations: int = 1000,
) -> StepResult:
    r"""One JKO step onto fixed nodes.

    .. math::

        \min_{P \ge 0,\; P 1 = a} \frac{1}{2\tau}\sum_{ij} P_{ij}\, c(x_i, z_j) + \tfrac12 \nu^T K \nu,
        \qquad \nu = P^T 1, \quad K_{jl} = \pm\sum_h w_h e^{\langle z_j, D_h(t_e) z_l\rangle}.

    Parameters
    ----------
    model : AttentionModel
    cloud : TokenCloud
        The measure the step starts from: a density on the nodes, or any token cloud.
    t : float
        Time of the cloud and of the mobility.
    step : float
        Proximal step :math:`\tau > 0`.
    energy_time : float, optional
        Time at which the energy is taken, default ``t + step``.
    support : (m, d) array_like, optional
        Nodes ``z_j``; the cloud's own points by default.
    cost : {"source", "midpoint", "geodesic"}
        Ground cost, see `jko.transport.cost`.
    solver : {"cvxpy", "conditional_gradient"}
        Column generation with Clarabel, or conditional gradients from POT and our own.
    tolerance : float
        Frank-Wolfe gap to reach, relative to the energy at the start.
    max_iterations : int
        Convex programs, or conditional-gradient iterations and sweeps.

    Returns
    -------
    StepResult
        ``cloud`` has the points ``support`` and the new density as its weights; ``plan`` is
        (n, m).  In the certificate, ``optimality_gap`` is the Frank-Wolfe gap over all nodes,
        ``convex`` refers to ``K`` on mean-zero vectors, ``optimality`` is ``"proven"`` if it is
        convex and the gap meets the tolerance, ``"searched"`` for a stationary plan of an energy
        that is not convex (a necessary condition), ``"failed"`` otherwise; ``gradient_norm`` is the
        gap relative to its value at the start.

    Raises
    ------
    ValueError, TypeError
        For invalid arguments, before any work.
    PlanTooLargeError
        If the dense tables do not fit.
    KernelOverflowError
        If the kernel exceeds the largest double.
    StepError
        If the cloud lives on the nodes and the result would break ``Phi <= E(mu, t_e)``.
    """
    t = finite_number(t, "t")
    step = positive_number(step, "step")
    energy_time = t + step if energy_time is None else finite_number(energy_time, "energy_time")
    choice(cost, "cost", COSTS)
    choice(solver, "solver", GRID_SOLVERS)
    positive_number(tolerance, "tolerance")
    positive_integer(max_iterations, "max_iterations")
    nodes = _nodes(cloud, support)
    problem, sources, mobility = support_problem(model, cloud, t, step, energy_time, nodes, cost)
    energy_before = model.energy(cloud, energy_time)
    goal = Goal(gap=tolerance * abs(energy_before), max_iterations=max_iterations)
    start = problem.start()
    shape = curvature(problem.kernel, model.heads(energy_time), model.sign)
    solution = solve_program(problem, shape, goal, start, solver)
    found = _Found(
        problem=problem, start=start, solution=solution, shape=shape, goal=goal, step=step
    )
    _require_decrease(found, energy_before)
    state = solution.state
    new_cloud = TokenCloud(nodes, state.measure)
    gradient = model.gradient(nodes, new_cloud, energy_time)
    fineness = _plan_resolution(state, nodes, mobility, gradient, step)
    return StepResult(
        time=t,
        step=step,
        energy_time=energy_time,
        objective=state.value,
        distance_squared=2 * step * state.transport,
        energy_before=energy_before,
        energy=state.energy,
        certificate=_certificate(found),
        status=_status(found, fineness),
        stats=StepStats(
            iterations=solution.iterations, gradient_evaluations=problem.evaluations
        ),
        cloud=new_cloud,
        plan=state.plan.matrix(sources, (cloud.n, nodes.shape[0])),
    )


def solve_program(
    problem: SupportProblem, shape: Curvature, goal: Goal, start: GridState, solver: str
) -> GridSolution:
    """Solve by the solver of that name."""
    if solver == "cvxpy":
        return solve_columns(problem, shape, goal, start)
    return solve_conditional(problem, goal, start)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Found:
    """A solved program, for its certificate."""

    problem: SupportProblem
    start: GridState
    solution: GridSolution
    shape: Curvature
    goal: Goal
    step: float

    @property
    def reached(self) -> bool:
        state = self.solution.state
        return state.gap <= max(self.goal.gap, state.rounding)


def _nodes(cloud: TokenCloud, support: ArrayLike | None) -> Array:
    if support is None or support is cloud.points:
        return cloud.points
    try:
        nodes = TokenCloud(np.asarray(support)).points
    except (ValueError, TypeError) as problem:
        raise type(problem)(f"support: {problem}") from problem
    if nodes.shape[1] != cloud.dim:
        raise ValueError(f"support must have shape (m, {cloud.dim}), got {nodes.shape}")
    return nodes


def _require_decrease(found: _Found, energy_before: float) -> None:
    """``Phi <= E`` holds wherever staying put is possible: all sources are nodes."""
    value = found.solution.state.value
    stays = found.start.transport == 0
    if stays and value > energy_before + 1e-12 * max(1.0, abs(energy_before)):
        raise StepError(
            f"the step would end with objective {value:.17g} above the energy "
            f"{energy_before:.17g} of the measure it starts from; this is a defect of the "
            "solver, please report it"
        )


def _certificate(found: _Found) -> Certificate:
    state, convex = found.solution.state, found.shape.convex
    optimality = "failed"
    if found.reached:
        optimality = "proven" if convex else "searched"
    per_token = max(found.goal.gap, state.rounding)
    return Certificate(
        # a plan that moves nothing is optimal between its own marginals
        plan_gap=state.gap / state.transport if state.transport > 0 else 0.0,
        plan_checked_by="potentials",
        gradient_norm=state.gap / found.start.gap if state.gap > 0 else 0.0,
        optimality_gap=state.gap,
        optimality=optimality,
        convex=convex,
        proven_tokens=int((state.token_gap <= per_token).sum()) if convex else 0,
        total_tokens=found.problem.weights.size,
    )


def _status(found: _Found, fineness: Resolution) -> StepStatus:
    if not found.reached:
        if found.solution.exhausted:
            return StepStatus.MAX_EVALUATIONS
        return StepStatus.STALLED
    matters = found.step * fineness.slope**2 > found.goal.gap
    if fineness.pinned and matters:
        return StepStatus.PINNED
    if found.solution.state.gap > found.goal.gap:
        return StepStatus.ROUNDING
    return StepStatus.CONVERGED


def _plan_resolution(
    state: GridState, nodes: Array, mobility: Array, gradient: Array, step: float
) -> Resolution:
    plan = state.plan
    return measure_resolution(
        nodes, plan.mass, mobility[plan.rows], gradient[plan.columns], state.transport, step
    )


def resolution(model: AttentionModel, cloud: TokenCloud, result: StepResult) -> Resolution:
    r"""Speed :math:`W/\tau`, slope :math:`G` and node spacing of a step that `solve_on_support` took from ``cloud``."""
    plan = result.plan.tocoo()
    rows, columns = plan.coords
    mobility = model.effective_mobility(cloud.points, cloud, result.time)
    gradient = model.gradient(result.cloud.points, result.cloud, result.energy_time)
    return measure_resolution(
        result.cloud.points,
        plan.data,
        mobility[rows],
        gradient[columns],
        result.distance_squared / (2 * result.step),
        result.step,
    )


def on_nodes(cloud: TokenCloud, nodes: ArrayLike) -> TokenCloud:
    r"""The density on ``nodes`` that gives every token's weight to its nearest node.

    :math:`W_2` between the two is at most the covering radius :math:`\max_x \min_m d(x, z_m)` of the nodes.
    """
    support = _nodes(cloud, nodes)
    nearest = (cloud.points @ support.T).argmax(axis=1)
    return TokenCloud(support, np.bincount(nearest, cloud.weights, support.shape[0]))


def require_on_nodes(cloud: TokenCloud, support: ArrayLike | None) -> None:
    """Raise `NodesError` unless ``cloud.points == nodes``, in their order.

    A curve on fixed nodes holds one density per time, so its first measure must be one too.
    """
    nodes = _nodes(cloud, support)
    if nodes.shape != cloud.points.shape or not np.array_equal(nodes, cloud.points):
        raise NodesError(
            f"cloud must live on the {nodes.shape[0]} nodes of support for a movement on fixed "
            f"nodes, but its {cloud.n} points are others; jko.steps.grid.on_nodes(cloud, support) "
            "moves every token to its nearest node"
        )
