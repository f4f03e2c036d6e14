r"""The flows of heads of low rank, without ever forming a head.

Everything the flows need goes through the coordinates :math:`L_h y` and :math:`R_h y` of the tokens:

.. math::

    \langle x, D_h y\rangle = \tfrac12\big(\langle L_h x, R_h y\rangle + \langle R_h x, L_h y\rangle\big),
    \qquad
    \sum_h c_h(x) D_h m_h(x) = \sum_h L_h^T \tfrac{c_h}{2} R_h m_h + R_h^T \tfrac{c_h}{2} L_h m_h .

One evaluation along a piecewise linear path of heads with ``r`` rows per factor takes ``8 n H r d``
multiplications beside the scores.  Densely it takes ``2 n H d^2`` and, what costs more for a
sentence of tokens, ``H d^2`` entries are interpolated and checked at every time.  Milliseconds of
processor time of one right-hand side of a flow, with d = 384, H = 12 and r = 32:

======  ========  =====
tokens  low rank  dense
======  ========  =====
16      4.5       39
27      6.2       42
64      12        55
256     48        143
======  ========  =====
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import sphere
from .._validation import finite_array, finite_number, require_unit
from ..measures import TokenCloud
from .factored import FactoredHeads, FactoredPath
from .fields import Fields, finite
from .kernel import KernelSums
from .model import AttentionModel

__all__ = ["LowRankFields", "LowRankModel"]

Array = NDArray[np.float64]

#: Scores held at once, ``H m n``: 128 MiB.  More are left to the tiles of the dense kernel.
MOST_SCORES = 2**24


@dataclass(frozen=True, kw_only=True)
class LowRankFields(Fields):
    """Fields of factored heads.

    Attributes
    ----------
    factored : FactoredHeads
        The heads, again.
    path : FactoredPath
        Where they come from.
    points : (n, d)
        The sources.
    share : (H, m, n)
        Softmax weights of the sources at every point, rows summing to one.
    coordinates : (H, n, 2 r)
        ``R_h y`` and ``L_h y`` of the sources, side by side.
    """

    factored: FactoredHeads
    path: FactoredPath
    points: Array
    share: Array
    coordinates: Array

    @cached_property
    def _mean(self) -> Array:
        return self.share @ self.points

    @cached_property
    def _mobility_pull(self) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return self._pull(self._weighted_mobility)

    @cached_property
    def _factors(self) -> Array:
        """``L_h`` above ``R_h``, shape (H, 2 r, d)."""
        return np.concatenate([self.factored.left, self.factored.right], axis=1)

    @cached_property
    def _inner(self) -> Array:
        """``R_h m_h / 2`` and ``L_h m_h / 2``, shape (H, m, 2 r): times the factors, ``D_h m_h``."""
        return self.share @ (self.coordinates / 2)

    def _pull(self, share: Array) -> Array:
        """``sum_h share_h D_h m_h`` for shares (H, m): one matrix product for all heads."""
        inner = (share[..., None] * self._inner).transpose(1, 0, 2)
        factors = self._factors.reshape(-1, self.at.shape[1])
        return inner.reshape(-1, factors.shape[0]) @ factors

    @cached_property
    def log_mobility_gradient(self) -> Array:
        """``grad log b_h = P_x D_h m_h``, shape (H, m, d)."""
        return sphere.project(self.at, self._inner @ self._factors)

    def energy_time_derivative(self, weights: Array, derivative: Array) -> float:
        """``sign/2 sum_h w_h iint <x, D_h' y> exp<x, D_h y>``, at the measure's own points.

        Factored where ``derivative`` is the path's own array for a piece, dense otherwise.
        """
        rate = self.path.factored_rate(derivative)
        if rate is None:
            return super().energy_time_derivative(weights, derivative)
        scores, _ = _scores(rate, self.at, self.points)
        rates = np.einsum("hmn,hmn->hm", self.share, scores)
        with np.errstate(over="ignore", invalid="ignore"):
            density = np.einsum("hm,hm->m", self._weighted_mobility, rates)
            value = 0.5 * self.sign * float(weights @ density)
        return finite(value, "time derivative of the energy", self.heads)


def _scores(heads: FactoredHeads, at: Array, points: Array) -> tuple[Array, Array]:
    """``<x, D_h y>``, shape (H, m, n), and the coordinates of the sources that made them."""
    left, right = heads.coordinates(points)
    sources = np.concatenate([right, left], axis=2)
    x = (left, right) if at is points else heads.coordinates(at)
    targets = np.concatenate(x, axis=2)
    return 0.5 * targets @ sources.swapaxes(1, 2), sources


@dataclass(frozen=True, eq=False, init=False)
class LowRankModel(AttentionModel):
    """An `AttentionModel` on a path of factored heads: the same numbers, in a fraction of the time.

    Second moments (order 2, the Hessian of a step) and clouds of more than ``MOST_SCORES`` scores
    are evaluated by the dense kernel.

    Parameters
    ----------
    path : FactoredPath
    sign : {+1, -1}
        As in `AttentionModel`.

    Raises
    ------
    TypeError
        For a path that is not factored.
    """

    def __init__(self, path: FactoredPath, sign: int = 1) -> None:
        if not isinstance(path, FactoredPath):
            raise TypeError(f"path must be a FactoredPath, got {type(path).__name__}")
        super().__init__(path, sign)

    def fields(self, at: ArrayLike, cloud: TokenCloud, t: float, order: int = 1) -> Fields:
        """Everything at the points ``at`` (m, d) from one pass, as in `AttentionModel`."""
        path = self.path
        assert isinstance(path, FactoredPath)
        points = cloud.points if at is cloud.points else finite_array(at, "at", 2)
        many = path.weights.size * points.shape[0] * cloud.n > MOST_SCORES
        if order >= 2 or many or points.shape[1] != cloud.dim or cloud.dim != path.dim:
            return super().fields(at, cloud, t, order)
        if points is not cloud.points:
            require_unit(points, "at")
        heads = path(finite_number(t, "t"))
        share, coordinates = _scores(heads, points, cloud.points)
        with np.errstate(divide="ignore"):
            share += np.log(cloud.weights)
        shift = share.max(axis=2, keepdims=True)
        np.exp(np.subtract(share, shift, out=share), out=share)
        total = share.sum(axis=2, keepdims=True)
        share /= total
        return LowRankFields(
            at=points,
            heads=heads,
            sign=self.sign,
            sums=KernelSums(order=0, totals=total, shift=shift[..., 0]),
            factored=heads,
            path=path,
            points=cloud.points,
            share=share,
            coordinates=coordinates,
        )
