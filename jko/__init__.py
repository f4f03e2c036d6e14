"""JKO schemes in the weighted Wasserstein distance of multi-head attention."""

from .attention import weights
from .attention.heads import Heads
from .attention.model import AttentionModel
from .diagnostics.balance import EnergyBalance, energy_balance
from .measures import TokenCloud
from .runs.curve import Curve
from .runs.flow import particle_flow
from .runs.movement import minimizing_movement
from .steps.advice import step_advice
from .steps.proximal import proximal_step
from .transport.distance import wasserstein
from .transport.weighted import weighted_distance

__all__ = ["AttentionModel",
    "Curve",
    "EnergyBalance",
    "Heads",
    "TokenCloud",
    "energy_balance",
    "minimizing_movement",
    "particle_flow",
    "proximal_step",
    "step_advice",
    "wasserstein",
    "weighted_distance",
    "weights",
]
