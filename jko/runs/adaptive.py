r"""Steps chosen from the difference of the JKO and the midpoint step.

Both start from the same measure; their labelled distance is :math:`C\tau^2`, the local error of JKO, and
the midpoint solution, whose local error is :math:`O(\tau^3)`, is kept.  With that distance held at ``rtol``
the steps are :math:`\tau = (rtol/C)^{1/2}`, the error of the midpoint scheme at the end is :math:`O(\tau^2) = O(rtol)`
and the number of steps grows like :math:`rtol^{-1/2}`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..attention.model import AttentionModel
from ..schemes import JKO, Midpoint, Past
from ..steps.proximal import StepOptions
from ..steps.result import StepError, StepResult, StepStats, StepStatus
from ..transport.distance import labelled_distance

__all__ = ["StepController", "adaptive_steps"]

#: Relative gradient norm to which the JKO step, an error estimate, is solved.
ESTIMATE_TOLERANCE = 1e-5

#: The smallest step, relative to the span.
FLOOR = 1e-9


@dataclass(frozen=True, kw_only=True)
class StepController:
    r"""Proportional-integral control of an error :math:`C\tau^2`.

    .. math:: \tau_{k+1} = \tau_k\, s\, (rtol/e_k)^{0.7/2}\, (e_{k-1}/rtol)^{0.4/2}

    within a factor of 0.2 and 3; a rejected step shrinks by :math:`s\,(rtol/e)^{1/2}`.

    Reference: Gustafsson, ACM Trans. Math. Softw. 17 (1991); Hairer, Wanner, *Solving Ordinary
    Differential Equations II*, IV.2.

    Parameters
    ----------
    rtol : float
        Error to hold per step, in radians: relative to the radius of the sphere.
    safety : float
        The factor ``s``.
    """

    rtol: float
    safety: float = 0.9
    smallest: float = 0.2
    largest: float = 3.0

    def after_success(self, error: float, before: float) -> float:
        """Factor for the next step, given this step's error and that of the one before."""
        ratio = self.rtol / max(error, 1e-8 * self.rtol)
        memory = max(before, 1e-8 * self.rtol) / self.rtol
        return float(np.clip(self.safety * ratio**0.35 * memory**0.2, self.smallest, self.largest))

    def after_rejection(self, error: float) -> float:
        """Factor for another try."""
        return float(np.clip(self.safety * np.sqrt(self.rtol / error), self.smallest, 0.9))


def adaptive_steps(
    model: AttentionModel,
    first: Past,
    end: float,
    rtol: float,
    options: StepOptions,
    step: float | None = None,
) -> Iterator[tuple[float, StepResult]]:
    """Times and midpoint steps from ``first`` to ``end``; the first one tried is ``step``.

    The work counts of a step include its error estimate and the tries before it.  A try whose
    certificate is ``failed``, or that does not converge, is halved.

    Raises
    ------
    StepError
        If the step falls below 1e-9 of the span; the message says why.
    """
    controller = StepController(rtol=rtol)
    past, span = first, end - first.time
    step = _first_step(model, first, rtol, span) if step is None else step
    before, work, why = rtol, _nothing(), "it was given so"
    while past.time < end:
        if step < FLOOR * span:
            raise StepError(
                f"the adaptive step fell to {step:.3g} at t = {past.time:g}, below its floor of "
                f"{FLOOR * span:.3g}; the last try failed because {why}"
            )
        stop = _stop(past.time, step, end)
        tried = _try(model, past, stop, options)
        work = _sum(work, tried.work)
        if tried.result is None:
            step, why = (stop - past.time) / 2, tried.why
        elif tried.error > rtol:
            why = f"its error estimate was {tried.error:.3g}, above rtol = {rtol:g}"
            step = (stop - past.time) * controller.after_rejection(tried.error)
        else:
            step = (stop - past.time) * controller.after_success(tried.error, before)
            before, past = tried.error, Past(time=stop, cloud=tried.result.cloud)
            yield stop, replace(tried.result, stats=work)
            work = _nothing()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Try:
    """A step that may be kept (or None and why not), its error estimate and the work."""

    result: StepResult | None
    error: float
    work: StepStats
    why: str = ""


def _try(model: AttentionModel, past: Past, stop: float, options: StepOptions) -> _Try:
    loose = replace(
        options, certify="none", tolerance=max(options.tolerance, ESTIMATE_TOLERANCE)
    )
    try:
        kept = Midpoint().advance(model, (past,), stop, options)
        work = kept.stats
        why = _reason(kept)
        if why:
            return _Try(result=None, error=0.0, work=work, why=why)
        estimate = JKO().advance(model, (past,), stop, loose)
    except StepError as problem:
        return _Try(result=None, error=0.0, work=_nothing(), why=str(problem))
    cloud = kept.cloud
    error = labelled_distance(cloud.points, estimate.cloud.points, cloud.weights)
    return _Try(result=kept, error=error, work=_sum(work, estimate.stats))


def _reason(result: StepResult) -> str:
    """Why a step cannot be kept, if so."""
    if result.certificate.optimality == "failed":
        return "its certificate failed: a token has a better position elsewhere"
    if not result.success or result.status is StepStatus.PLAN_SPLITS:
        return result.message
    return ""


def _first_step(model: AttentionModel, past: Past, rtol: float, span: float) -> float:
    """Tokens move by about half the square root of ``rtol``, as if C were four speeds squared."""
    velocity = model.velocity(past.cloud, past.time)
    speed = float(np.sqrt(past.cloud.weights @ np.einsum("nd,nd->n", velocity, velocity)))
    return min(span, float(np.sqrt(rtol)) / (2 * max(speed, 1e-300)))


def _stop(time: float, step: float, end: float) -> float:
    """The end of the step; what would leave a sliver is stretched or halved."""
    remaining = end - time
    if remaining <= 1.01 * step:
        return end
    return time + min(step, remaining / 2) if remaining < 2 * step else time + step


def _nothing() -> StepStats:
    return StepStats(iterations=0, gradient_evaluations=0)


def _sum(first: StepStats, second: StepStats) -> StepStats:
    pairs = vars(second).items()
    return StepStats(**{name: getattr(first, name) + count for name, count in pairs})
