"""What every scheme is, and where the frozen mobility of a step comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .. import sphere
from .._validation import choice
from ..attention.model import AttentionModel
from ..measures import TokenCloud
from ..steps.proximal import StepOptions
from ..steps.result import StepResult
from ..transport.cost import any_log

__all__ = ["MOBILITIES", "Past", "Scheme"]

Array = NDArray[np.float64]

MOBILITIES = ("implicit", "extrapolated", "old")


@dataclass(frozen=True, kw_only=True)
class Past:
    r"""A former state of the curve, :math:`(t_k, \mu_k)`."""

    time: float
    cloud: TokenCloud


class Scheme(Protocol):
    r"""A scheme is immutable; what it remembers is passed in.

    It maps :math:`(\mu_k, \mu_{k-1}, \dots)` to :math:`\mu_{k+1}` by solving proximal problems.

    Attributes
    ----------
    name : str
        What `make_scheme` builds it from.
    order : int
        Its order in the step, on smooth weight paths.
    memory : int
        How many past states it looks at.
    """

    @property
    def name(self) -> str: ...

    @property
    def order(self) -> int: ...

    @property
    def memory(self) -> int: ...

    def advance(
        self, model: AttentionModel, past: tuple[Past, ...], end: float, options: StepOptions
    ) -> StepResult:
        """The step from ``past[-1]`` to time ``end``.

        ``cloud`` of the result is the new measure at ``end``, unless the status is
        ``PLAN_SPLITS``: then there is none.  If ``energy_time`` is ``end``, ``energy`` is that
        of the new measure; the other scalars describe the last proximal problem that was
        solved, as each scheme says.
        """
        ...


def require_labelled(options: StepOptions, scheme: str) -> None:
    """The schemes beyond JKO need one mobility per label, and tokens that move freely."""
    for name, wanted in (("cost", "source"), ("solver", "particles")):
        value = getattr(options, name)
        if value != wanted:
            raise ValueError(
                f"{name} must be {wanted!r} for scheme {scheme!r}, whose mobility is one frozen "
                f"number per token, got {value!r}"
            )


def along(x: Array, y: Array, s: float) -> Array:
    """The point at ``s`` of the geodesics from ``x`` (s = 0) through ``y`` (s = 1)."""
    points: Array = sphere.exp(x, s * any_log(x, y))
    return points


def given_mobility(
    kind: str, model: AttentionModel, past: tuple[Past, ...], t: float
) -> Array | None:
    r"""The mobility that a step takes from the past, one number per token; None if implicit.

    ``"old"``: :math:`\hat b(x_i; \mu_k, t_k)`.  ``"extrapolated"``: that of the measure extrapolated to ``t``
    along the geodesics of the last two, with the heads at ``t``: second order, and positive
    however fast the mobility changes.  Where there is no past to extrapolate from, implicit.
    """
    last = past[-1]
    if kind == "old":
        return model.effective_mobility(last.cloud.points, last.cloud, last.time)
    if kind == "implicit" or len(past) < 2:
        return None
    before = past[-2]
    s = (t - before.time) / (last.time - before.time)
    points = along(before.cloud.points, last.cloud.points, s)
    return model.effective_mobility(points, TokenCloud(points, last.cloud.weights), t)


@dataclass(frozen=True, kw_only=True)
class SecondOrder:
    """What the schemes of second order share: the choice of the mobility of a step."""

    mobility: str = "implicit"

    def __post_init__(self) -> None:
        choice(self.mobility, "mobility", MOBILITIES)

    @property
    def name(self) -> str:
        """The name of the class in lower case, with what differs from the default."""
        name = type(self).__name__.lower()
        return name if self.mobility == "implicit" else f"{name},mobility={self.mobility}"

    @property
    def order(self) -> int:
        """2, or 1 with the old mobility."""
        return 1 if self.mobility == "old" else 2

    @property
    def memory(self) -> int:
        """2 if the mobility is extrapolated, else 1."""
        return 2 if self.mobility == "extrapolated" else 1
