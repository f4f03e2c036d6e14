"""Weight paths, for import as ``jko.weights``: see `jko.attention.weights`."""

from .attention.transformer import TransformerPath, TransformerReport, from_transformer
from .attention.weights import (
    FromFunction,
    Frozen,
    Interpolated,
    OrnsteinUhlenbeck,
    Oscillating,
    Perturbed,
    WeightPath,
)

__all__ = [
    "FromFunction",
    "Frozen",
    "Interpolated",
    "OrnsteinUhlenbeck",
    "Oscillating",
    "Perturbed",
    "TransformerPath",
    "TransformerReport",
    "WeightPath",
    "from_transformer",
]
