r"""The article's decomposition of the explicit energy change under Ornstein-Uhlenbeck heads.

At fixed measure, Ito's formula for :math:`dD = (I - D)\,dt + \sqrt{\sigma^2}\,dW^{sym}` gives

.. math::

    dE &= \underbrace{\tfrac12\sum_h w_h \sum_{ij} a_i a_j e_{hij} \langle x_i, (I - D_h) x_j\rangle}_{drift} dt \\
       &+ \underbrace{\tfrac{\sigma^2}{8}\sum_h w_h\sum_{ij} a_i a_j e_{hij}(1 + \langle x_i, x_j\rangle^2)}_{Ito\ correction} dt
       + martingale,

with :math:`e_{hij} = e^{\langle x_i, D_h x_j\rangle}`.  The martingale part of an interval of the base
grid is the first-order increment
:math:`\tfrac12\sum w_h \sum a_i a_j e_{hij} \langle x_i, \Delta D_h x_j\rangle` minus the drift.  What is left of the true change is
the *remainder*, of zero mean up to O(base_step) and variance O(base_step).  The pathwise balance of
`energy_balance` needs none of this: the path is piecewise linear.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..attention.weights import OrnsteinUhlenbeck
from ..runs.curve import Curve

__all__ = ["ItoBalance", "ito_balance"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class ItoBalance:
    """Explicit energy change of a curve, integrated from its start, on the base grid.

    Attributes
    ----------
    times : (M+1,)
        Times of the base grid within the curve's span.
    total, drift, correction, martingale, remainder : (M+1,)
        ``total = drift + correction + martingale + remainder``.
    """

    times: Array
    total: Array
    drift: Array
    correction: Array
    martingale: Array
    remainder: Array


def ito_balance(curve: Curve) -> ItoBalance:
    """Decompose the explicit energy change along a curve (geodesically interpolated).

    ``total = drift + correction + martingale + remainder``, interval by interval of the base grid.

    Raises
    ------
    ValueError
        If the curve's weight path is not an Ornstein-Uhlenbeck path.
    """
    path = None if curve.model is None else curve.model.path
    if curve.model is None or not isinstance(path, OrnsteinUhlenbeck):
        raise ValueError("curve must follow an OrnsteinUhlenbeck weight path")
    slack = 1e-12 * max(1.0, abs(float(curve.times[-1])))
    inside = (path.times >= curve.times[0] - slack) & (path.times <= curve.times[-1] + slack)
    grid = np.flatnonzero(inside)
    if grid.size < 2:
        raise ValueError("curve must span at least one interval of the path's base grid")
    steps = np.zeros((grid.size, 4))
    for row, k in enumerate(grid[:-1], start=1):
        steps[row] = _increment(curve, path, int(k))
    total, drift, correction, first_order = np.cumsum(steps, axis=0).T
    return ItoBalance(
        times=path.times[grid],
        total=total,
        drift=drift,
        correction=correction,
        martingale=first_order - drift,
        remainder=total - first_order - correction,
    )


def _increment(curve: Curve, path: OrnsteinUhlenbeck, k: int) -> Array:
    """Total, drift, correction and first-order increment over one interval of the base grid."""
    model = curve.model
    assert model is not None
    left, right = float(path.times[k]), float(path.times[k + 1])
    cloud = curve.at(float(np.clip(left, curve.times[0], curve.times[-1])))
    fields = model.own_fields(cloud, left, 2)
    weights, x = cloud.weights, cloud.points
    drift = fields.energy_time_derivative(weights, np.eye(cloud.dim) - path.matrices[k])
    first_order = fields.energy_time_derivative(weights, path.matrices[k + 1] - path.matrices[k])
    squared = np.einsum("ni,hnij,nj->hn", x, fields.sums.second_moment, x, optimize=True)
    charge = fields.heads.weights[:, None] * fields.head_mobility * (1 + squared)
    correction = model.sign * path.variance / 8 * float(charge.sum(axis=0) @ weights)
    total = model.energy(cloud, right) - model.energy(cloud, left)
    h = right - left
    return np.array([total, drift * h, correction * h, first_order])
