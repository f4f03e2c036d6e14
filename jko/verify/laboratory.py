"""The runs and measurements that claims and figures share, each made once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ..attention.heads import Heads
from ..attention.model import AttentionModel
from ..attention.weights import Oscillating
from ..measures import TokenCloud
from ..problems import REFERENCE_CASES, Problem, reference_case
from ..runs.curve import Curve
from ..runs.flow import particle_flow
from ..runs.movement import minimizing_movement

__all__ = ["FULL", "QUICK", "ArticleSize", "Extent", "Laboratory", "measured"]

Array = NDArray[np.float64]
Value = TypeVar("Value")

#: Step sizes at which single steps are certified and the discrete identity is closed.
STEP_SIZES = (0.02, 0.1, 0.4)

#: Tolerance of the direct flows.
FLOW_TOLERANCE = 1e-12


@dataclass(frozen=True, kw_only=True)
class ArticleSize:
    """How much is measured of the article's long runs.

    Attributes
    ----------
    tokens, paths : int
    rough_heads, rough_horizon, rough_step, smooth_heads, smooth_horizon
        Numbers of heads, horizon (and Heun step) under Ornstein-Uhlenbeck and oscillating heads.
    limit_tokens : int
        Tokens of the runs to stationarity.
    """

    tokens: int = 24
    paths: int = 4
    rough_heads: tuple[int, ...] = (1, 2, 5, 10, 20)
    rough_horizon: float = 10.0
    rough_step: float = 0.1
    smooth_heads: tuple[int, ...] = (1, 2, 5, 8)
    smooth_horizon: float = 60.0
    limit_tokens: int = 16


@dataclass(frozen=True, kw_only=True)
class Extent:
    """How much is measured.

    Attributes
    ----------
    cases : tuple of str
        Reference cases for claims about every case.
    problems : int
        Random problems for the mobility bounds.
    refinements : tuple of int
        Steps per unit time of the convergence studies.
    certified_steps : int
        Steps of every size that are certified, per case.
    identity_steps : int
        Steps of every size over which the discrete identity is summed.
    pairs : int
        Pairs of clouds for the frozen distance; an eighth of them for the dynamic one.
    segments : int
        Time intervals of the dynamic distance.
    head_counts, draws : tuple of int, int
        Numbers of heads of the article's simulation, and draws of each.
    tokens : int
        Tokens of that simulation.
    article : ArticleSize
        Sizes of the article's long runs.
    full_limits : bool
        Whether stability and limits (many heads, tokens, perturbations) are measured in full.
    """

    cases: tuple[str, ...] = REFERENCE_CASES
    problems: int = 24
    refinements: tuple[int, ...] = (10, 20, 40, 80, 160)
    certified_steps: int = 5
    identity_steps: int = 8
    pairs: int = 24
    segments: int = 4
    head_counts: tuple[int, ...] = (1, 2, 10, 100)
    draws: int = 3
    tokens: int = 200
    article: ArticleSize = ArticleSize()
    full_limits: bool = False


QUICK = Extent()
FULL = Extent(
    problems=96,
    certified_steps=25,
    identity_steps=50,
    pairs=96,
    segments=8,
    draws=9,
    article=ArticleSize(
        tokens=100,
        paths=8,
        rough_heads=(1, 2, 5, 10, 20, 50, 100),
        rough_horizon=20.0,
        rough_step=0.05,
        smooth_heads=(1, 2, 3, 4, 5, 8, 10),
        smooth_horizon=100.0,
        limit_tokens=60,
    ),
    full_limits=True,
)


class Laboratory:
    """Runs of the reference cases, cached.

    Parameters
    ----------
    extent : Extent
        How much is measured.
    """

    def __init__(self, extent: Extent = QUICK) -> None:
        self.extent = extent
        self._made: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of ``make()``, called the first time only."""
        if key not in self._made:
            self._made[key] = make()
        return cast(Value, self._made[key])

    def case(self, name: str) -> Problem:
        """A reference case."""
        return reference_case(name)

    def flow(self, name: str, velocity: str) -> Curve:
        """The direct flow of a case, kept at 41 times."""

        def make() -> Curve:
            case = self.case(name)
            times = np.linspace(0, case.horizon, 41)
            span = (0.0, case.horizon)
            return particle_flow(
                case.model, case.cloud, span, velocity, rtol=FLOW_TOLERANCE, t_eval=times
            )

        return self.once(("flow", name, velocity), make)

    def movement(self, name: str, count: int) -> Curve:
        """The JKO curve of a case with ``count`` steps, proofs in O(n) only."""

        def make() -> Curve:
            case = self.case(name)
            return minimizing_movement(
                case.model, case.cloud, (0.0, case.horizon), case.horizon / count, certify="local"
            )

        return self.once(("movement", name, count), make)

    def certified(self, name: str, step: float) -> Curve:
        """The first fully certified JKO steps of a case at a given step size."""

        def make() -> Curve:
            case = self.case(name)
            end = step * self.extent.certified_steps
            return minimizing_movement(case.model, case.cloud, (0.0, end), step)

        return self.once(("certified", name, step), make)

    def certified_runs(self) -> dict[tuple[str, float], Curve]:
        """`certified` for all cases and step sizes."""
        return {
            (name, step): self.certified(name, step)
            for name in self.extent.cases
            for step in STEP_SIZES
        }

    def oscillating(self) -> tuple[AttentionModel, TokenCloud]:
        """Three oscillating heads on 40 octahedral tokens."""
        rng = np.random.default_rng(0)
        model = AttentionModel(Oscillating(Heads.gaussian(3, 3, rng)))
        return model, TokenCloud.octahedral(40, 0.05, rng)

    def showcase(self) -> tuple[Curve, Curve, Curve]:
        """JKO, gradient flow and softmax flow of the three-headed case."""
        name = "sphere_three_heads"
        count = min(40, max(self.extent.refinements))
        return self.movement(name, count), self.flow(name, "gradient"), self.flow(name, "softmax")


def measured(function: Callable[[Laboratory], Value]) -> Callable[[Laboratory], Value]:
    """A measurement that a laboratory makes once, for claims and figures alike."""

    @wraps(function)
    def once(laboratory: Laboratory) -> Value:
        return laboratory.once(function, lambda: function(laboratory))

    return once
