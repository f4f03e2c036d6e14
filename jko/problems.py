r"""Named problems with known answers, shared by tests, verification, docs and benchmarks.

Five reference cases have heads :math:`D_h(t) = D^0_h + \sin(2t) D^1_h`; their answers were computed
independently in double precision (an order-8 ODE solver at 1e-12, a step solver converged to
1e-15, two minimisers that agree).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from .attention.heads import Heads
from .attention.model import AttentionModel
from .attention.weights import FromFunction, OrnsteinUhlenbeck
from .measures import TokenCloud

__all__ = [
    "REFERENCE_CASES",
    "ModulatedPath",
    "Problem",
    "article_sphere",
    "pure_attraction",
    "pure_potential",
    "reference_case",
]

Array = NDArray[np.float64]

REFERENCE_CASES = (
    "circle_two_heads",
    "five_dim",
    "sphere_one_head",
    "sphere_three_heads",
    "sphere_weighted",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """An initial value problem, with what is known about it.

    >>> from jko import problems
    >>> problem = problems.pure_attraction()
    >>> problem.cloud.n, problem.known["final_angles"].round(6)
    (12, array([0.520283]))

    Attributes
    ----------
    name : str
    model : AttentionModel
    cloud : TokenCloud
        Initial measure.
    horizon : float
        Final time; the start is 0.
    step : float
        The step of the known proximal step.
    known : mapping of str to arrays
        Known answers, by the names of the reference data.
    """

    name: str
    model: AttentionModel
    cloud: TokenCloud
    horizon: float
    step: float
    known: Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class Modulated:
    """``t -> D0 + sin(2 t) D1`` with its derivative; a picklable function object."""

    constant: Array
    amplitude: Array
    weights: Array

    def __call__(self, t: float) -> Heads:
        """Heads at ``t``."""
        return Heads(self.constant + np.sin(2 * t) * self.amplitude, self.weights)

    def derivative(self, t: float) -> Array:
        """``2 cos(2 t) D1``."""
        return 2 * np.cos(2 * t) * self.amplitude


class ModulatedPath(FromFunction):
    r"""The weight path of the reference cases, :math:`D_h(t) = D^0_h + \sin(2t) D^1_h`."""

    def __init__(self, constant: Array, amplitude: Array, weights: Array) -> None:
        modulated = Modulated(constant, amplitude, weights)
        super().__init__(modulated, modulated.derivative)


@cache
def reference_case(name: str) -> Problem:
    """One of `REFERENCE_CASES`, by name.

    >>> from jko import problems
    >>> case = problems.reference_case("sphere_three_heads")
    >>> bool(abs(case.model.energy(case.cloud, 0.0) - case.known["energy_0"]) < 1e-12)
    True

    Raises
    ------
    ValueError
        For another name.
    """
    if name not in REFERENCE_CASES:
        raise ValueError(f"name must be one of {', '.join(REFERENCE_CASES)}, got {name!r}")
    with (
        files("jko").joinpath("data", f"{name}.npz").open("rb") as stream,
        np.load(stream, allow_pickle=False) as archive,
    ):
        known = {key: archive[key] for key in archive.files}
    path = ModulatedPath(known["D0"], known["D1"], known["head_weights"])
    return Problem(
        name=name,
        model=AttentionModel(path),
        cloud=TokenCloud(known["points"], known["weights"]),
        horizon=float(known["T"]),
        step=float(known["tau"]),
        known=known,
    )


def article_sphere(
    tokens: int = 200, heads: int = 10, horizon: float = 5.0, seed: int = 0
) -> Problem:
    r"""The article's case on S^2: octahedral tokens (noise 0.05), Ornstein-Uhlenbeck heads.

    :math:`dD_h = (I - D_h)\,dt + \sqrt2\, dW^{sym}_h`; initial heads ``Z + Z^T``, variance 2, base grid 0.005; step 0.05.
    """
    rng = np.random.default_rng(seed)
    cloud = TokenCloud.octahedral(tokens, 0.05, rng)
    path = OrnsteinUhlenbeck(Heads.gaussian(heads, 3, rng), horizon=horizon, rng=rng)
    return Problem(
        name=f"article_sphere_{heads}_heads",
        model=AttentionModel(path),
        cloud=cloud,
        horizon=horizon,
        step=0.05,
        known={},
    )


def _at_polar_angles(angles: Array, dim: int) -> Array:
    """Points at the given angles from the last axis; on S^2 at golden-section longitudes."""
    if dim == 2:
        return np.stack([np.sin(angles), np.cos(angles)], axis=1)
    longitude = np.pi * (1 + np.sqrt(5)) * np.arange(angles.size)
    radius = np.sin(angles)
    return np.stack(
        [radius * np.cos(longitude), radius * np.sin(longitude), np.cos(angles)], axis=1
    )


def pure_potential(
    dim: int = 2,
    tokens: int = 24,
    strength: float = 1.0,
    horizon: float = 1.0,
    step: float = 0.1,
    light: float = 0.0,
) -> Problem:
    r"""Tokens without weight in the fixed potential of one heavy token: known in closed form.

    One head :math:`D = c I` and a token of weight one at the last axis ``e``, where it stays. At the angle
    :math:`\theta` from ``e`` the mobility and the potential are both :math:`e^{c\cos\theta}`, so that

    .. math::  \theta' = c \sin\theta, \qquad \tan\tfrac{\theta(t)}{2} = e^{ct} \tan\tfrac{\theta(0)}{2},

    on the circle as along every meridian of S^2.  The JKO step solves one scalar equation,
    :math:`e^{c\cos\theta_0} (\theta - \theta_0)/\tau = c \sin\theta\, e^{c\cos\theta}`.

    Parameters
    ----------
    dim : {2, 3}
    tokens : int
        Light tokens, at angles 0.2 .. 2.6 from the heavy one.
    strength : float
        ``c > 0``.
    horizon, step : float
    light : float
        Total weight of the light tokens.  With zero the known answers are exact; a density on
        nodes needs a positive one, and then they are exact up to its size.

    Returns
    -------
    Problem
        Token 0 is the heavy one.  ``known`` holds the angles of the light tokens: ``angles``,
        ``final_angles`` (flow, at the horizon) and ``step_angles`` (one JKO step).

    References
    ----------
    One head: arXiv 2501.03096.  Single particles in attention: Geshkovski, Letrouit,
    Polyanskiy, Rigollet, "A mathematical perspective on transformers", arXiv 2312.10794.
    """
    angles = np.linspace(0.2, 2.6, tokens)

    def stationarity(new: float, old: float) -> float:
        pull = np.exp(strength * np.cos(old)) * (new - old) / step
        return float(pull - strength * np.sin(new) * np.exp(strength * np.cos(new)))

    axis = np.eye(dim)[-1:]
    weights = np.full(tokens + 1, light / tokens)
    weights[0] = 1 - light
    return Problem(
        name=f"pure_potential_{dim}d",
        model=AttentionModel(Heads(strength * np.eye(dim))),
        cloud=TokenCloud(np.concatenate([axis, _at_polar_angles(angles, dim)]), weights),
        horizon=horizon,
        step=step,
        known={
            "angles": angles,
            "final_angles": 2 * np.arctan(np.exp(strength * horizon) * np.tan(angles / 2)),
            "step_angles": np.array(
                [brentq(stationarity, a, np.pi, args=(a,), xtol=1e-15) for a in angles]
            ),
        },
    )


def pure_attraction(
    dim: int = 3,
    tokens: int = 12,
    strength: float = 1.0,
    angle: float = 1.0,
    horizon: float = 1.0,
    step: float = 0.1,
) -> Problem:
    r"""A line of latitude that contracts to the pole: known in closed form.

    One head :math:`D = c\, e e^T` with ``sign = -1``: scores :math:`c \cos\theta \cos\theta'` see the angle from the axis
    ``e`` alone, so tokens at one angle keep one angle,

    .. math::  \theta' = -c \sin\theta\cos\theta, \qquad \tan\theta(t) = e^{-ct} \tan\theta(0).

    On S^2 the tokens are equispaced on the line of latitude; on the circle they alternate between its two
    points.  The JKO step solves
    :math:`e^{c\cos^2\theta_0} (\theta - \theta_0)/\tau = -c \sin\theta\cos\theta\, e^{c\cos^2\theta}`.

    Parameters
    ----------
    dim : {2, 3}
    tokens : int
    strength : float
        ``c > 0``.
    angle : float
        Initial angle from the axis, in (0, pi/2).
    horizon, step : float

    Returns
    -------
    Problem
        ``known`` holds ``angles``, ``final_angles`` (flow, at the horizon) and ``step_angles`` (one
        JKO step), one entry each.

    References
    ----------
    arXiv 2501.03096; Geshkovski, Letrouit, Polyanskiy, Rigollet, arXiv 2312.10794.
    """

    def stationarity(new: float) -> float:
        pull = np.exp(strength * np.cos(angle) ** 2) * (new - angle) / step
        push = np.sin(new) * np.cos(new) * np.exp(strength * np.cos(new) ** 2)
        return float(pull + strength * push)

    if dim == 2:
        side = angle * (-1.0) ** np.arange(tokens)
        points = np.stack([np.sin(side), np.cos(side)], axis=1)
    else:
        longitude = 2 * np.pi * np.arange(tokens) / tokens
        ring = np.stack([np.cos(longitude), np.sin(longitude), np.zeros(tokens)], axis=1)
        points = np.sin(angle) * ring + np.cos(angle) * np.eye(3)[2]
    axis = np.eye(dim)[-1]
    return Problem(
        name=f"pure_attraction_{dim}d",
        model=AttentionModel(Heads(strength * np.outer(axis, axis)), sign=-1),
        cloud=TokenCloud(points),
        horizon=horizon,
        step=step,
        known={
            "angles": np.array([angle]),
            "final_angles": np.arctan(np.exp(-strength * horizon) * np.tan([angle])),
            "step_angles": np.array([brentq(stationarity, 0.0, angle, xtol=1e-15)]),
        },
    )
