"""JKO schemes in the weighted Wasserstein distance of multi-head attention."""

from .attention import weights
from .attention.heads import Heads
from .attention.model import AttentionModel
from .measures import TokenCloud
from .runs.curve import Curve
from .runs.flow import particle_flow
from .runs.movement import minimizing_movement
from .steps.proximal import proximal_step

__all__ = ["AttentionModel",
    "Curve",
    "Heads",
    "TokenCloud",
    "minimizing_movement",
    "particle_flow",
    "proximal_step",
    "weights",
]
