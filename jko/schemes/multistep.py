"""Two-step schemes."""

from __future__ import annotations

from dataclasses import dataclass

from .._validation import choice
from ..attention.model import AttentionModel
from ..steps.proximal import StepOptions
from ..steps.result import StepResult
from .base import Past, SecondOrder, given_mobility, require_labelled
from .onestep import JKO, Midpoint, stage_result
from .stages import StagePlan, solve_stages

__all__ = ["BDF2"]

STARTS = ("midpoint", "jko")


@dataclass(frozen=True, kw_only=True)
class BDF2(SecondOrder):
    r"""Two-step backward differentiation, second order.

    With the ratio :math:`r = \tau/\sigma` of this step to the one before,

    .. math::

        x_{k+1} = \arg\min_y \sum_i \frac{a_i \beta_i}{2\tau}
            \Big[(1 + r)\, d^2(y_i, x_{k,i}) - \frac{r^2}{1 + r}\, d^2(y_i, x_{k-1,i})\Big] + E(y, t + \tau),

    :math:`\beta_i = \hat b(y_i; \mu_y, t + \tau)`.  For equal steps (r = 1) the bracket is the usual
    :math:`2 d^2 - d^2/2`.  The coefficients are those with which

    .. math::

        (1 + r)\log_y x_k - \frac{r^2}{1 + r}\log_y x_{k-1} = -\tau \dot x + O(\tau^3)

    for every smooth curve through ``y``: seen from there it is :math:`-s\dot x + s^2 \ddot x/2` at the
    time ``s`` before, and the second-order terms at :math:`s = \tau` and :math:`s = \tau + \sigma = \tau (1 + 1/r)`
    cancel.  Stable for :math:`r < 1 + \sqrt 2`.

    The first step is made by the midpoint scheme, or by JKO (``start="jko"``): that one step has
    an error of order :math:`\tau^2`, which keeps the order but shows it at smaller steps only.

    The scalars of a step's result describe its problem (those of the first step that of the
    starting scheme), except that ``distance_squared`` is the weighted distance from the present tokens.

    Reference: Matthes, Plazotta, arXiv 1711.02935.
    """

    start: str = "midpoint"

    def __post_init__(self) -> None:
        super().__post_init__()
        choice(self.start, "start", STARTS)

    @property
    def name(self) -> str:
        """``bdf2``, with what differs from the default."""
        return super().name + ("" if self.start == "midpoint" else f",start={self.start}")

    @property
    def memory(self) -> int:
        """2, the steps of the formula."""
        return 2

    def advance(
        self, model: AttentionModel, past: tuple[Past, ...], end: float, options: StepOptions
    ) -> StepResult:
        """One two-step problem."""
        require_labelled(options, self.name)
        if len(past) < 2:
            first = JKO() if self.start == "jko" else Midpoint()
            return first.advance(model, past, end, options)
        before, last = past[-2:]
        step = end - last.time
        r = step / (last.time - before.time)
        plan = StagePlan(
            model=model,
            weights=last.cloud.weights,
            sources=(before.cloud.points, last.cloud.points),
            rows=((-(r**2) / (1 + r), 1 + r),),
            step=step,
            energy_time=end,
        )
        mobility = given_mobility(self.mobility, model, past, end)
        return stage_result(plan, solve_stages(plan, mobility, options), last)
