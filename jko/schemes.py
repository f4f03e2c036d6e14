"""Time-stepping schemes: they turn the past of a curve into one step problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .attention.model import AttentionModel
from .measures import TokenCloud
from .steps.proximal import StepOptions, proximal_step
from .steps.result import StepResult

__all__ = ["JKO", "Past", "Scheme", "make_scheme"]


@dataclass(frozen=True, kw_only=True)
class Past:
    """A former state of the curve."""

    time: float
    cloud: TokenCloud


class Scheme(Protocol):
    """A scheme is immutable; what it remembers is passed in.

    Attributes
    ----------
    name : str
    memory : int
        How many past states it looks at.
    """

    @property
    def name(self) -> str: ...

    @property
    def memory(self) -> int: ...

    def advance(
        self, model: AttentionModel, past: tuple[Past, ...], end: float, options: StepOptions
    ) -> StepResult:
        """The step from ``past[-1]`` to time ``end``."""
        ...


@dataclass(frozen=True)
class JKO:
    r"""The minimizing movement :math:`\mu_{k+1} \in \arg\min W^2(\mu_k, \nu)/(2\tau) + E(\nu, t_{k+1})`.

    Mobility frozen at ``(mu_k, t_k)``; first order.
    """

    name: str = "jko"
    memory: int = 1

    def advance(
        self, model: AttentionModel, past: tuple[Past, ...], end: float, options: StepOptions
    ) -> StepResult:
        """One proximal step."""
        last = past[-1]
        return proximal_step(
            model, last.cloud, last.time, end - last.time, energy_time=end, **vars(options)
        )


def make_scheme(name: str) -> Scheme:
    """The scheme called ``name``.

    Raises
    ------
    ValueError
        If there is none.
    """
    if name == "jko":
        return JKO()
    raise ValueError(f"scheme must be 'jko', got {name!r}")
