r"""The unit sphere :math:`S^{d-1} \subset \mathbb{R}^d`, any ``d >= 2``.

Points are unit vectors along the last axis, tangent vectors at ``x`` are ambient
vectors orthogonal to ``x``; every function broadcasts over leading axes.  Angles and
distances are great-circle lengths in radians.  No formula here takes ``arccos`` of an
inner product: that loses half the digits of a short distance and returns zero below
``1e-8``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import SphericalVoronoi
from scipy.spatial.distance import cdist

__all__ = [
    "AntipodalError",
    "circle_nodes",
    "distance",
    "distance_matrix",
    "exp",
    "fibonacci_nodes",
    "geodesic",
    "log",
    "midpoint",
    "node_areas",
    "nodes",
    "normalize",
    "project",
    "restrict",
    "transport",
]

Array = NDArray[np.float64]

#: Below this value of ``|x + y|`` a pair counts as antipodal: the direction of the
#: geodesic is then decided by rounding alone.
ANTIPODAL_TOLERANCE = 4 * np.finfo(float).eps


#: Chords up to which the arcsine of half of them loses no digits.
NEAR = 1.0


class AntipodalError(ValueError):
    """A geodesic between antipodal points was asked for; it is not unique."""


def _norm(v: Array) -> Array:
    return np.sqrt(np.vecdot(v, v))


def _dot(u: Array, v: Array) -> Array:
    return np.vecdot(u, v)


def _require_not_antipodal(length: Array) -> None:
    """Raise where the lengths of ``x + y`` vanish."""
    antipodal = length <= ANTIPODAL_TOLERANCE
    if np.any(antipodal):
        index = tuple(int(i) for i in np.argwhere(np.atleast_1d(antipodal))[0])
        raise AntipodalError(
            f"the points of pair {index[0] if len(index) == 1 else index} are antipodal: "
            "the shortest geodesic between them is not unique, so its logarithm, transport "
            "and midpoint are undefined; move one of the points"
        )


def normalize(x: ArrayLike) -> Array:
    """``x / |x|`` along the last axis (points already unit to rounding are kept bit for bit)."""
    x = np.asarray(x, dtype=float)
    norm = _norm(x)[..., None]
    return np.where(np.abs(norm - 1) <= 2 * np.finfo(float).eps, x, x / norm)


def project(x: ArrayLike, v: ArrayLike) -> Array:
    r"""Orthogonal projection :math:`P_x v = v - \langle v, x\rangle x` on the tangent space at ``x``."""
    x, v = np.asarray(x, dtype=float), np.asarray(v, dtype=float)
    return v - _dot(v, x)[..., None] * x


def restrict(x: Array, form: Array, scale: Array, normal: Array | float = 0.0) -> Array:
    r"""``P_x A P_x + s P_x + k x x^T`` for symmetric matrices A (m, d, d) and numbers s, k (m,).

    What a Hessian on the sphere looks like: of a function on space, A is its Hessian and ``s``
    minus its radial derivative.
    """
    pulled = np.einsum("mij,mj->mi", form, x)
    # A - u x^T - x u^T + s I with u = A x - (x^T A x - s + k) x / 2
    pulled -= ((np.vecdot(pulled, x) - scale + normal) / 2)[:, None] * x
    outer = pulled[:, :, None] * x[:, None, :]
    result: Array = form - outer
    result -= outer.swapaxes(1, 2)
    diagonal = np.arange(x.shape[1])
    result[:, diagonal, diagonal] += scale[:, None]
    return result


def distance(x: ArrayLike, y: ArrayLike) -> Array:
    r"""Great-circle distance :math:`d(x, y) = 2\,\mathrm{atan2}(|x - y|, |x + y|)`, in radians.

    Accurate to rounding, relative for short distances and absolute near :math:`\pi`.
    """
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    return 2 * np.arctan2(_norm(x - y), _norm(x + y))


def distance_matrix(x: ArrayLike, y: ArrayLike) -> Array:
    r"""All great-circle distances :math:`d(x_i, y_j)` between ``x`` (n, d) and ``y`` (m, d), shape (n, m)."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    chord = cdist(x, y)
    result: Array = 2 * np.arcsin(np.minimum(chord / 2, 1))
    far = chord > np.sqrt(2)
    if far.any():
        i, j = np.nonzero(far)
        result[i, j] = distance(x[i], y[j])
    return result


def exp(x: ArrayLike, v: ArrayLike) -> Array:
    r"""Exponential map :math:`\exp_x v = \cos|v|\,x + \sin|v|\,v/|v|` for ``v`` tangent at ``x``."""
    x, v = np.asarray(x, dtype=float), np.asarray(v, dtype=float)
    length = _norm(v)
    ratio = np.divide(np.sin(length), length, out=np.ones_like(length), where=length > 0)
    return normalize(np.cos(length)[..., None] * x + ratio[..., None] * v)


def log(x: ArrayLike, y: ArrayLike) -> Array:
    r"""Logarithm :math:`\log_x y`: the tangent vector at ``x`` with :math:`\exp_x(\log_x y) = y`, length ``d(x, y)``.

    Raises
    ------
    AntipodalError
        If a pair is antipodal; the message gives its index.
    """
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    chord = y - x
    short = _norm(chord)
    if (short <= NEAR).all():
        # y - x has the same tangent part as y, exactly to rounding
        tangent, angle = project(x, chord), 2 * np.arcsin(short / 2)
    else:
        total = y + x
        long = _norm(total)
        _require_not_antipodal(long)
        # so has y + x, which is exact where y is far
        tangent = project(x, np.where((short <= long)[..., None], chord, total))
        angle = 2 * np.arctan2(short, long)
    sine = _norm(tangent)
    ratio = np.divide(angle, sine, out=np.ones_like(angle), where=sine > 0)
    return ratio[..., None] * tangent


def transport(x: ArrayLike, y: ArrayLike, v: ArrayLike) -> Array:
    r"""Parallel transport of ``v`` from ``x`` to ``y`` along the shortest geodesic.

    .. math:: v - \frac{\langle v, y\rangle}{1 + \langle x, y\rangle} (x + y)

    Raises
    ------
    AntipodalError
        If a pair is antipodal; the message gives its index.
    """
    x, y, v = (np.asarray(z, dtype=float) for z in (x, y, v))
    total = x + y
    _require_not_antipodal(_norm(total))
    return project(y, v - (2 * _dot(v, y) / _dot(total, total))[..., None] * total)


def midpoint(x: ArrayLike, y: ArrayLike) -> Array:
    """Midpoint of the shortest geodesic, ``(x + y) / |x + y|``; antipodal pairs are an error."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    total = x + y
    _require_not_antipodal(_norm(total))
    return normalize(total)


def geodesic(x: ArrayLike, y: ArrayLike, s: ArrayLike) -> Array:
    r"""The point :math:`\gamma_s = \exp_x(s \log_x y)`; ``s > 1`` extends the geodesic beyond ``y``."""
    return exp(x, np.asarray(s, dtype=float)[..., None] * log(x, y))


def fibonacci_nodes(n: int) -> Array:
    r"""``n`` Fibonacci nodes on S^2, shape (n, 3): nearly equal cells of area :math:`4\pi/n`.

    :math:`z_i = 1 - (2i + 1)/n`, :math:`\phi_i = \pi (1 + \sqrt 5)(i + 1/2)`.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    i = np.arange(n)
    z = 1 - (2 * i + 1) / n
    phi = np.pi * (1 + np.sqrt(5)) * (i + 0.5)
    radius = np.sqrt(1 - z * z)
    return normalize(np.stack([radius * np.cos(phi), radius * np.sin(phi), z], axis=1))


def circle_nodes(n: int) -> Array:
    r"""``n`` equispaced nodes on the circle, shape (n, 2), at the angles :math:`2\pi i/n`."""
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    angle = 2 * np.pi * np.arange(n) / n
    return normalize(np.stack([np.cos(angle), np.sin(angle)], axis=1))


def nodes(n: int, dim: int) -> Array:
    """A deterministic node set: equispaced for ``dim = 2``, Fibonacci for ``dim = 3``.

    >>> from jko import sphere
    >>> sphere.nodes(500, dim=3).shape
    (500, 3)

    Raises
    ------
    ValueError
        For other dimensions, which have no such set here.
    """
    if dim == 2:
        return circle_nodes(n)
    if dim == 3:
        return fibonacci_nodes(n)
    raise ValueError(f"dim must be 2 or 3 for a deterministic node set, got {dim}")


def node_areas(nodes: ArrayLike) -> Array:
    r"""Area of every node's Voronoi cell, shape (n,): lengths on the circle, areas on S^2.

    They sum to :math:`2\pi` or :math:`4\pi`; a density on the nodes is ``weights / areas``.  Equispaced
    nodes of the circle all have :math:`2\pi/n`.

    Raises
    ------
    ValueError
        For other dimensions and, on S^2, for fewer than four nodes, nodes that coincide or
        nodes in one plane through the origin.
    """
    nodes = np.asarray(nodes, dtype=float)
    count, dim = nodes.shape
    if dim == 2:
        angle = np.arctan2(nodes[:, 1], nodes[:, 0])
        order = np.argsort(angle)
        gap = np.diff(angle[order], append=angle[order[0]] + 2 * np.pi)
        areas = np.empty(count)
        areas[order] = (gap + np.roll(gap, 1)) / 2
        return areas
    if dim != 3 or count < 4:
        raise ValueError(
            f"nodes must be points of the circle, or at least 4 of S^2, got shape {nodes.shape}"
        )
    return np.asarray(SphericalVoronoi(nodes, threshold=1e-9).calculate_areas())
