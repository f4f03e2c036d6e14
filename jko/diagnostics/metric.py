r"""Metric speed of curves in the weighted Wasserstein distance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .._validation import choice
from ..runs.curve import Curve
from ..transport.weighted import METHODS, weighted_distance

__all__ = ["metric_derivative"]

Array = NDArray[np.float64]


def metric_derivative(curve: Curve, method: str = "frozen", indices: Array | None = None) -> Array:
    r"""Difference quotients :math:`W(\mu_k, \mu_{k+1}; \Theta_{t_k}) / (t_{k+1} - t_k)` of a curve.

    Along the gradient flow they tend to the slope :math:`G(\mu_k, t_k)` as the times approach (first
    order for ``"frozen"``, whose mobility is taken at the first measure).

    Parameters
    ----------
    curve : Curve
        With its model.
    method : {"frozen", "dynamic"}
        Distance used.
    indices : array of int, optional
        Intervals ``k`` to evaluate; all by default.

    Returns
    -------
    (len(indices),) array

    Raises
    ------
    ValueError
        If the curve carries no model, or for an unknown method.
    """
    choice(method, "method", METHODS)
    if curve.model is None:
        raise ValueError("curve.model is None: distances need the weight path")
    chosen = np.arange(curve.times.size - 1) if indices is None else np.asarray(indices)
    speeds = np.empty(chosen.size)
    for position, k in enumerate(chosen):
        left, right = curve.cloud(int(k)), curve.cloud(int(k) + 1)
        t = float(curve.times[k])
        distance = weighted_distance(left, right, curve.model, t, method)
        speeds[position] = distance / (curve.times[k + 1] - curve.times[k])
    return speeds
