"""JKO schemes in the weighted Wasserstein distance of multi-head attention."""

from .attention import weights
from .attention.heads import Heads
from .attention.model import AttentionModel
from .measures import TokenCloud

__all__ = ["AttentionModel", "Heads", "TokenCloud", "weights"]
