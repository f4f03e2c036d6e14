r"""Everything the model says at given points, derived from one pass over the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .. import sphere
from .heads import Heads
from .kernel import TOKEN_BLOCK, KernelSums
from .triangles import from_triangle

__all__ = ["Fields", "KernelOverflowError"]

Array = NDArray[np.float64]
Index = NDArray[np.intp] | slice
Value = TypeVar("Value", Array, float)


class KernelOverflowError(OverflowError):
    """A mobility, an energy or a slope exceeds the largest double (about e^709)."""


def finite(value: Value, name: str, heads: Heads) -> Value:
    """``value``, unless it overflowed; then a `KernelOverflowError` that says what did."""
    if not (isfinite(value) if isinstance(value, float) else np.isfinite(value).all()):
        raise KernelOverflowError(
            f"the {name} overflows double precision (e^709): the largest head has norm "
            f"{heads.norms.max():.4g}; scale the heads down. Softmax velocities stay "
            "finite for heads of any strength"
        )
    return value


@dataclass(frozen=True, kw_only=True)
class Fields:
    """Mobilities, first variation, gradient and velocities at ``m`` points ``at``.

    Attributes
    ----------
    at : (m, d)
        Points of evaluation, on the sphere.
    heads : Heads
        Heads at the time of evaluation.
    sign : int
        +1 for the flow of E, -1 for that of -E.
    sums : KernelSums
        The kernel sums at ``at``.
    """

    at: Array
    heads: Heads
    sign: int
    sums: KernelSums

    @cached_property
    def _mean(self) -> Array:
        return self.sums.mean

    @cached_property
    def _energy_sums(self) -> Array:
        """``sum_h w_h b_h (1, D_h m_h, D_h S_h D_h)`` up to the order: all that V is made of."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.sums.contracted(self.heads.contraction(self.sums.order))

    @cached_property
    def _mobility_pull(self) -> Array:
        """``sum_h w_h b_h D_h m_h``, the ambient gradient of V but for the sign, shape (m, d)."""
        if self.sums.order < 1:
            raise ValueError("these fields were evaluated at order 0: no gradients")
        return self._energy_sums[:, 1 : self.at.shape[1] + 1]

    @property
    def head_mobility(self) -> Array:
        """``b_h`` at the points, shape (H, m)."""
        with np.errstate(over="ignore"):
            return finite(np.exp(self.sums.log_mobility), "head mobility", self.heads)

    @property
    def largest_mobility(self) -> Array:
        """The largest ``b_h`` at the points, shape (H,)."""
        with np.errstate(over="ignore"):
            largest = np.exp(self.sums.log_mobility.max(axis=1))
        return finite(largest, "head mobility", self.heads)

    @cached_property
    def log_effective_mobility(self) -> Array:
        """Logarithm of the harmonic mean ``bhat``, shape (m,)."""
        if self.heads.count == 1:
            return self.sums.log_mobility[0]
        weights, logs = self.heads.weights, self.sums.log_mobility
        if not weights.all():
            weights, logs = weights[weights > 0], logs[weights > 0]
        low: Array = logs.min(axis=0)
        return low - np.log(weights @ np.exp(low - logs))

    @property
    def effective_mobility(self) -> Array:
        """``bhat = 1 / sum_h w_h / b_h``, shape (m,)."""
        with np.errstate(over="ignore"):
            return finite(np.exp(self.log_effective_mobility), "effective mobility", self.heads)

    @cached_property
    def _weighted_mobility(self) -> Array:
        """``w_h b_h``, shape (H, m)."""
        return self.heads.weights[:, None] * self.head_mobility

    @cached_property
    def first_variation(self) -> Array:
        """``V = sign * sum_h w_h b_h``, shape (m,)."""
        return finite(self.sign * self._energy_sums[:, 0], "first variation", self.heads)

    def energy(self, weights: Array) -> float:
        """``E = 1/2 sum_i a_i V(x_i)`` when ``at`` are the measure's own points."""
        return finite(0.5 * float(weights @ self.first_variation), "energy", self.heads)

    @cached_property
    def log_mobility_gradient(self) -> Array:
        """``grad log b_h = P_x D_h m_h``, shape (H, m, d): finite for heads of any strength."""
        return sphere.project(self.at, np.matmul(self._mean, self.heads.matrices))

    def _pull(self, share: Array) -> Array:
        """``sum_h share_h D_h m_h`` for shares (H, m), without an array per head."""
        mean = self._mean
        total = np.empty(mean.shape[1:])
        for part in _token_blocks(mean.shape[1]):
            moved = np.matmul(mean[:, part], self.heads.matrices)
            np.einsum("hm,hmd->md", share[:, part], moved, out=total[part])
        return total

    def _tangent_pull(self, share: Array) -> Array:
        """`_pull` projected on the tangent spaces at the points."""
        return sphere.project(self.at, self._pull(share))

    @property
    def gradient(self) -> Array:
        """``p = sign * P_x sum_h w_h grad b_h``, shape (m, d)."""
        with np.errstate(over="ignore", invalid="ignore"):
            total = self.sign * sphere.project(self.at, self._mobility_pull)
        return finite(total, "gradient", self.heads)

    @property
    def _mobility_ratio(self) -> Array:
        """``w_h b_h / bhat``, shape (H, m), from differences of logarithms."""
        with np.errstate(over="ignore"):
            ratio = np.exp(self.sums.log_mobility - self.log_effective_mobility)
        return self.heads.weights[:, None] * ratio

    @cached_property
    def gradient_velocity(self) -> Array:
        """``v_grad = -p / bhat``, shape (m, d)."""
        with np.errstate(over="ignore", invalid="ignore"):
            total = self._tangent_pull(self._mobility_ratio)
        return finite(-self.sign * total, "gradient velocity", self.heads)

    @cached_property
    def softmax_velocity(self) -> Array:
        """``v_soft = -sign * sum_h w_h grad log b_h``, shape (m, d)."""
        share = np.broadcast_to(self.heads.weights[:, None], self.sums.log_mobility.shape)
        return -self.sign * self._tangent_pull(share)

    def velocity(self, kind: str) -> Array:
        """``gradient_velocity`` or ``softmax_velocity``, by name."""
        return self.gradient_velocity if kind == "gradient" else self.softmax_velocity

    @property
    def effective_mobility_gradient(self) -> Array:
        """``grad bhat = bhat sum_h w_h (bhat / b_h) grad log b_h``, shape (m, d)."""
        ratio = np.exp(self.log_effective_mobility - self.sums.log_mobility)
        share = self.heads.weights[:, None] * ratio
        return self.effective_mobility[:, None] * self._tangent_pull(share)

    def mobility_weighted(self, weights: Array, vectors: Array, name: str) -> float:
        """``sum_i a_i bhat_i |u_i|^2`` without overflow before the sum itself does."""
        lengths = np.sqrt(np.einsum("md,md->m", vectors, vectors))
        with np.errstate(over="ignore", divide="ignore"):
            logs = self.log_effective_mobility + 2 * np.log(lengths)
            total = float(weights @ np.exp(logs))
        return finite(total, name, self.heads)

    def slope_squared(self, weights: Array) -> float:
        """``G^2 = int |p|^2 / bhat dmu = int bhat |v_grad|^2 dmu``."""
        return self.mobility_weighted(weights, self.gradient_velocity, "squared slope")

    def metric_speed_squared(self, weights: Array, kind: str) -> float:
        """``int bhat |v|^2 dmu`` for the velocity named ``kind``."""
        return self.mobility_weighted(weights, self.velocity(kind), "squared metric speed")

    def defect_rate(self, weights: Array) -> float:
        """``1/2 int bhat |v_soft - v_grad|^2 dmu``; exactly zero for one head."""
        if self.heads.count == 1:
            return 0.0
        gap = self.softmax_velocity - self.gradient_velocity
        return 0.5 * self.mobility_weighted(weights, gap, "defect rate")

    def energy_time_derivative(self, weights: Array, derivative: Array) -> float:
        """``sign/2 sum_h w_h iint <x, D_h' y> exp<x, D_h y>``, at the measure's own points."""
        means = np.matmul(self._mean, derivative)
        rates = np.einsum("md,hmd->hm", self.at, means)
        with np.errstate(over="ignore", invalid="ignore"):
            density = np.einsum("hm,hm->m", self._weighted_mobility, rates)
            value = 0.5 * self.sign * float(weights @ density)
        return finite(value, "time derivative of the energy", self.heads)

    def first_variation_hessian(self, index: Index = slice(None)) -> Array:
        r"""Riemannian Hessian of V at the points (or some of them) as ambient matrices (m, d, d).

        .. math:: P_x \Big(\sum_h w_h D_h \int y y^T e^{\langle x, D_h y\rangle} d\mu(y) D_h\Big) P_x
                  - \langle x, \bar\nabla V\rangle P_x
        """
        with np.errstate(over="ignore", invalid="ignore"):
            hessian = sphere.restrict(self.at[index], *self.ambient_hessian(index))
        return finite(hessian, "Hessian of the first variation", self.heads)

    def ambient_hessian(self, index: Index = slice(None)) -> tuple[Array, Array]:
        """The matrices (m, d, d) and numbers (m,) of which `sphere.restrict` makes the Hessian of V."""
        if self.sums.order < 2:
            raise ValueError("these fields were evaluated below order 2: no second moments")
        x = self.at[index]
        ambient = from_triangle(self._energy_sums[index, x.shape[1] + 1 :])
        radial = np.vecdot(x, self._mobility_pull[index])
        return self.sign * ambient, -self.sign * radial


def _token_blocks(count: int) -> Iterator[slice]:
    for start in range(0, count, TOKEN_BLOCK):
        yield slice(start, start + TOKEN_BLOCK)
