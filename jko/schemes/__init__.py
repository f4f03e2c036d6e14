"""Time-stepping schemes: they turn the past of a curve into one step problem."""

from .base import MOBILITIES, Past, Scheme
from .multistep import BDF2
from .names import SCHEMES, make_scheme
from .onestep import JKO, VE2, Midpoint
from .richardson import Richardson

__all__ = [
    "BDF2",
    "JKO",
    "MOBILITIES",
    "SCHEMES",
    "VE2",
    "Midpoint",
    "Past",
    "Richardson",
    "Scheme",
    "make_scheme",
]
