"""Richardson extrapolation along geodesics."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..attention.model import AttentionModel
from ..measures import TokenCloud
from ..steps.proximal import StepOptions
from ..steps.result import StepResult, StepStats, StepStatus
from .base import Past, Scheme, along
from .onestep import JKO, Midpoint

__all__ = ["Richardson"]


@dataclass(frozen=True, kw_only=True)
class Richardson:
    r"""One step and two half steps of a one-step scheme, extrapolated label by label.

    .. math::

        x_{k+1} = \exp_{c}\big(s \log_{c} f\big), \qquad s = 2^p / (2^p - 1),

    ``c`` after one step of :math:`\tau`, ``f`` after two of :math:`\tau/2`, ``p`` the order of the base.  JKO
    becomes second order.  The midpoint scheme has an error in even powers of the step and becomes
    fourth order at once.  The result of the extrapolation minimises nothing: that the energy
    decreases is not guaranteed.

    The scalars of a step's result describe the second half step, with the work of all three;
    ``energy`` is that of the new measure where ``energy_time`` is its time.  If a plan splits
    mass, the status is ``PLAN_SPLITS``.

    Parameters
    ----------
    base : JKO or Midpoint
        Any scheme that remembers one state.
    """

    base: Scheme = field(default_factory=JKO)

    memory = 1

    def __post_init__(self) -> None:
        if self.base.memory != 1:
            raise ValueError(f"base must be a one-step scheme, got {self.base.name!r}")

    @property
    def name(self) -> str:
        """``richardson-jko``, ``richardson-midpoint``."""
        return f"richardson-{self.base.name}"

    @property
    def order(self) -> int:
        """One more than the base, two more if its error has even powers only."""
        symmetric = self.base == Midpoint()
        return self.base.order + (2 if symmetric else 1)

    def advance(
        self, model: AttentionModel, past: tuple[Past, ...], end: float, options: StepOptions
    ) -> StepResult:
        """Three steps of the base and the extrapolation."""
        last = past[-1]
        middle = last.time + (end - last.time) / 2
        coarse = self.base.advance(model, past, end, options)
        half = self.base.advance(model, past, middle, options)
        fine = half
        if not _splits(half):
            there = Past(time=middle, cloud=half.cloud)
            fine = self.base.advance(model, (there,), end, options)
        results = (coarse, half, fine)
        fine = replace(fine, stats=_total(results), status=_worst(results))
        if any(map(_splits, results)):
            return replace(fine, status=StepStatus.PLAN_SPLITS)
        s = 2**self.base.order / (2**self.base.order - 1)
        points = along(coarse.cloud.points, fine.cloud.points, s)
        cloud = TokenCloud(points, last.cloud.weights)
        if fine.energy_time == end:
            fine = replace(fine, energy=model.energy(cloud, end))
        return replace(fine, cloud=cloud)


def _splits(result: StepResult) -> bool:
    rows, columns = result.plan.coords
    return result.status is StepStatus.PLAN_SPLITS or bool((rows != columns).any())


def _worst(results: tuple[StepResult, ...]) -> StepStatus:
    """The first status that is no success, or the last one."""
    failed = [result.status for result in results if not result.success]
    return failed[0] if failed else results[-1].status


def _total(results: tuple[StepResult, ...]) -> StepStats:
    names = vars(results[0].stats)
    return StepStats(**{name: sum(getattr(r.stats, name) for r in results) for name in names})
