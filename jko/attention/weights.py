r"""Weight paths :math:`t \mapsto \Theta_t`: time-dependent heads.

A path can be called at any time of its domain, is reproducible from its seed and does not
depend on the step of any solver.  ``path(t)`` gives `Heads`, ``path.derivative(t)`` the time
derivative of the matrices (from the right, at a kink).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import finite_array, finite_number, frozen, positive_number
from .heads import Heads

__all__ = [
    "FromFunction",
    "Frozen",
    "Interpolated",
    "OrnsteinUhlenbeck",
    "Oscillating",
    "Perturbed",
    "WeightPath",
]

Array = NDArray[np.float64]
NO_BREAKPOINTS = np.empty(0)


class WeightPath(ABC):
    r"""Time-dependent heads :math:`\Theta_t = \sum_h w_h \delta_{D_h(t)}`."""

    @abstractmethod
    def __call__(self, t: float) -> Heads:
        """The heads at time ``t``."""

    @abstractmethod
    def derivative(self, t: float) -> Array:
        """Time derivative of the head matrices at ``t``, shape (H, d, d)."""

    def breakpoints(self, start: float, end: float) -> Array:
        """Times strictly inside (start, end) at which the derivative may jump."""
        return NO_BREAKPOINTS

    @property
    def dim(self) -> int:
        """Dimension d of the heads."""
        return self(0.0).dim


def _require_heads(value: object, name: str) -> Heads:
    if not isinstance(value, Heads):
        raise TypeError(f"{name} must be Heads, got {type(value).__name__}")
    return value


class Frozen(WeightPath):
    """Heads that do not depend on time: ``D_h(t) = D_h``."""

    def __init__(self, heads: Heads) -> None:
        self.heads = _require_heads(heads, "heads")

    def __call__(self, t: float) -> Heads:
        finite_number(t, "t")
        return self.heads

    def derivative(self, t: float) -> Array:
        return np.zeros_like(self.heads.matrices)


class Oscillating(WeightPath):
    r"""The article's oscillating heads, :math:`D_h' = A_h(t) - D_h` with a rotating target.

    With :math:`s = t + 2\pi h/H`, the target of head ``h`` is, for d = 2,
    ``[[2 + 1.5 cos s, sin 2s], [sin 2s, 2 - 1.5 cos s]]``; for d = 3, diagonal
    ``2 + 1.5 (cos s, sin s, cos(s + pi/4))`` and entries (1,2) ``sin 2s``, (1,3) ``sin s``,
    (2,3) ``cos 2s``; for d >= 4, diagonal ``2 + 1.5 cos(s + 2 pi i/d)`` and off-diagonal
    ``sin(2s + 2 pi k/n_pairs)`` over the pairs in row order.

    The equation is linear and solved in closed form: a target entry
    :math:`c + a \sin(\omega s + \varphi)` has the periodic solution
    :math:`c + a [\sin(\omega s + \varphi) - \omega\cos(\omega s + \varphi)]/(1 + \omega^2)`, to which the
    initial deviation is added with factor :math:`e^{-t}`.

    Parameters
    ----------
    heads0 : Heads
        Heads at time 0.
    """

    def __init__(self, heads0: Heads) -> None:
        self.heads0 = _require_heads(heads0, "heads0")
        self._constant, self._amplitude, self._frequency, self._offset = _rotating_target(
            heads0.dim
        )
        phases = 2 * np.pi * np.arange(heads0.count) / heads0.count
        self._phase = phases[:, None, None]
        self._deviation = heads0.matrices - self._periodic(0.0)

    def _angle(self, t: float) -> Array:
        return self._frequency * (t + self._phase) + self._offset

    def _periodic(self, t: float) -> Array:
        angle, omega = self._angle(t), self._frequency
        wave = (np.sin(angle) - omega * np.cos(angle)) / (1 + omega**2)
        return self._constant + self._amplitude * wave

    def target(self, t: float) -> Array:
        """The targets ``A_h(t)``, shape (H, d, d)."""
        return self._constant + self._amplitude * np.sin(self._angle(t))

    def __call__(self, t: float) -> Heads:
        t = finite_number(t, "t")
        return Heads(self._periodic(t) + np.exp(-t) * self._deviation, self.heads0.weights)

    def derivative(self, t: float) -> Array:
        return self.target(t) - self(t).matrices


def _rotating_target(dim: int) -> tuple[Array, Array, Array, Array]:
    """Constant, amplitude, frequency and offset (d, d) of ``c + a sin(omega s + offset)``."""
    cosine = np.pi / 2
    constant, amplitude = 2 * np.eye(dim), 1 - np.eye(dim) + 1.5 * np.eye(dim)
    frequency = 2.0 - np.eye(dim)
    offset = np.zeros((dim, dim))
    if dim == 2:
        amplitude[1, 1] = -1.5
        offset[np.diag_indices(2)] = cosine
    elif dim == 3:
        offset[np.diag_indices(3)] = cosine, 0, cosine + np.pi / 4
        frequency[0, 2] = frequency[2, 0] = 1
        offset[1, 2] = offset[2, 1] = cosine
    else:
        offset[np.diag_indices(dim)] = cosine + 2 * np.pi * np.arange(dim) / dim
        i, j = np.triu_indices(dim, 1)
        offset[i, j] = offset[j, i] = 2 * np.pi * np.arange(i.size) / i.size
    return constant, amplitude, frequency, offset


class Interpolated(WeightPath):
    r"""Matrices given at layer times, linear in between.

    On :math:`[t_k, t_{k+1}]`, :math:`D_h(t) = (1 - s) D_{k,h} + s D_{k+1,h}` with :math:`s = (t - t_k)/(t_{k+1} - t_k)`.

    Parameters
    ----------
    times : (L,) array_like
        Strictly increasing.
    matrices : (L, H, d, d) array_like
        Symmetric head matrices at those times.
    weights : (H,) array_like, optional
        Head weights, the same at all times.

    Raises
    ------
    ValueError
        On construction for invalid arrays; on a call outside ``[times[0], times[-1]]``.
    """

    def __init__(
        self, times: ArrayLike, matrices: ArrayLike, weights: ArrayLike | None = None
    ) -> None:
        self.times = frozen(finite_array(times, "times", 1))
        array = finite_array(matrices, "matrices", 4)
        if self.times.size == 0 or (np.diff(self.times) <= 0).any():
            raise ValueError("times must be strictly increasing and not empty")
        if array.shape[0] != self.times.size:
            raise ValueError(
                f"matrices must have {self.times.size} layers, one per time, got {array.shape[0]}"
            )
        layers, count, dim = array.shape[:3]
        # Heads checks the symmetry of every layer at once
        checked = Heads(array.reshape(layers * count, dim, array.shape[3]))
        self.matrices = frozen(checked.matrices.reshape(layers, count, dim, dim).copy())
        self.weights = Heads(self.matrices[0], weights).weights

    def _locate(self, t: float) -> int:
        t = finite_number(t, "t")
        first, last = self.times[0], self.times[-1]
        slack = 1e-12 * max(1.0, abs(first), abs(last))
        if not first - slack <= t <= last + slack:
            raise ValueError(f"t must lie in [{first}, {last}], the domain of the path, got {t}")
        return int(np.clip(np.searchsorted(self.times, t, "right") - 1, 0, max(self.times.size - 2, 0)))

    def __call__(self, t: float) -> Heads:
        k = self._locate(t)
        if self.times.size == 1:
            return Heads(self.matrices[0], self.weights)
        s = (t - self.times[k]) / (self.times[k + 1] - self.times[k])
        return Heads((1 - s) * self.matrices[k] + s * self.matrices[k + 1], self.weights)

    def derivative(self, t: float) -> Array:
        k = self._locate(t)
        if self.times.size == 1:
            return np.zeros_like(self.matrices[0])
        rate: Array = (self.matrices[k + 1] - self.matrices[k]) / (
            self.times[k + 1] - self.times[k]
        )
        return rate

    def breakpoints(self, start: float, end: float) -> Array:
        return self.times[(self.times > start) & (self.times < end)]

    @property
    def dim(self) -> int:
        return int(self.matrices.shape[2])


class OrnsteinUhlenbeck(Interpolated):
    r"""Heads driven by :math:`dD = (I - D)\,dt + \sqrt{\sigma^2}\,dW^{sym}`, :math:`W^{sym} = (W + W^T)/2`.

    Sampled exactly on a base grid, linear in between: one fixed path, whatever step a solver
    uses.  Between grid times :math:`D_{k+1} = I + e^{-h}(D_k - I) + \sqrt{\sigma^2 (1 - e^{-2h})/2}\, (Z + Z^T)/2`.

    Parameters
    ----------
    heads0 : Heads
        Heads at time 0.
    horizon : float
        The path is defined on [0, horizon] (rounded up to the base grid).
    variance : float
        :math:`\sigma^2`; the article uses 2.
    base_step : float
        Step of the base grid.
    rng : numpy Generator, int or None
        Seed of the path.
    """

    def __init__(
        self,
        heads0: Heads,
        *,
        horizon: float,
        variance: float = 2.0,
        base_step: float = 0.005,
        rng: np.random.Generator | int | None = None,
    ) -> None:
        _require_heads(heads0, "heads0")
        horizon = positive_number(horizon, "horizon")
        self.variance = positive_number(variance, "variance")
        self.base_step = positive_number(base_step, "base_step")
        count = int(np.ceil(horizon / self.base_step - 1e-9))
        noise = np.random.default_rng(rng).standard_normal((count, *heads0.matrices.shape))
        noise = (noise + noise.swapaxes(-1, -2)) / 2
        decay = np.exp(-self.base_step)
        noise *= np.sqrt(self.variance * -np.expm1(-2 * self.base_step) / 2)
        identity = np.eye(heads0.dim)
        matrices = np.empty((count + 1, *heads0.matrices.shape))
        matrices[0] = heads0.matrices
        for k in range(count):
            matrices[k + 1] = identity + decay * (matrices[k] - identity) + noise[k]
        super().__init__(self.base_step * np.arange(count + 1), matrices, heads0.weights)


class FromFunction(WeightPath):
    """A path given by any callable.

    >>> import numpy as np, jko
    >>> path = jko.weights.FromFunction(lambda t: np.cos(t) * np.eye(3)[None])
    >>> path(0.0).matrices[0, 0, 0], path.derivative(np.pi / 2)[0, 0, 0].round(12)
    (np.float64(1.0), np.float64(-1.0))

    Parameters
    ----------
    function : callable
        ``t -> Heads`` or ``t -> (H, d, d)`` array of symmetric matrices.
    derivative : callable, optional
        ``t -> (H, d, d)``.  Without it, the five-point central difference with spacing 1e-3 is
        used (error about ``1e-12`` times the fifth derivative, plus ``1e-13`` of rounding).
    """

    SPACING = 1e-3

    def __init__(
        self,
        function: Callable[[float], Heads | ArrayLike],
        derivative: Callable[[float], ArrayLike] | None = None,
    ) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable, got {type(function).__name__}")
        if derivative is not None and not callable(derivative):
            raise TypeError(f"derivative must be callable, got {type(derivative).__name__}")
        self.function = function
        self._derivative = derivative

    def __call__(self, t: float) -> Heads:
        value = self.function(finite_number(t, "t"))
        return value if isinstance(value, Heads) else Heads(value)

    def derivative(self, t: float) -> Array:
        if self._derivative is not None:
            return finite_array(self._derivative(t), "derivative", 3)
        h = self.SPACING
        values = [self(t + k * h).matrices for k in (-2, -1, 1, 2)]
        stencil: Array = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * h)
        return stencil


class Perturbed(WeightPath):
    """The path ``base(t) + epsilon * direction(t)``, with the head weights of ``base``.

    Parameters
    ----------
    base : WeightPath or Heads
    direction : WeightPath or Heads
        As many heads of the same dimension; its weights are not used.
    epsilon : float
        Any sign.
    """

    def __init__(
        self, base: WeightPath | Heads, direction: WeightPath | Heads, epsilon: float
    ) -> None:
        self.base = Frozen(base) if isinstance(base, Heads) else base
        self.direction = Frozen(direction) if isinstance(direction, Heads) else direction
        for name, path in (("base", self.base), ("direction", self.direction)):
            if not isinstance(path, WeightPath):
                raise TypeError(f"{name} must be a weight path or Heads, got {type(path).__name__}")
        self.epsilon = finite_number(epsilon, "epsilon")

    def __call__(self, t: float) -> Heads:
        base, direction = self.base(t), self.direction(t)
        if base.matrices.shape != direction.matrices.shape:
            raise ValueError(
                f"direction must have matrices of shape {base.matrices.shape}, "
                f"got {direction.matrices.shape}"
            )
        return Heads(base.matrices + self.epsilon * direction.matrices, base.weights)

    def derivative(self, t: float) -> Array:
        rate: Array = self.base.derivative(t) + self.epsilon * self.direction.derivative(t)
        return rate

    def breakpoints(self, start: float, end: float) -> Array:
        return np.union1d(
            self.base.breakpoints(start, end), self.direction.breakpoints(start, end)
        )

    @property
    def dim(self) -> int:
        return self.base.dim
