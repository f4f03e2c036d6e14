r"""Integrability of weight paths: is :math:`\int_0^\infty |\dot\Theta_t| dt` finite?

The heads are a measure :math:`\Theta_t = \sum_h w_h \delta_{D_h(t)}`; its speed in :math:`W_2` (Frobenius norm) is
:math:`|\dot\Theta_t| = (\sum_h w_h |D_h'(t)|_F^2)^{1/2}` as long as the heads differ.  A path of finite length
converges, and long-time theorems apply; an infinite one keeps doing work on the tokens.

A finite run cannot prove either.  What is measured is how the length grows over the last
doublings of time: if the speed falls like :math:`t^{-p}` each doubling adds :math:`2^{1-p}` times what the one
before added, and the length is finite iff :math:`p > 1`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import integrate

from .._validation import finite_array, positive_number
from ..attention.weights import Interpolated, WeightPath
from ..transport.plan import optimal_plan
from .limits import ManyHeads

__all__ = [
    "Integrability",
    "Length",
    "classify_length",
    "head_distance",
    "head_speed",
    "integrability",
    "law_integrability",
    "path_length",
]

Array = NDArray[np.float64]

#: Exponents within this distance of one are left undecided.
MARGIN = 0.1

#: Gauss-Legendre nodes on every smooth piece of at most `PIECE` in time.
NODES = 4
PIECE = 0.25


class Integrability(Enum):
    """The verdict; the value is the sentence a reader sees."""

    INTEGRABLE = "the length converges: integrable regime"
    NOT_INTEGRABLE = "the length grows without bound: not integrable"
    UNDECIDED = "the length grows too slowly or too fast to tell: undecided at this horizon"


@dataclass(frozen=True, kw_only=True, eq=False)
class Length:
    r"""Length of a path at doubling times.

    Attributes
    ----------
    times : (m,)
        Doubling: ``T/2^{m-1}, ..., T/2, T``.
    lengths : (m,)
        :math:`\int_0^t |\dot\Theta| ds`.
    decay : float
        Exponent ``p`` of the speed over the last doubling; infinite for a path at rest.
    verdict : Integrability
    """

    times: Array
    lengths: Array
    decay: float
    verdict: Integrability


def head_speed(path: WeightPath, t: float) -> float:
    r""":math:`|\dot\Theta_t| = (\sum_h w_h |D_h'|_F^2)^{1/2}`; from the right at a kink."""
    squares = np.einsum("hij,hij->h", path.derivative(t), path.derivative(t))
    return float(np.sqrt(path(t).weights @ squares))


def path_length(path: WeightPath, times: ArrayLike) -> Array:
    r"""Length :math:`\int_0^t|\dot\Theta_s| ds` at increasing ``times`` (m,), split at the kinks of the path."""
    times = finite_array(times, "times", 1)
    if times.size == 0 or times[0] < 0 or (np.diff(times) <= 0).any():
        raise ValueError("times must be increasing, not negative and not empty")
    if isinstance(path, Interpolated):
        return _interpolated_length(path, times)
    end = float(times[-1])
    regular = np.linspace(0, end, int(np.ceil(end / PIECE)) + 1)
    edges = np.union1d(np.union1d(regular, times), path.breakpoints(0.0, end))
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    total, lengths = 0.0, []
    kept = set(times.tolist())
    if 0.0 in kept:
        lengths.append(0.0)
    for left, right in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        half = (right - left) / 2
        if half > 1e-12 * max(1.0, end):
            speeds = [head_speed(path, left + half * (1 + float(x))) for x in nodes]
            total += half * float(weights @ np.array(speeds))
        if right in kept:
            lengths.append(total)
    return np.array(lengths)


def _interpolated_length(path: Interpolated, times: Array) -> Array:
    """The speed of a piecewise linear path is constant between its times."""
    change = np.diff(path.matrices, axis=0)
    gaps = np.sqrt(np.einsum("khij,khij,h->k", change, change, path.weights))
    lengths = np.concatenate([[0.0], np.cumsum(gaps)])
    grid = path.times
    if times[-1] > grid[-1] * (1 + 1e-12) or grid[0] > 0:
        raise ValueError(
            f"times must lie in the domain of the path, [{grid[0]}, {grid[-1]}], got {times[-1]}"
        )
    return np.interp(times, grid, lengths) - float(np.interp(0.0, grid, lengths))


def doubling_times(horizon: float, count: int = 4) -> Array:
    """``horizon / 2^k`` in increasing order."""
    halvings: Array = np.arange(count - 1, -1, -1, dtype=float)
    return positive_number(horizon, "horizon") / 2**halvings


def classify_length(times: ArrayLike, lengths: ArrayLike) -> Length:
    r"""Verdict from lengths at doubling times (at least three): is :math:`\int_0^\infty |\Theta'| dt < \infty`?"""
    times, lengths = finite_array(times, "times", 1), finite_array(lengths, "lengths", 1)
    if times.size < 3 or lengths.size != times.size:
        raise ValueError(f"lengths must belong to at least 3 times, got {lengths.size}")
    if not np.allclose(times[1:], 2 * times[:-1], rtol=1e-9):
        raise ValueError("times must double from one to the next")
    before, last = np.diff(lengths)[-2:]
    at_rest = last <= 1e-14 * max(1.0, lengths[-1])
    decay = np.inf if at_rest else 1 - np.log2(last / max(before, 1e-300))
    verdict = Integrability.UNDECIDED
    if decay > 1 + MARGIN:
        verdict = Integrability.INTEGRABLE
    elif decay < 1 - MARGIN:
        verdict = Integrability.NOT_INTEGRABLE
    return Length(times=times, lengths=lengths, decay=float(decay), verdict=verdict)


def integrability(path: WeightPath, horizon: float) -> Length:
    r"""Length :math:`\int_0^T |\Theta'| dt` and verdict of a path, along its heads up to ``horizon``."""
    times = doubling_times(horizon)
    return classify_length(times, path_length(path, times))


def law_integrability(law: ManyHeads, horizon: float) -> Length:
    r"""The same for the Ornstein-Uhlenbeck *law*: the limit :math:`H \to \infty` of many heads."""
    times = doubling_times(horizon)
    pieces = [
        integrate.quad(law.wasserstein_speed, left, right, epsabs=1e-13, epsrel=1e-12)[0]
        for left, right in zip([0.0, *times[:-1]], times, strict=True)
    ]
    return classify_length(times, np.cumsum(pieces))


def head_distance(path: WeightPath, start: float, end: float) -> float:
    r""":math:`W_2(\Theta_{start}, \Theta_{end})` between the heads as measures, labels forgotten."""
    first, second = path(start), path(end)
    gap = first.matrices[:, None] - second.matrices[None]
    cost = np.einsum("hkij,hkij->hk", gap, gap)
    return float(np.sqrt(optimal_plan(cost, first.weights, second.weights).cost))
