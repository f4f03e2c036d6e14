r"""Curves of token clouds: what a minimizing movement or a direct flow returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .. import sphere
from .._validation import finite_number
from ..attention.model import AttentionModel
from ..measures import TokenCloud
from ..steps.result import StepRecord

if TYPE_CHECKING:
    import xarray

__all__ = ["Curve", "CurveStatus"]

Array = NDArray[np.float64]


class CurveStatus(Enum):
    """How a run ended; the value is the sentence a user reads."""

    COMPLETE = "the run reached the end of its time span"
    UNCONVERGED = "the run reached the end of its time span, but some steps did not converge"
    INTERRUPTED = "the run was interrupted; the curve holds what was done until then"
    STEP_FAILED = "a step failed; the curve holds what was done until then"
    INTEGRATOR_FAILED = "the integrator failed; the curve holds what was done until then"

    @property
    def success(self) -> bool:
        """Whether the whole span was covered by valid steps."""
        return self is CurveStatus.COMPLETE


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Curve:
    r"""A time-discrete curve of token clouds.

    Attributes
    ----------
    model : AttentionModel or None
        None for a curve loaded from a store whose weight path was a bare callable.
    kind : {"movement", "flow"}
        Minimizing movement or direct particle flow.
    scheme : str
        ``"jko"``, ... for movements; ``"gradient"`` or ``"softmax"`` for flows.
    times : (K+1,)
    points : (K+1, n, d)
    weights : (K+1, n)
    energy : (K+1,)
        ``E(mu_k, t_k)``.
    steps : tuple of StepRecord
        One per step of a movement; empty for flows.
    integrals : mapping of str to (K+1,)
        For flows, integrals from the start carried with the ODE:
        ``energy_time_derivative`` :math:`\int\partial_t E`, ``metric_speed_squared``
        :math:`\int\int\hat b|v|^2`, ``slope_squared`` :math:`\int G^2`, ``defect``
        :math:`\int\frac12\int\hat b|v - v_{grad}|^2`.
    evaluations : int
        Kernel passes spent on the run.
    cost : str
        Ground cost of a movement.
    status : CurveStatus
    detail : str
        What failed, if something did.
    """

    model: AttentionModel | None
    kind: str
    scheme: str
    times: Array
    points: Array
    weights: Array
    energy: Array
    status: CurveStatus
    steps: tuple[StepRecord, ...] = ()
    integrals: Mapping[str, Array] = field(default_factory=dict)
    evaluations: int = 0
    cost: str = "source"
    detail: str = ""

    @property
    def success(self) -> bool:
        """Whether the whole span was covered by valid steps."""
        return self.status.success

    @property
    def message(self) -> str:
        """The status as a sentence, with what failed."""
        return f"{self.status.value}: {self.detail}" if self.detail else self.status.value

    def cloud(self, index: int) -> TokenCloud:
        """The cloud at ``times[index]``."""
        return TokenCloud(self.points[index], self.weights[index])

    @property
    def on_nodes(self) -> bool:
        """Whether the mass moves between fixed nodes: constant points, changing weights."""
        constant = bool((self.points == self.points[0]).all())
        return constant and not bool((self.weights == self.weights[0]).all())

    @property
    def final(self) -> TokenCloud:
        """The last cloud."""
        return self.cloud(-1)

    def at(self, t: float) -> TokenCloud:
        """The cloud at any time of the span, by geodesic interpolation of the labelled tokens.

        On fixed nodes the weights are interpolated linearly instead.

        Raises
        ------
        ValueError
            If ``t`` lies outside the span.
        """
        t = finite_number(t, "t")
        first, last = self.times[0], self.times[-1]
        slack = 1e-12 * max(1.0, abs(first), abs(last))
        if not first - slack <= t <= last + slack:
            raise ValueError(f"t must lie in [{first}, {last}], got {t}")
        k = int(np.clip(np.searchsorted(self.times, t, "right") - 1, 0, max(len(self.times) - 2, 0)))
        if self.times.size == 1 or t == self.times[k]:
            return self.cloud(k)
        if t >= self.times[k + 1]:
            return self.cloud(k + 1)
        s = (t - self.times[k]) / (self.times[k + 1] - self.times[k])
        points = sphere.geodesic(self.points[k], self.points[k + 1], np.asarray(s))
        return TokenCloud(points, (1 - s) * self.weights[k] + s * self.weights[k + 1])

    def to_xarray(self) -> xarray.Dataset:
        """As an xarray dataset with dimensions time, token, coordinate (and step)."""
        from .store import curve_to_xarray

        return curve_to_xarray(self)

    def save(self, path: str | PathLike[str]) -> None:
        """Write one Zarr store at ``path`` (a directory), readable by `jko.load` and xarray."""
        from .store import save_curve

        save_curve(self, path)

    def __repr__(self) -> str:
        return (
            f"Curve({self.scheme} {self.kind}, t = {self.times[0]:g} .. {self.times[-1]:g}, "
            f"{self.times.size - 1} intervals, n = {self.points.shape[1]}, "
            f"d = {self.points.shape[2]}, {self.status.name.lower()})"
        )
