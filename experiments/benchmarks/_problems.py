"""Random problems of the benchmarks."""

from __future__ import annotations

import jko
import numpy as np


def gaussian(
    n: int, heads: int, seed: int = 0, scale: float = 0.5, evaluator: str = "auto"
) -> tuple[jko.AttentionModel, jko.TokenCloud]:
    """Uniform tokens on S^2 and heads ``scale (Z + Z^T)``."""
    rng = np.random.default_rng(seed)
    cloud = jko.TokenCloud.uniform(n, 3, rng)
    z = rng.standard_normal((heads, 3, 3))
    matrices = scale * (z + z.transpose(0, 2, 1))
    return jko.AttentionModel(jko.Heads(matrices), evaluator=evaluator), cloud


def bounded(
    n: int, heads: int, norm: float = 3.0, seed: int = 0, evaluator: str = "auto"
) -> tuple[jko.AttentionModel, jko.TokenCloud]:
    """Uniform tokens on S^2 and heads ``Z + Z^T`` scaled to spectral norms of at most ``norm``.

    The largest head has that norm, the smallest half of it.
    """
    model, cloud = gaussian(n, heads, seed, 1.0, evaluator)
    matrices = model.heads(0).matrices
    size = np.linspace(norm, norm / 2, heads) / model.heads(0).norms
    return jko.AttentionModel(jko.Heads(matrices * size[:, None, None]), evaluator=evaluator), cloud
