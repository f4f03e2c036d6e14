"""What figures may be given: one curve or several, and errors that name the argument."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..measures import TokenCloud
from ..runs.curve import Curve

__all__ = ["Curves", "Shown", "Still", "as_curves", "as_shown", "members", "require_curve"]

Array = NDArray[np.float64]
Member = TypeVar("Member")

#: One curve, or several.
Curves = Curve | Sequence[Curve]


@dataclass(frozen=True, kw_only=True, eq=False)
class Still:
    """A token cloud on its own, which looks the same at all times.

    Attributes
    ----------
    cloud : TokenCloud
    number : int
        Among the clouds of its figure, from 0.
    """

    cloud: TokenCloud
    number: int

    @property
    def label(self) -> str:
        """What a legend calls it."""
        return f"cloud {self.number + 1}"

    @property
    def points(self) -> Array:
        """As of a curve with a single time, (1, n, d)."""
        return self.cloud.points[None]

    def at(self, t: float) -> TokenCloud:
        """The cloud."""
        return self.cloud


Shown = Curve | Still


def members(value: object, kind: type[Member], name: str) -> tuple[Member, ...]:
    """``value`` alone, or its members, all of one kind."""
    if isinstance(value, kind):
        return (value,)
    several = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    wrong = [item for item in several if not isinstance(item, kind)]
    if wrong:
        raise TypeError(
            f"{name} must be a {kind.__name__} or a sequence of them, got "
            f"{'' if several == (value,) else 'a sequence with '}{type(wrong[0]).__name__}"
        )
    return several


def as_curves(value: object, name: str = "curves") -> tuple[Curve, ...]:
    """One curve or several, as a tuple."""
    return members(value, Curve, name)


def as_shown(value: object, name: str = "curves") -> tuple[Shown, ...]:
    """Curves and token clouds, one or several; clouds get a label."""
    alone = isinstance(value, Curve | TokenCloud)
    several = (value,) if alone or not isinstance(value, Iterable) else tuple(value)
    found: list[Shown] = []
    for item in several:
        if isinstance(item, TokenCloud):
            number = sum(isinstance(other, Still) for other in found)
            found.append(Still(cloud=item, number=number))
        elif isinstance(item, Curve):
            found.append(item)
        else:
            raise TypeError(
                f"{name} must be a Curve, a TokenCloud or a sequence of them, got "
                f"{'' if several == (value,) else 'a sequence with '}{type(item).__name__}"
            )
    return tuple(found)


def require_curve(value: object, name: str = "curve") -> Curve:
    """``value``, if it is a curve."""
    if not isinstance(value, Curve):
        raise TypeError(f"{name} must be a Curve, got {type(value).__name__}")
    return value
