r"""Derivatives of V bounded on a cover of the sphere by small cells.

At a cell's center ``z`` of radius ``r`` the Hessian is known, and moves by at most ``L r`` inside,
``L`` the local Lipschitz constant of the Hessian: this bounds concavity, slope and minimum of V
rigorously, and far more tightly than constants for the whole sphere do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..attention.fields import Fields
from .bounds import PotentialBounds
from .branch import Curvature

__all__ = ["SURVEY_LEVEL", "Survey"]

Array = NDArray[np.float64]

#: Subdivision level of the surveyed cells: 1024 arcs, 8192 triangles.
SURVEY_LEVEL = {2: 8, 3: 5}


@dataclass(frozen=True, kw_only=True, eq=False)
class Survey:
    """Bounds of V on caps.

    Attributes
    ----------
    centers : (N, d)
    radii : (N,)
    concavity : (N,)
        ``Hess V >= -`` this on the cap, clipped at zero.
    bounds : PotentialBounds
        For the whole sphere, from the caps.
    """

    centers: Array
    radii: Array
    concavity: Array
    bounds: PotentialBounds

    @classmethod
    def of(cls, fields: Fields, radii: Array, curvature: Curvature) -> Survey:
        """From order-2 fields at the centers of a cover with the given radii."""
        mobility, bounds = fields.head_mobility, curvature.bounds
        third = curvature.third(mobility, radii)
        values = np.linalg.eigvalsh(fields.first_variation_hessian())
        # the normal direction contributes a zero eigenvalue, which only loosens the bounds
        concavity = np.minimum(-values[:, 0] + third * radii, curvature.concavity(mobility, radii))
        concavity = np.maximum(concavity, 0)
        bend = np.abs(values).max(axis=1) + third * radii
        slope = np.sqrt(np.einsum("md,md->m", fields.gradient, fields.gradient))
        drop = slope * radii + bend * radii**2 / 2
        tightened = replace(
            bounds,
            lower=max(bounds.lower, float((fields.first_variation - drop).min())),
            lipschitz=min(bounds.lipschitz, float((slope + bend * radii).max())),
            concavity=min(bounds.concavity, float(concavity.max())),
        )
        return cls(centers=fields.at, radii=radii, concavity=concavity, bounds=tightened)
