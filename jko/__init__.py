"""JKO schemes in the weighted Wasserstein distance of multi-head attention."""

from . import sphere, weights
from .attention.heads import Heads
from .attention.model import AttentionModel
from .diagnostics.balance import EnergyBalance, energy_balance
from .diagnostics.convergence import convergence_study
from .diagnostics.convergence_table import ConvergenceTable
from .diagnostics.metric import metric_derivative
from .measures import TokenCloud
from .runs.curve import Curve
from .runs.flow import particle_flow
from .runs.movement import minimizing_movement
from .runs.store import load_curve as load
from .steps.advice import StepAdvice, step_advice
from .steps.proximal import proximal_step
from .steps.result import Certificate, StepResult
from .transport.distance import wasserstein
from .transport.weighted import weighted_distance

__version__ = "0.1.0"

__all__ = [
    "AttentionModel",
    "Certificate",
    "ConvergenceTable",
    "Curve",
    "EnergyBalance",
    "Heads",
    "StepAdvice",
    "StepResult",
    "TokenCloud",
    "convergence_study",
    "energy_balance",
    "load",
    "metric_derivative",
    "minimizing_movement",
    "particle_flow",
    "proximal_step",
    "sphere",
    "step_advice",
    "wasserstein",
    "weighted_distance",
    "weights",
]
