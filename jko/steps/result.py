"""What a step returns: status, certificate, work counts, record and result."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum

from scipy.sparse import coo_array

from ..measures import TokenCloud

__all__ = ["Certificate", "StepError", "StepRecord", "StepResult", "StepStats", "StepStatus"]


class StepError(RuntimeError):
    """A step that has no valid result (it would break an invariant of the scheme)."""


class StepStatus(Enum):
    """How a step ended; the value is the sentence a user reads."""

    CONVERGED = "the step converged to the requested tolerance"
    ROUNDING = "the step stopped at the rounding level of its gradient, above the tolerance"
    SPLIT = "converged; moving whole tokens did not help, but splitting a token's mass would"
    NOT_GLOBAL = "converged to a stationary point, but a better position of a token exists"
    PLAN_SPLITS = "converged, but the labels are not an optimal plan, which the scheme assumes"
    PINNED = "converged on the nodes, but they pin the mass: tau |v| is below their spacing"
    STALLED = "the minimiser stalled above the requested tolerance"
    MAX_EVALUATIONS = "the step ran out of evaluations before it converged"

    @property
    def success(self) -> bool:
        """Whether the result is stationary (to the tolerance or to rounding)."""
        return self not in (StepStatus.STALLED, StepStatus.MAX_EVALUATIONS)


@dataclass(frozen=True, kw_only=True)
class Certificate:
    r"""What is known about the optimality of a step.

    Attributes
    ----------
    plan_gap : float
        Excess of the used plan's cost over the optimal cost, relative to that cost; infinite
        where nothing is known (too many tokens for a plan, and not all of them proven).
    plan_checked_by : str
        ``"network simplex"`` (POT) or ``"potentials"``: :math:`2\tau V` gives dual potentials, and
        `plan_gap` is the excess over the dual value.
    gradient_norm : float
        On fixed nodes the gap relative to its value at the start; for tokens
        :math:`(\sum_j a_j |g_j/a_j|^2)^{1/2}` relative to its value at the start of the step.
    optimality_gap : float
        Frank-Wolfe gap :math:`\sum_i a_i gap_i`, in units of energy: a bound if ``proven``,
        the largest that was found otherwise.
    optimality : {"proven", "searched", "failed", "unchecked"}
        ``proven``: every token's position is proven to be the global minimum of its own
        problem.  ``searched``: nodes and local refinement found nothing better, which is no proof.
        ``failed``: something better was found; `optimality_gap` is its size.  ``unchecked``: some
        tokens are not proven and were not searched, because the caller asked for less or there
        are too many.
    convex : bool
        Whether the energy is convex in the measure (sign +1 and every head of positive weight
        positive semidefinite); the gap then bounds the distance to the global minimum over
        *all* measures.  Otherwise a zero gap is a necessary condition.
    proven_tokens, total_tokens : int
        Tokens with a proof, out of how many.
    """

    plan_gap: float
    plan_checked_by: str
    gradient_norm: float
    optimality_gap: float
    optimality: str
    convex: bool
    proven_tokens: int
    total_tokens: int


@dataclass(frozen=True, kw_only=True)
class StepStats:
    """Work of a step.

    Attributes
    ----------
    iterations : int
        Iterations of the position solver.
    gradient_evaluations : int
        Kernel passes of the position solver (objective, gradient and Hessian products).
    certificate_evaluations : int
        Kernel passes of the certificate, restarts' refinements included.
    plans : int
        Calls of the transport solver.
    plan_changes : int
        How often the plan changed.
    restarts : int
        Restarts from a competing position.
    """

    iterations: int
    gradient_evaluations: int
    certificate_evaluations: int = 0
    plans: int = 0
    plan_changes: int = 0
    restarts: int = 0


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    r"""The scalars of a step, as a curve keeps them.

    Attributes
    ----------
    time : float
        Time of the measure the step starts from.
    step : float
        Proximal step ``tau``.
    energy_time : float
        Time at which the energy is taken.
    objective : float
        :math:`\Phi = W^2/(2\tau) + E`.
    distance_squared : float
        Transport cost of the step's plan (weighted by the frozen mobility).
    energy_before, energy : float
        E at `energy_time` of the measure before and after the step.
    certificate : Certificate
    status : StepStatus
    stats : StepStats
    """

    time: float
    step: float
    energy_time: float
    objective: float
    distance_squared: float
    energy_before: float
    energy: float
    certificate: Certificate
    status: StepStatus
    stats: StepStats

    @property
    def success(self) -> bool:
        """Whether the step is stationary."""
        return self.status.success

    @property
    def message(self) -> str:
        """The status as a sentence."""
        return self.status.value


@dataclass(frozen=True, kw_only=True, eq=False)
class StepResult(StepRecord):
    r"""A step: its record, the new cloud :math:`\nu` and the plan :math:`\pi`.

    Attributes
    ----------
    cloud : TokenCloud
        The new measure; token ``i`` carries the mass of token ``i`` whenever no mass is split.
    plan : (n, m) sparse array
        Coupling of the old and the new cloud.
    """

    cloud: TokenCloud
    plan: coo_array

    def record(self) -> StepRecord:
        """The scalars alone."""
        return StepRecord(**{f.name: getattr(self, f.name) for f in fields(StepRecord)})
