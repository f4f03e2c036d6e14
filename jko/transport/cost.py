r"""Ground costs: squared great-circle distance weighted by the frozen effective mobility.

==============  =============================================================================
``"source"``    :math:`\hat b(x)\, d(x, y)^2`
``"midpoint"``  :math:`\hat b(m)\, d(x, y)^2`, ``m`` the geodesic midpoint
``"geodesic"``  :math:`\big(\int_0^1 \sqrt{\hat b(\gamma_s)}\,ds\big)^2 d(x, y)^2` along the great circle
==============  =============================================================================

The mobility is that of the measure and heads at which the step starts.  The last two are
one formula with one and with eight Gauss-Legendre nodes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import sphere
from .._validation import choice
from ..attention.fields import Fields
from ..attention.model import AttentionModel
from ..measures import TokenCloud

__all__ = ["COSTS", "AveragedCost", "CostTerms", "GroundCost", "SourceCost", "ground_cost"]

Array = NDArray[np.float64]
IntArray = NDArray[np.intp]
Rows = IntArray | slice

COSTS = ("source", "midpoint", "geodesic")

#: Gauss-Legendre nodes along the great circle for the "geodesic" cost.
GEODESIC_NODES = 8

#: Pairs evaluated at once when a cost matrix needs mobilities along geodesics.
PAIR_BLOCK = 50_000


@dataclass(frozen=True, kw_only=True, eq=False)
class CostTerms:
    r"""Costs :math:`c(x_i, y)` of ``K`` pairs of a source and a target, and what they rest on.

    Attributes
    ----------
    value : (K,)
        :math:`c(x_i, y)`.
    gradient : (K, d)
        :math:`\nabla_y c(x_i, y)`, tangent at ``y``.
    back : (K, d)
        :math:`\log_y x_i`.
    """

    value: Array
    gradient: Array
    back: Array

    @classmethod
    def at_rest(cls, points: Array) -> CostTerms:
        """Of sources with themselves."""
        zero = np.zeros(points.shape)
        return cls(value=zero[:, 0], gradient=zero, back=zero)


class GroundCost(ABC):
    r"""A cost :math:`c(x_i, y)` from fixed source points, with its gradient in ``y``.

    Attributes
    ----------
    points : (n, d)
        Source points ``x_i``.
    mobility : (n,)
        Mobility ``beta_i`` at the sources.
    """

    points: Array
    mobility: Array

    @abstractmethod
    def pairs(self, rows: IntArray, y: Array) -> Array:
        """``c(x_rows[k], y_k)``, shape (K,)."""

    @abstractmethod
    def terms(self, rows: Rows, y: Array) -> CostTerms:
        """Costs, gradients and geodesics of the pairs ``(x_rows[k], y_k)``."""

    def gradient(self, rows: IntArray, y: Array) -> Array:
        """Gradient in ``y_k`` of ``c(x_rows[k], y_k)``, tangent, shape (K, d)."""
        return self.terms(rows, y).gradient

    @abstractmethod
    def matrix(self, y: Array) -> Array:
        """All costs, shape (n, m)."""

    @abstractmethod
    def take(self, index: IntArray) -> GroundCost:
        """The same cost from some of the sources."""

    def curvature(self, rows: Rows, back: Array) -> tuple[Array, Array]:
        r"""Numbers ``p``, ``q`` (K,) with the Hessian in ``y_k`` being ``p back back^T + q P_y``.

        :math:`2\beta [u u^T + \theta\cot\theta (P_y - u u^T)]`, ``u = back / theta`` the unit tangent of
        the geodesic.  Exact for ``"source"``, the leading part for the other costs (they use it
        as a preconditioner only).  ``back`` (K, d) is that of `terms`.
        """
        squared = np.vecdot(back, back)
        ratio = theta_cot_theta(np.sqrt(squared))
        # (1 - theta cot theta) / theta^2 tends to 1/3
        along = np.divide(1 - ratio, squared, out=np.full_like(ratio, 1 / 3), where=squared > 1e-16)
        twice = 2 * self.mobility[rows]
        return twice * along, twice * ratio


def theta_cot_theta(angle: Array) -> Array:
    r""":math:`\theta\cot\theta`, one at zero."""
    safe = np.where(angle > 1e-8, angle, 1.0)
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(angle > 1e-8, safe / np.tan(safe), 1.0)


def any_log(x: Array, y: Array) -> Array:
    """`sphere.log`, with an arbitrary direction of length pi at antipodal pairs.

    There the squared distance has a concave kink and every such direction is a limit of
    gradients; a minimiser never sits on it, an iterate may.
    """
    try:
        return sphere.log(x, y)
    except sphere.AntipodalError:
        antipodal = np.linalg.norm(x + y, axis=-1) <= sphere.ANTIPODAL_TOLERANCE
        shifted = y.copy()
        axis = np.argmin(np.abs(x[antipodal]), axis=-1)
        shifted[antipodal] += 1e-14 * np.eye(x.shape[-1])[axis]
        return sphere.log(x, sphere.normalize(shifted))


class SourceCost(GroundCost):
    r"""``beta_i d(x_i, y)^2`` with one number ``beta_i`` per source."""

    def __init__(self, points: Array, mobility: Array) -> None:
        self.points = points
        self.mobility = mobility

    def pairs(self, rows: IntArray, y: Array) -> Array:
        return self.mobility[rows] * sphere.distance(self.points[rows], y) ** 2

    def terms(self, rows: Rows, y: Array) -> CostTerms:
        mobility = self.mobility[rows]
        back = any_log(y, self.points[rows])
        value = mobility * np.vecdot(back, back)
        return CostTerms(value=value, gradient=(-2 * mobility)[:, None] * back, back=back)

    def matrix(self, y: Array) -> Array:
        cost: Array = sphere.distance_matrix(self.points, y)
        np.square(cost, out=cost)
        cost *= self.mobility[:, None]
        return cost

    def take(self, index: IntArray) -> SourceCost:
        return SourceCost(self.points[index], self.mobility[index])


class AveragedCost(GroundCost):
    r"""``L^2 d^2``, ``L`` the average of ``sqrt(bhat)`` over Gauss-Legendre nodes of the geodesic.

    Parameters
    ----------
    points : (n, d)
        Source points.
    fields : callable
        ``z (m, d), order -> Fields`` of the frozen measure.
    count : int
        Number of nodes; one gives the midpoint cost.
    """

    def __init__(
        self, points: Array, fields: Callable[[Array, int], Fields], count: int
    ) -> None:
        self.points = points
        self.mobility = fields(points, 0).effective_mobility
        self._fields = fields
        nodes, weights = np.polynomial.legendre.leggauss(count)
        self._nodes, self._weights = (nodes + 1) / 2, weights / 2

    def take(self, index: IntArray) -> AveragedCost:
        return AveragedCost(self.points[index], self._fields, self._nodes.size)

    def _along(self, x: Array, y: Array, order: int) -> tuple[Array, Fields]:
        """Geodesic points (Q, K, d) and the fields at them, flattened to (Q K)."""
        curve = sphere.exp(x, self._nodes[:, None, None] * any_log(x, y))
        return curve, self._fields(curve.reshape(-1, x.shape[1]), order)

    def pairs(self, rows: IntArray, y: Array) -> Array:
        x = self.points[rows]
        root = np.sqrt(self._along(x, y, 0)[1].effective_mobility)
        average = self._weights @ root.reshape(self._nodes.size, -1)
        value: Array = (average * sphere.distance(x, y)) ** 2
        return value

    def terms(self, rows: Rows, y: Array) -> CostTerms:
        r"""Chain rule through Jacobi fields: a move of ``y`` moves :math:`\gamma_s` by ``s`` times
        its part along the geodesic and :math:`\sin(s\theta)/\sin\theta` times its normal part."""
        x = self.points[rows]
        back = any_log(y, x)
        angle = np.sqrt(np.einsum("kd,kd->k", back, back))
        curve, fields = self._along(x, y, 1)
        shape = curve.shape
        root = np.sqrt(fields.effective_mobility).reshape(shape[:2])
        slope = fields.effective_mobility_gradient.reshape(shape) / (2 * root[..., None])
        away = -np.divide(back, angle[:, None], out=np.zeros_like(back), where=angle[:, None] > 0)
        remaining = (1 - self._nodes)[:, None] * angle
        # unit tangent of the geodesic at the nodes, pointing away from x
        ahead = np.cos(remaining)[..., None] * away + np.sin(remaining)[..., None] * y
        along = np.einsum("qkd,qkd->qk", slope, ahead)
        normal = slope - along[..., None] * ahead
        s = self._nodes[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = np.where(angle > 1e-8, np.sin(s * angle) / np.sin(angle), s)
        pulled = s[..., None] * along[..., None] * away + spread[..., None] * normal
        rate = sphere.project(y, np.einsum("q,qkd->kd", self._weights, pulled))
        average = self._weights @ root
        gradient = 2 * average[:, None] * (angle[:, None] ** 2 * rate - average[:, None] * back)
        return CostTerms(value=(average * angle) ** 2, gradient=gradient, back=back)

    def matrix(self, y: Array) -> Array:
        n, m = self.points.shape[0], y.shape[0]
        cost = np.empty(n * m)
        for start in range(0, n * m, PAIR_BLOCK):
            flat = np.arange(start, min(start + PAIR_BLOCK, n * m))
            rows, columns = np.divmod(flat, m)
            cost[flat] = self.pairs(rows, y[columns])
        return cost.reshape(n, m)


def ground_cost(kind: str, model: AttentionModel, cloud: TokenCloud, t: float) -> GroundCost:
    r"""The ground cost ``kind`` with :math:`\hat b` frozen at ``(cloud, t)``.

    Raises
    ------
    ValueError
        If ``kind`` is none of ``"source"``, ``"midpoint"``, ``"geodesic"``.
    """
    choice(kind, "cost", COSTS)
    if kind == "source":
        mobility = model.effective_mobility(cloud.points, cloud, t)
        return SourceCost(cloud.points, mobility)

    def fields(at: Array, order: int) -> Fields:
        return model.fields(at, cloud, t, order)

    return AveragedCost(cloud.points, fields, 1 if kind == "midpoint" else GEODESIC_NODES)
