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

from .attention.heads import Heads
from .attention.model import AttentionModel
from .attention.weights import FromFunction, OrnsteinUhlenbeck
from .measures import TokenCloud

__all__ = ["REFERENCE_CASES", "ModulatedPath", "Problem", "article_sphere", "reference_case"]

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
    """The weight path of the reference cases."""

    def __init__(self, constant: Array, amplitude: Array, weights: Array) -> None:
        modulated = Modulated(constant, amplitude, weights)
        super().__init__(modulated, modulated.derivative)


@cache
def reference_case(name: str) -> Problem:
    """One of `REFERENCE_CASES`, by name.

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
    """The article's case on S^2: octahedral tokens (noise 0.05), Ornstein-Uhlenbeck heads.

    Initial heads ``Z + Z^T``, variance 2, base grid 0.005; step 0.05.
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
