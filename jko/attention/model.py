r"""Multi-head attention as an interaction energy with a mobility."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import sphere
from .._validation import choice, finite_array, finite_number, require_unit
from ..measures import TokenCloud, require_cloud
from .evaluators import make_kernel
from .fields import Fields
from .heads import Heads
from .kernel import Kernel
from .weights import Frozen, WeightPath

__all__ = ["AttentionModel"]

Array = NDArray[np.float64]

VELOCITIES = ("gradient", "softmax")


@dataclass(frozen=True, eq=False, init=False)
class AttentionModel:
    r"""Interaction energy, mobility and flows of multi-head attention on the sphere.

    .. math::

        b_h(x) = \int e^{\langle x, D_h y\rangle} d\mu(y), \qquad
        \hat b = \Big(\sum_h w_h / b_h\Big)^{-1}, \qquad
        E(\mu, t) = \tfrac12 \sum_h w_h \iint e^{\langle x, D_h y\rangle} d\mu\, d\mu.

    Parameters
    ----------
    path : WeightPath or Heads
        Time-dependent heads; bare `Heads` are frozen in time.
    sign : {+1, -1}
        +1 for the gradient flow of E (repulsive, the article's experiments), -1 for that of
        -E (attractive).  Energy, first variation, gradient, time derivative and velocities
        carry the sign; mobilities and distances never do.
    evaluator : {"auto", "dense", "harmonic"}
        How kernel sums are evaluated: directly, in time linear in the number of tokens (d = 2
        and 3, to 1e-12 or dense where that is missed), or whichever is faster.

    Notes
    -----
    Model of arXiv 2605.18870; for one head arXiv 2501.03096.  Every method takes a
    `TokenCloud` and a time, and raises ``ValueError`` when their dimensions differ,
    `KernelOverflowError` when a result exceeds the largest double.
    """

    path: WeightPath
    sign: int
    evaluator: str
    kernel: Kernel = field(repr=False)

    def __init__(
        self, path: WeightPath | Heads, sign: int = 1, evaluator: str = "auto"
    ) -> None:
        path = Frozen(path) if isinstance(path, Heads) else path
        if not isinstance(path, WeightPath):
            raise TypeError(f"path must be a weight path or Heads, got {type(path).__name__}")
        if isinstance(sign, bool) or sign not in (1, -1):
            raise ValueError(f"sign must be +1 or -1, got {sign!r}")
        kernel = make_kernel(evaluator)
        if evaluator == "harmonic" and path.dim not in (2, 3):
            raise ValueError(f"evaluator='harmonic' needs dimension 2 or 3, got {path.dim}")
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "sign", int(sign))
        object.__setattr__(self, "evaluator", evaluator)
        object.__setattr__(self, "kernel", kernel)

    def heads(self, t: float) -> Heads:
        """The heads at time ``t``."""
        return self.path(t)

    def fields(self, at: ArrayLike, cloud: TokenCloud, t: float, order: int = 1) -> Fields:
        """Everything at the points ``at`` (m, d) from one kernel pass.

        ``order`` 0 gives mobilities and energy, 1 adds gradients, 2 second moments.
        """
        t = finite_number(t, "t")
        require_cloud(cloud)
        heads = self.path(t)
        if cloud.dim != heads.dim:
            raise ValueError(
                f"cloud has dimension {cloud.dim} but the heads have dimension {heads.dim}"
            )
        points = cloud.points if at is cloud.points else finite_array(at, "at", 2)
        if points.shape[1] != cloud.dim:
            raise ValueError(f"at must have shape (m, {cloud.dim}), got {points.shape}")
        if points is not cloud.points:
            require_unit(points, "at")
            points = sphere.normalize(points)
        sums = self.kernel.sums(points, cloud.points, cloud.weights, heads.matrices, order)
        return Fields(at=points, heads=heads, sign=self.sign, sums=sums)

    def own_fields(self, cloud: TokenCloud, t: float, order: int = 1) -> Fields:
        """`fields` at the tokens of ``cloud`` themselves."""
        return self.fields(require_cloud(cloud).points, cloud, t, order)

    def energy(self, cloud: TokenCloud, t: float) -> float:
        r""":math:`E(\mu, t) = \frac{\pm1}{2} \sum_h w_h \sum_{ij} a_i a_j e^{\langle x_i, D_h x_j\rangle}`."""
        return self.own_fields(cloud, t, 0).energy(cloud.weights)

    def energy_time_derivative(self, cloud: TokenCloud, t: float) -> float:
        r""":math:`\partial_t E = \frac{\pm1}{2}\sum_h w_h \sum_{ij} a_i a_j \langle x_i, D_h' x_j\rangle e^{\langle x_i, D_h x_j\rangle}`.

        At a kink of the path, the derivative from the right.
        """
        fields = self.own_fields(cloud, t, 1)
        return fields.energy_time_derivative(cloud.weights, self.path.derivative(t))

    def first_variation(self, at: ArrayLike, cloud: TokenCloud, t: float) -> Array:
        r""":math:`V(x) = \pm\sum_h w_h b_h(x)` at the points ``at``: shape (m,)."""
        return self.fields(at, cloud, t, 0).first_variation

    def gradient(self, at: ArrayLike, cloud: TokenCloud, t: float) -> Array:
        r""":math:`p(x) = \pm P_x \sum_h w_h \int D_h y\, e^{\langle x, D_h y\rangle} d\mu(y)`: shape (m, d)."""
        return self.fields(at, cloud, t, 1).gradient

    def head_mobility(self, at: ArrayLike, cloud: TokenCloud, t: float) -> Array:
        r""":math:`b_h(x) = \int e^{\langle x, D_h y\rangle} d\mu(y)`: shape (H, m)."""
        return self.fields(at, cloud, t, 0).head_mobility

    def effective_mobility(self, at: ArrayLike, cloud: TokenCloud, t: float) -> Array:
        r""":math:`\hat b(x) = 1 / \sum_h w_h / b_h(x)`: shape (m,)."""
        return self.fields(at, cloud, t, 0).effective_mobility

    def velocity(self, cloud: TokenCloud, t: float, kind: str = "gradient") -> Array:
        r"""Velocity of the tokens, shape (n, d), in radians per unit time.

        ``"gradient"``: :math:`-p/\hat b`, the gradient flow of E; ``"softmax"``:
        :math:`\mp\sum_h w_h \nabla \log b_h`, the transformer.  Equal for one head.
        """
        choice(kind, "kind", VELOCITIES)
        return self.own_fields(cloud, t).velocity(kind)

    def slope_squared(self, cloud: TokenCloud, t: float) -> float:
        r"""Squared strong upper gradient :math:`G^2 = \int |p|^2 / \hat b\, d\mu`."""
        return self.own_fields(cloud, t).slope_squared(cloud.weights)

    def metric_speed_squared(self, cloud: TokenCloud, t: float, kind: str = "gradient") -> float:
        r"""Squared metric speed :math:`\int \hat b |v|^2 d\mu` of the flow named ``kind``.

        For ``"gradient"`` it equals `slope_squared`; ``"softmax"`` is the quantity that the
        article's simulation plots as the squared slope.
        """
        choice(kind, "kind", VELOCITIES)
        return self.own_fields(cloud, t).metric_speed_squared(cloud.weights, kind)

    def defect_rate(self, cloud: TokenCloud, t: float) -> float:
        r"""Defect :math:`\frac12 \int \hat b |v_{soft} - v_{grad}|^2 d\mu \ge 0` of the softmax flow."""
        return self.own_fields(cloud, t).defect_rate(cloud.weights)
