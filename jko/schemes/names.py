"""Schemes by name."""

from __future__ import annotations

from .base import Scheme
from .multistep import BDF2
from .onestep import JKO, VE2, Midpoint
from .richardson import Richardson

__all__ = ["SCHEMES", "make_scheme"]

SCHEMES = ("jko", "midpoint", "bdf2", "ve2", "richardson-jko", "richardson-midpoint")


def make_scheme(name: str | Scheme) -> Scheme:
    """The scheme called ``name``, such as ``"bdf2"`` or ``"bdf2,mobility=old,start=jko"``.

    A scheme is passed through; ``make_scheme(scheme.name) == scheme``.

    >>> from jko.schemes import make_scheme
    >>> make_scheme("bdf2").order
    2

    Raises
    ------
    ValueError
        If there is no such scheme, or it has no such option.
    """
    if not isinstance(name, str):
        return name
    base, *options = name.split(",")
    if base not in SCHEMES:
        listed = ", ".join(map(repr, SCHEMES))
        raise ValueError(f"scheme must be one of {listed}, got {name!r}")
    if not all(option.count("=") == 1 for option in options):
        raise ValueError(f"scheme must have options of the form name=value, got {name!r}")
    try:
        return _build(base, dict(option.split("=") for option in options))
    except TypeError as problem:
        raise ValueError(f"scheme {name!r} has an option that {base!r} does not know") from problem

def _build(base: str, settings: dict[str, str]) -> Scheme:
    if base == "richardson-jko":
        return Richardson(base=JKO(**settings))
    if base == "richardson-midpoint":
        return Richardson(base=Midpoint(**settings))
    kinds = {"jko": JKO, "midpoint": Midpoint, "bdf2": BDF2, "ve2": VE2}
    return kinds[base](**settings)
