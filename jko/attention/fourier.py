r"""Fourier series on the circle and, as the double Fourier sphere, on S^2.

On :math:`x = (\sin\theta\cos\phi, \sin\theta\sin\phi, \cos\theta)` a polynomial of degree L is a
trigonometric polynomial of degree L in both angles: :math:`\cos j\theta` goes with the even
azimuthal frequencies and :math:`\sin j\theta` with the odd ones.  This basis spans more than the
spherical harmonics, ``2(L+1)^2`` functions instead of ``(L+1)^2``, but it is a tensor product: a
point has ``4L`` factors, which are powers of :math:`e^{i\theta}` and :math:`e^{i\phi}`, and both
the moments of a cloud and the values of a series are products of small matrices.

The projection of a function on the basis through its values on a `Grid` reproduces polynomials
of degree L and multiplies the maximum norm by `lebesgue_constant` at most.

References
----------
S. A. Orszag, Fourier series on spheres, Monthly Weather Review 102 (1974).
A. Townsend, H. Wilber, G. B. Wright, Computing with functions in spherical and polar geometries
I, SIAM J. Sci. Comput. 38 (2016).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .._validation import frozen
from .compiled import compiled_factors, compiled_series, has_compiled_series
from .threads import run_tasks
from .tiles import SERIAL_PRODUCT

__all__ = ["Grid", "Series", "features", "grid", "lebesgue_constant", "moments"]

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]

#: Points per block, and blocks per task of the moments.
BLOCK = 512
MOMENT_BLOCKS = 16

#: Entries of the intermediate product of a block of targets: one MiB.
PRODUCT_ENTRIES = 131_072


def features(points: Array, degree: int) -> list[tuple[Array, Array]]:
    """The basis at points (d, B), as pairs of factors (I, B) and (O, B), for ``degree >= 1``.

    Basis functions are the products of an inner and an outer factor of the same pair.  d = 2:
    all frequencies of the angle, and the constant 1.  d = 3: the cosines of the polar angle
    with the even azimuthal frequencies, its sines with the odd ones.  Frequencies ascend.
    """
    if has_compiled_series():
        return compiled_factors(points.T, degree)
    radius = np.hypot(points[0], points[1])
    pole = radius == 0
    around = np.asarray(
        np.where(pole, 1, points[0] + 1j * points[1]) / np.where(pole, 1, radius), dtype=complex
    )
    if points.shape[0] == 2:
        return _factors(None, _powers(around, degree))
    norm = np.hypot(points[2], radius)
    along: Complex = (points[2] + 1j * radius) / np.where(norm == 0, 1, norm)
    return _factors(_powers(along, degree), _powers(around, degree))


def _factors(along: Complex | None, around: Complex) -> list[tuple[Array, Array]]:
    """The pairs of factors from the powers of the polar and the azimuthal exponentials."""
    if along is None:
        return [(_waves(around)[1:], np.ones((1, around.shape[1])))]
    return [
        (np.ascontiguousarray(along.real), _waves(around[0::2])[1:]),
        (np.ascontiguousarray(along.imag[1:]), _waves(around[1::2])),
    ]


def _powers(unit: Complex, degree: int) -> Complex:
    """``unit ** k`` for k = 0..degree by doubling.

    Rounding adds up to that of moving the point by a few units in the last place.
    """
    powers = np.empty((degree + 1, unit.size), dtype=complex)
    powers[0] = 1
    powers[1] = unit
    known = 1
    while known < degree:
        last = min(2 * known, degree)
        np.multiply(powers[1 : last - known + 1], powers[known], out=powers[known + 1 : last + 1])
        known = last
    return powers


def _waves(powers: Complex) -> Array:
    """Rows sin, cos, sin, cos, ... of the given powers."""
    rows = np.empty((2 * powers.shape[0], powers.shape[1]))
    rows[0::2] = powers.imag
    rows[1::2] = powers.real
    return rows


def moments(points: Array, weights: Array, degree: int, threads: int | None = None) -> list[Array]:
    """Moments ``sum_j a_j w(y_j)`` of the basis, one (I, O) matrix for each pair of factors."""
    count = points.shape[0]
    block = max(64, min(BLOCK, SERIAL_PRODUCT // (degree + 2) ** 2))
    share = MOMENT_BLOCKS * block

    def task(start: int) -> list[Array]:
        total: list[Array] = []
        for k in range(start, min(start + share, count), block):
            pairs = features(points[k : k + block].T, degree)
            parts = [(i * weights[k : k + block]) @ o.T for i, o in pairs]
            total = [t + p for t, p in zip(total, parts, strict=True)] if total else parts
        return total

    partial = run_tasks(task, range(0, count, share), 16.0 * degree * count, threads)
    return [np.asarray(sum(parts)) for parts in zip(*partial, strict=True)]


@dataclass(frozen=True, eq=False)
class Grid:
    """Equispaced nodes (Q, d) and the transforms between values there and the basis."""

    degree: int
    nodes: Array
    factors: tuple[tuple[Array, Array], ...]

    def spread(self, moments: list[Array]) -> Array:
        """Masses of the nodes, shape (Q,), with the given moments of the basis."""
        parts = zip(self.factors, moments, strict=True)
        return np.asarray(sum(i.T @ m @ o for (i, o), m in parts)).ravel()

    def series(self, values: Array) -> Series:
        """The series of the functions with the given values (H, Q, P) at the nodes."""
        inner, outer = self.factors[0]
        heads, _, columns = values.shape
        cube = values.swapaxes(1, 2).reshape(heads, columns, inner.shape[1], outer.shape[1])
        # one small product per function: BLAS keeps those on this thread
        parts = [np.matmul(i, np.matmul(cube, o.T)) for i, o in self.factors]
        return Series(self.degree, tuple(part.transpose(3, 0, 1, 2) for part in parts))


@lru_cache(maxsize=64)
def grid(dim: int, degree: int) -> Grid:
    """``2L + 2`` equispaced angles around and, for d = 3, ``L + 1`` from pole to pole.

    The factors carry the normalisation of the discrete Fourier transform.
    """
    size = degree + 1
    roots = _roots_of_unity(4 * size)
    frequencies = np.arange(size)[:, None]
    around = roots[frequencies * 2 * np.arange(2 * size) % roots.size]
    along = roots[frequencies * (2 * np.arange(size) + 1) % roots.size]
    circle = np.stack([around[1].real, around[1].imag], axis=1)
    pairs = _factors(None if dim == 2 else along, around)
    pairs[0][0][0] /= 2
    pairs[0][1][0] /= 1 if dim == 2 else 2
    if dim == 2:
        ((inner, outer),) = pairs
        return Grid(degree, frozen(circle), ((frozen(inner / size), frozen(outer[:, :1])),))
    nodes = np.empty((size, 2 * size, 3))
    nodes[..., :2] = along[1].imag[:, None, None] * circle
    nodes[..., 2] = along[1].real[:, None]
    factors = tuple((frozen(2 / size * inner), frozen(outer / size)) for inner, outer in pairs)
    return Grid(degree, frozen(nodes.reshape(-1, 3)), factors)


def _roots_of_unity(count: int) -> Complex:
    """``exp(2 pi i k / count)``, ``count`` a multiple of 4, from angles of at most pi/4."""
    k = np.arange(count)
    quarter = np.rint(4 * k / count).astype(int)
    roots: Complex = np.exp(2j * np.pi * (k - quarter * (count // 4)) / count)
    return roots * np.array([1, 1j, -1, -1j])[quarter % 4]


def lebesgue_constant(dim: int, degree: NDArray[np.intp]) -> Array:
    """Bounds on the norm of the projection through the grid, as an operator on maxima.

    On one circle ``(2/pi) log(2L + 2) + c``, c between 0.52 and 0.62 for ``L >= 1``; the
    product of two circles for d = 3.
    """
    constant: Array = (2 / np.pi * np.log(2 * degree + 2) + 0.65) ** (dim - 1)
    return constant


@dataclass(frozen=True, eq=False)
class Series:
    """Fourier series of ``H x P`` functions: coefficients (O, H, P, I) for each pair of factors."""

    degree: int
    coefficients: tuple[Array, ...]

    def trimmed(self, allowed: Array) -> tuple[Series, Array]:
        """Without the high frequencies that matter to none of the functions.

        Row h may lose coefficients of the sum ``allowed[h]`` (H,); what it does lose is the
        second result.
        """
        magnitudes = [np.abs(c).sum(axis=2) / allowed[:, None] for c in self.coefficients]
        count = sum(c.shape[0] * c.shape[3] for c in self.coefficients)
        small = 1.0
        while True:
            boxes = [_box(m, small) for m in magnitudes]
            lost = sum(
                m.sum(axis=(0, 2)) - m[:outer, :, :inner].sum(axis=(0, 2))
                for m, (outer, inner) in zip(magnitudes, boxes, strict=True)
            )
            if np.all(lost <= 1) or small * count < 1:
                break
            small /= 2
        kept = tuple(c[:o, :, :, :i] for c, (o, i) in zip(self.coefficients, boxes, strict=True))
        return Series(self.degree, kept), np.maximum(lost, 0) * allowed

    def evaluate(self, at: Array, total: Array, threads: int | None = None) -> None:
        """Fill ``total`` (H, m, P), contiguous, with the values at all points (m, d)."""
        shapes = np.max([c.shape for c in self.coefficients], axis=0)
        outer, rows, columns, inner = (int(k) for k in np.maximum(shapes, 1))
        work = 16.0 * self.degree + rows * columns * outer * inner / 16
        if has_compiled_series():
            compiled_series(at, self.coefficients, self.degree, total, work, threads)
            return
        room = min(PRODUCT_ENTRIES // outer, SERIAL_PRODUCT // inner) // columns
        block = max(64, min(BLOCK, room))
        step = max(1, room // block)
        parts = [slice(k, min(k + step, rows)) for k in range(0, rows, step)]
        matrices = [[_flat(c[:, part]) for c in self.coefficients] for part in parts]

        def task(start: int) -> None:
            tile = slice(start, min(start + block, at.shape[0]))
            factors = features(at[tile].T, self.degree)
            for part, flat in zip(parts, matrices, strict=True):
                values = np.zeros((flat[0].shape[1], factors[0][0].shape[1]))
                for matrix, (i, o) in zip(flat, factors, strict=True):
                    product = np.matmul(matrix, i[: matrix.shape[2]])
                    values += np.einsum("ogb,ob->gb", product, o[: matrix.shape[0]])
                shape = (part.stop - part.start, columns, -1)
                total[part, tile] = values.reshape(shape).swapaxes(1, 2)

        run_tasks(task, range(0, at.shape[0], block), work * at.shape[0], threads)


def _box(magnitudes: Array, small: float) -> tuple[int, int]:
    """Numbers of outer and inner frequencies up to the last magnitude (O, H, I) above ``small``."""
    matters = np.asarray((magnitudes > small).any(axis=1))
    outer, inner = np.flatnonzero(matters.any(axis=1)), np.flatnonzero(matters.any(axis=0))
    return int(outer.max(initial=-1)) + 1, int(inner.max(initial=-1)) + 1


def _flat(coefficients: Array) -> Array:
    """Coefficients (O, H, P, I) as the stack of matrices (O, H P, I)."""
    outer, rows, columns, inner = coefficients.shape
    return np.ascontiguousarray(coefficients.reshape(outer, rows * columns, inner))
