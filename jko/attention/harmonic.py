r"""Kernel sums in time linear in the number of tokens, on the circle and on the sphere S^2.

The kernel :math:`e^{\langle x, D y\rangle}` is a polynomial of degree ``L`` in x and in y, up to
the error of Chebyshev's expansion of the exponential, :math:`2\sum_{k>L} I_k(|D|)`.  On a
polynomial nothing is lost by going through a grid of ``2(L+1)^2`` nodes (d = 3; ``2L + 2`` for
d = 2) and its Fourier coefficients (see `jko.attention.fourier`):

1. moments of the tokens, :math:`M = \sum_j a_j w(y_j)` with w the Fourier basis;
2. masses :math:`\nu_q` of the nodes that have the same moments;
3. :math:`\sum_q \nu_q e^{\langle x_p, D_h y_q\rangle} (1, y_q, y_q y_q^T)` at the nodes, densely;
4. the Fourier series in x of these values, summed at the targets.

Only 3 knows the heads, and no n enters it; 1 and 4 are linear in n, and shared by the heads.

What the answer is worth.  Chebyshev's polynomial of degree L in :math:`\langle x, D y\rangle` is
of degree L in x and, times the moments of order r, of degree L + r in y: the grids of these degrees
reproduce it, and amplify the rest by their Lebesgue constants :math:`\Lambda` at most.  The
truncation is therefore below :math:`(1 + \Lambda_x \Lambda_y)\, 2\sum_{k>L} I_k(|D|)`.
Rounding is absolute, of the size of the largest values, whereas the harmonic mean of the mobilities
feels the smallest ones: the bound on the relative error at x carries the factor
:math:`1 / b_h(x)`.  Every value whose bound misses the tolerance is computed densely instead.
In the bound, truncation is proven; the constant of the rounding is measured.

References
----------
L. N. Trefethen, Approximation Theory and Approximation Practice, SIAM (2013), chapters 8 and 15.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import iv, ive

from .._validation import positive_number
from .fourier import grid, lebesgue_constant, moments
from .kernel import (
    UNSHIFTED_NORM,
    DenseKernel,
    KernelSums,
    exceeds,
    exponential_sums,
    moment_payload,
    payload_columns,
)

__all__ = ["HarmonicEvaluation", "HarmonicKernel", "degree_groups"]

Array = NDArray[np.float64]

logger = logging.getLogger(__name__)

EPS = float(np.finfo(float).eps)

#: Degrees of the series: a head that needs more is evaluated densely.
MIN_DEGREE, MAX_DEGREE = 2, 128

#: Rounding of a sum is taken as ``eps (6 + 1.5 |D|)`` times its scale.  The largest error against
#: extended precision was ``1.4 eps (4 + |D|)`` times the scale, in 2400 random cases with |D|
#: from 0.1 to 50 and up to 1000 tokens; the bound on a value counts it twice.
ROUNDING = 6.0
ROUNDING_PER_NORM = 1.5

#: Heads whose degree is at least this share of the largest one are evaluated together.
SHARED_DEGREE = 0.75


#: With more targets than this share to redo, all are redone in symmetric tiles.
SYMMETRIC_SHARE = 0.6


@dataclass(frozen=True, kw_only=True)
class HarmonicEvaluation:
    """Kernel sums with the bound on their error.

    Attributes
    ----------
    sums : KernelSums
    error_bound : (H,)
        Bound, over the targets evaluated harmonically, on the relative error of ``b_h`` and
        on the absolute errors of the mean and the second moment (whose norms are at most 1).
        Never above the tolerance; 0 for a head that was evaluated densely.
    dense_targets : (H,)
        Number of targets evaluated densely because their bound missed the tolerance.
    degrees : (H,)
        Truncation degree L; 0 for a head that was evaluated densely.
    """

    sums: KernelSums
    error_bound: Array
    dense_targets: NDArray[np.intp]
    degrees: NDArray[np.intp]


@dataclass(frozen=True)
class _Problem:
    """The arguments of `Kernel.sums`."""

    at: Array
    points: Array
    weights: Array
    matrices: Array
    order: int

    @property
    def dim(self) -> int:
        return int(self.matrices.shape[1])

    @cached_property
    def mass(self) -> float:
        return float(self.weights.sum())

    @cached_property
    def norms(self) -> Array:
        """Spectral norms of the heads."""
        norms: Array = np.abs(np.linalg.eigvalsh(self.matrices)).max(axis=1)
        return norms

    @property
    def least_mobility(self) -> Array:
        r"""Lower bounds of b_h by Jensen: :math:`e^{-|D \bar y|}` with the mean token."""
        mean = self.weights @ self.points / self.mass
        bounds: Array = self.mass * np.exp(-np.linalg.norm(self.matrices @ mean, axis=1))
        return bounds

    @cached_property
    def off(self) -> Array:
        r"""Relative change of :math:`\langle x, y\rangle`, at most, by normalising points (m,).

        An exponent changes by at most ``|D|`` times this.
        """
        targets, sources = (
            np.abs(np.sqrt(np.einsum("ni,ni->n", p, p)) - 1) for p in (self.at, self.points)
        )
        return targets + sources.max()

    def rounding(self, scale: Array) -> Array:
        """Bounds on the rounding of sums whose terms add up to ``scale`` in absolute value."""
        return EPS * (ROUNDING + ROUNDING_PER_NORM * self.norms) * scale

    def heads(self, heads: Sequence[int] | NDArray[np.intp]) -> _Problem:
        """The problem of these heads alone."""
        return replace(self, matrices=self.matrices[heads])

    def targets(self, targets: NDArray[np.intp]) -> _Problem:
        """The problem at these targets alone."""
        return replace(self, at=self.at[targets])


@dataclass(frozen=True)
class HarmonicKernel:
    """Kernel sums through Fourier coefficients, for d = 2 and d = 3.

    Time ``O((n + m) L^2)``, memory ``O(L^4)`` beside the result.

    Parameters
    ----------
    tolerance : float
        Largest error of any value, in the sense of `HarmonicEvaluation.error_bound`.  Values
        that cannot be guaranteed to meet it are computed densely.
    threads : int, optional
        At most this many; the processors available to this process by default.  The result
        does not depend on it.
    """

    tolerance: float = 1e-12
    threads: int | None = None

    def __post_init__(self) -> None:
        positive_number(self.tolerance, "tolerance")

    def sums(
        self, at: Array, points: Array, weights: Array, matrices: Array, order: int
    ) -> KernelSums:
        """Sums up to ``order`` at ``at`` (m, d), over ``points`` (n, d) of ``weights`` (n,)."""
        return self.evaluate(at, points, weights, matrices, order).sums

    def degrees(
        self, points: Array, weights: Array, matrices: Array, order: int
    ) -> NDArray[np.intp]:
        """Degrees whose truncation takes an eighth of the tolerance; 0 where none does.

        Relative to the smallest mobility, which is bounded below by Jensen's inequality; below
        the size of rounding no degree helps.
        """
        problem = _Problem(points[:0], points, weights, matrices, order)
        _require_dimension(problem.dim)
        with np.errstate(over="ignore"):
            rounding = problem.rounding(problem.mass * _kernel_size(problem.norms))
        lowest = np.maximum(problem.least_mobility, 2 * rounding / self.tolerance)
        enough = (
            _truncation(np.minimum(problem.norms, MAX_DEGREE), problem.dim, order)
            <= (self.tolerance / 8 * lowest / problem.mass)[:, None]
        )
        found = enough.any(axis=1) & (problem.norms <= MAX_DEGREE)
        return np.where(found, np.maximum(MIN_DEGREE, enough.argmax(axis=1)), 0)

    def evaluate(
        self,
        at: Array,
        points: Array,
        weights: Array,
        matrices: Array,
        order: int,
        degrees: NDArray[np.intp] | None = None,
    ) -> HarmonicEvaluation:
        """`sums` with the bound on their error, at the degrees of `degrees` unless given."""
        problem = _Problem(at, points, weights, matrices, order)
        _require_dimension(problem.dim)
        if degrees is None:
            degrees = self.degrees(points, weights, matrices, order)
        result = _empty_sums(problem)
        bound, missed = np.zeros(degrees.shape), np.zeros(degrees.shape, dtype=np.intp)
        direct = np.flatnonzero(degrees == 0)
        if direct.size:
            _put(result, direct, slice(None), self._dense(problem.heads(direct)))
        for heads in degree_groups(degrees):
            error = self._harmonic(problem.heads(heads), int(degrees[heads].max()), result, heads)
            for e, head in zip(error, heads, strict=True):
                bound[head], missed[head] = self._repair(problem, e, result, head)
        logger.debug("degrees %s, bounds %s, dense targets %s", degrees, bound, missed)
        return HarmonicEvaluation(
            sums=result, error_bound=bound, dense_targets=missed, degrees=degrees
        )

    def _dense(self, problem: _Problem) -> KernelSums:
        p = problem
        return DenseKernel(self.threads).sums(p.at, p.points, p.weights, p.matrices, p.order)

    def _harmonic(
        self, problem: _Problem, degree: int, result: KernelSums, heads: NDArray[np.intp]
    ) -> Array:
        """Write the sums of ``heads``; return the bounds on the errors of b_h and of b_h m_h."""
        dim, order = problem.dim, problem.order
        source, target = grid(dim, degree + order), grid(dim, degree)
        masses = source.spread(
            moments(problem.points, problem.weights, source.degree, self.threads)
        )
        payload = moment_payload(source.nodes, masses, order)
        payload = np.concatenate([payload, np.abs(masses)[:, None]], axis=1)
        values = exponential_sums(
            target.nodes, source.nodes, payload, problem.matrices, self.threads
        )
        size = values[:, :, -1].max(axis=1) + problem.mass * _kernel_size(problem.norms)
        rounding = problem.rounding(size)
        lowest = np.maximum(values[:, :, 0].min(axis=1), 4 * rounding / self.tolerance)
        series, dropped = target.series(values[:, :, :-1]).trimmed(self.tolerance / 16 * lowest)
        truncation = _truncation(problem.norms, dim, order, degree)[:, 0]
        totals = result.totals
        whole = heads.size == totals.shape[0]
        sums = totals if whole else np.empty((heads.size, *totals.shape[1:]))
        series.evaluate(problem.at, sums, self.threads)
        # mobilities below the rounding are cut off there
        np.maximum(sums[..., 0], rounding[:, None], out=sums[..., 0])
        if not whole:
            totals[heads] = sums
        error: Array = rounding + problem.mass * truncation + dropped
        return error

    def _repair(
        self, problem: _Problem, error: float, result: KernelSums, head: int
    ) -> tuple[float, int]:
        """Recompute densely the targets of one head whose bound misses the tolerance.

        Two errors of b_h m_h and of b_h over b_h, and the normalisation of points.
        """
        bound = 2 * error / result.totals[head, :, 0]
        bound += 2 * problem.norms[head] * problem.off
        missed = np.flatnonzero(~(bound <= self.tolerance))
        if missed.size > SYMMETRIC_SHARE * bound.size:
            _put(result, [head], slice(None), self._dense(problem.heads([head])))
            return 0.0, bound.size
        if missed.size:
            _put(result, [head], missed, self._dense(problem.heads([head]).targets(missed)))
            bound[missed] = 0
        return float(bound.max(initial=0)), missed.size


def _require_dimension(dim: int) -> None:
    if dim not in (2, 3):
        raise ValueError(
            f"the harmonic evaluator needs tokens of dimension 2 or 3, got {dim}; "
            'use evaluator="dense" or "auto"'
        )


def _kernel_size(norms: Array) -> Array:
    r"""Bound :math:`I_0(2|D|)^{1/2}` of the root mean square of the kernel over the nodes."""
    size: Array = np.sqrt(ive(0, 2 * norms)) * np.exp(norms)
    return size


def _truncation(norms: Array, dim: int, order: int, first: int = 0) -> Array:
    r"""Bounds :math:`(1 + \Lambda_x\Lambda_y)\, 2 \sum_{k>L} I_k(|D|)` for L from ``first`` on.

    Shape (H, MAX_DEGREE + 1 - first).
    """
    degree = np.arange(first, MAX_DEGREE + 1)
    gain = 1 + lebesgue_constant(dim, degree) * lebesgue_constant(dim, degree + order)
    tail = iv(np.arange(first + 1, MAX_DEGREE + 64), norms[:, None])
    tail = np.cumsum(tail[:, ::-1], axis=1)[:, ::-1]
    bounds: Array = 2 * gain * tail[:, : degree.size]
    return bounds


def degree_groups(degrees: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Heads that share features: of similar degree, zero left out."""
    rest = np.flatnonzero(degrees)
    groups = []
    while rest.size:
        similar = degrees[rest] >= SHARED_DEGREE * degrees[rest].max()
        groups.append(rest[similar])
        rest = rest[~similar]
    return groups


def _empty_sums(problem: _Problem) -> KernelSums:
    shape = (problem.matrices.shape[0], problem.at.shape[0])
    columns = payload_columns(problem.dim, problem.order)
    shift = np.zeros(shape) if exceeds(problem.matrices, UNSHIFTED_NORM).any() else None
    return KernelSums(order=problem.order, totals=np.empty((*shape, columns)), shift=shift)


def _put(
    result: KernelSums,
    heads: Iterable[int],
    targets: slice | NDArray[np.intp],
    sums: KernelSums,
) -> None:
    """Write ``sums`` over the given heads and targets of ``result``."""
    for k, head in enumerate(heads):
        result.totals[head, targets] = sums.totals[k]
        if sums.shift is not None and result.shift is not None:
            result.shift[head, targets] = sums.shift[k]
