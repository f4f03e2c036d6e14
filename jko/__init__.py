"""JKO schemes in the weighted Wasserstein distance of multi-head attention."""

from .attention import weights
from .attention.heads import Heads
from .attention.model import AttentionModel
from .measures import TokenCloud
from .steps.proximal import proximal_step

__all__ = ["AttentionModel", "Heads", "TokenCloud", "proximal_step", "weights"]
