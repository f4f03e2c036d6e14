"""One-step schemes: JKO, midpoint, and variational extrapolation of second order."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..attention.model import AttentionModel
from ..measures import TokenCloud
from ..steps.proximal import StepOptions, proximal_step
from ..steps.result import StepResult, StepStatus
from ..transport.cost import SourceCost
from .base import Past, SecondOrder, along, given_mobility, require_labelled
from .stages import StagePlan, StageSolution, solve_stages

__all__ = ["JKO", "VE2", "Midpoint"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class JKO:
    r"""The minimizing movement :math:`\mu_{k+1} \in \arg\min W^2(\mu_k, \nu)/(2\tau) + E(\nu, t_{k+1})`.

    Mobility frozen at ``(mu_k, t_k)``; first order.
    """

    name = "jko"
    order = 1
    memory = 1

    def advance(
        self, model: AttentionModel, past: tuple[Past, ...], end: float, options: StepOptions
    ) -> StepResult:
        """One proximal step."""
        last = past[-1]
        return proximal_step(
            model, last.cloud, last.time, end - last.time, energy_time=end, **vars(options)
        )


@dataclass(frozen=True, kw_only=True)
class Midpoint(SecondOrder):
    r"""Half a proximal step to ``h``, then the geodesics from ``x`` to ``h`` continued to twice their length.

    .. math::

        h = \arg\min_y \frac{1}{\tau} \sum_i a_i \beta_i\, d^2(x_i, y_i) + E(y, t + \tau/2), \qquad
        \beta_i = \hat b(h_i; \mu_h, t + \tau/2), \qquad x_{k+1} = \exp_x(2 \log_x h).

    This is the implicit midpoint rule on the sphere: the velocity at ``h`` is that of the flow,
    and the rule is its own inverse when time runs backwards, so that its error has even powers of
    :math:`\tau` only.  Second order with the implicit (default) or the extrapolated mobility, first with
    the old one.

    The scalars of a step's result describe the half step: ``step`` is :math:`\tau/2`, ``energy_time``
    :math:`t + \tau/2`, and :math:`\Phi(h) \le E(\mu_k, t + \tau/2)` holds, as does De Giorgi's identity with this frozen
    mobility.  ``plan`` couples the tokens with those of the half step.  If that plan splits
    mass, there is no geodesic to continue: the status is ``PLAN_SPLITS`` and ``cloud`` is ``h``.

    Reference: Legendre, Turinici, C. R. Math. 355 (2017).
    """

    def advance(
        self, model: AttentionModel, past: tuple[Past, ...], end: float, options: StepOptions
    ) -> StepResult:
        """Half a step, then the extension."""
        solution, result = self.half_step(model, past, end, options)
        if result.status is StepStatus.PLAN_SPLITS:
            return result
        points = along(past[-1].cloud.points, solution.stages[-1], 2.0)
        return replace(result, cloud=TokenCloud(points, past[-1].cloud.weights))

    def half_step(
        self, model: AttentionModel, past: tuple[Past, ...], end: float, options: StepOptions
    ) -> tuple[StageSolution, StepResult]:
        """The half step alone: its solution with the mobility, and its result, ending at ``h``."""
        require_labelled(options, self.name)
        last = past[-1]
        middle = last.time + (end - last.time) / 2
        plan = StagePlan(
            model=model,
            weights=last.cloud.weights,
            sources=(last.cloud.points,),
            rows=((1.0,),),
            step=(end - last.time) / 2,
            energy_time=middle,
        )
        mobility = given_mobility(self.mobility, model, past, middle)
        solution = solve_stages(plan, mobility, options)
        return solution, stage_result(plan, solution, last)


@dataclass(frozen=True, kw_only=True)
class VE2(SecondOrder):
    r"""Three-stage variational extrapolation of second order.

    .. math::

        u_m = \arg\min_y\; E(y, t + \tau/2)
            + \sum_{i<m} \frac{\gamma_{mi}}{2\tau} \sum_j a_j \beta_j\, d^2(y_j, u_{i,j}), \qquad m = 1, 2, 3,

    with :math:`u_0 = x_k`, :math:`x_{k+1} = u_3` and :math:`\gamma = (5), (-2, 6), (-2, 3/14, 44/7)`; the mobility is
    that of the geodesic midpoints of :math:`x_k` and :math:`u_3`, with the heads of the middle time.

    The scalars of a step's result describe the last stage, except that ``distance_squared`` is the
    weighted distance from the present tokens.

    Reference: Zaitzeff, Esedoglu, Garikipati, arXiv 1908.10246 and 2007.13572.
    """

    ROWS = ((5.0,), (-2.0, 6.0), (-2.0, 3 / 14, 44 / 7))

    def advance(
        self, model: AttentionModel, past: tuple[Past, ...], end: float, options: StepOptions
    ) -> StepResult:
        """The three stages."""
        require_labelled(options, self.name)
        last = past[-1]
        middle = last.time + (end - last.time) / 2
        plan = StagePlan(
            model=model,
            weights=last.cloud.weights,
            sources=(last.cloud.points,),
            rows=self.ROWS,
            step=end - last.time,
            energy_time=middle,
            fraction=0.5,
        )
        mobility = given_mobility(self.mobility, model, past, middle)
        return stage_result(plan, solve_stages(plan, mobility, options), last)


def stage_result(plan: StagePlan, solution: StageSolution, last: Past) -> StepResult:
    """The result whose cloud is the last stage."""
    points, weights = solution.stages[-1], plan.weights
    stage = solution.last
    charged = np.flatnonzero(weights > 0)
    cost = SourceCost(plan.sources[-1], solution.mobility)
    distance = cost.pairs(np.arange(weights.size), points)
    free = len(plan.sources) == len(plan.rows) == 1
    return StepResult(
        time=last.time,
        step=plan.step,
        energy_time=plan.energy_time,
        objective=stage.at.value,
        distance_squared=2 * plan.step * stage.at.transport if free else float(weights @ distance),
        energy_before=stage.energy_before,
        energy=stage.at.energy,
        certificate=stage.certificate,
        status=solution.status,
        stats=solution.stats,
        cloud=TokenCloud(points, weights),
        plan=stage.coupling.plan_on(charged, weights.size),
    )
