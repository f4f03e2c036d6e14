r"""Wasserstein distances between token clouds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .. import sphere
from ..measures import TokenCloud, require_cloud
from .plan import optimal_plan, require_fits

__all__ = ["labelled_distance", "wasserstein"]

Array = NDArray[np.float64]


def require_same_dimension(cloud_a: TokenCloud, cloud_b: TokenCloud) -> None:
    """Raise ``ValueError`` if two clouds live on different spheres."""
    require_cloud(cloud_a, "cloud_a")
    require_cloud(cloud_b, "cloud_b")
    if cloud_a.dim != cloud_b.dim:
        raise ValueError(
            f"cloud_b must have dimension {cloud_a.dim} like cloud_a, got {cloud_b.dim}"
        )


def wasserstein(cloud_a: TokenCloud, cloud_b: TokenCloud) -> float:
    r"""Wasserstein distance :math:`W_2` on the sphere, in radians.

    :math:`W_2^2 = \min_\pi \sum_{ij} \pi_{ij} d(x_i, y_j)^2` with the great-circle distance; the
    clouds may differ in size and weights.  Labels are never assumed: POT finds the plan.
    """
    require_same_dimension(cloud_a, cloud_b)
    require_fits(cloud_a.n, cloud_b.n)
    cost = sphere.distance_matrix(cloud_a.points, cloud_b.points) ** 2
    return float(np.sqrt(optimal_plan(cost, cloud_a.weights, cloud_b.weights).cost))


def labelled_distance(points_a: Array, points_b: Array, weights: Array) -> float:
    r"""Labelled distance :math:`(\sum_i a_i d(x_i, y_i)^2)^{1/2} \ge W_2`, in radians."""
    return float(np.sqrt(weights @ sphere.distance(points_a, points_b) ** 2))
