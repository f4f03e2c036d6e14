r"""Whether nodes are fine enough for a step: the ratio of speed and slope.

A minimiser without a grid has metric speed :math:`W/\tau` equal to the slope ``G`` at its new measure.
On nodes with spacing ``h``, moving mass to a neighbour costs :math:`\hat b h^2/(2\tau)` and gains at most
:math:`|p| h`, so mass does not move at all where :math:`2\tau |v| < h`: it is *pinned*, the speed falls below
the slope, and no smaller step helps.  Step-size studies on nodes need :math:`h \ll \tau |v|`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

__all__ = ["Resolution", "node_spacing"]

Array = NDArray[np.float64]

#: A step counts as pinned when its speed is below this share of the slope.
PINNED_RATIO = 0.5


@dataclass(frozen=True, kw_only=True)
class Resolution:
    r"""How a step on nodes compares with their spacing.

    Attributes
    ----------
    spacing : float
        ``h``, median distance of a node to its nearest neighbour, in radians.
    speed : float
        Metric speed :math:`W/\tau` of the step.
    slope : float
        :math:`(\sum_{ij} P_{ij} |p(z_j)|^2/\beta_i)^{1/2}` at the new measure, ``beta`` the frozen mobility: what
        the speed is without a grid.
    cells : float
        :math:`\tau |v| / h`, root mean square over the mass: node spacings that a step wants to cross.
    """

    spacing: float
    speed: float
    slope: float
    cells: float

    @property
    def ratio(self) -> float:
        """Speed over slope: one if the nodes are fine enough, near zero if mass is pinned."""
        return self.speed / self.slope if self.slope > 0 else 1.0

    @property
    def pinned(self) -> bool:
        """Whether mass is held by the nodes: steps shorter than a cell, speed below the slope."""
        return self.cells < 1 and self.ratio < PINNED_RATIO

    def __str__(self) -> str:
        return (
            f"speed/slope = {self.ratio:.3g}, tau |v| / h = {self.cells:.3g} "
            f"(h = {self.spacing:.3g})"
        )


def node_spacing(nodes: Array) -> float:
    r"""Median over ``i`` of :math:`\min_{j \ne i} d(z_i, z_j)`, in radians; pi for a single node."""
    if nodes.shape[0] == 1:
        return float(np.pi)
    distances, _ = cKDTree(nodes).query(nodes, k=2)
    chord = np.asarray(distances)[:, 1]
    positive = chord[chord > 0]
    return float(2 * np.arcsin(min(np.median(positive) / 2, 1.0))) if positive.size else 0.0


def measure_resolution(
    nodes: Array, mass: Array, mobility: Array, gradient: Array, transport: float, step: float
) -> Resolution:
    """From the plan's entries: mass, mobility of the source and gradient at the target.

    ``transport`` is :math:`W^2/(2\tau)`.
    """
    length = np.linalg.norm(gradient, axis=1)
    slope_squared = float(mass @ (length**2 / mobility))
    travel_squared = float(mass @ (step * length / mobility) ** 2)
    spacing = node_spacing(nodes)
    return Resolution(
        spacing=spacing,
        speed=float(np.sqrt(max(2 * transport / step, 0.0))),
        slope=float(np.sqrt(slope_squared)),
        cells=float(np.sqrt(travel_squared)) / spacing if spacing > 0 else np.inf,
    )
