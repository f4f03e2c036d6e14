"""Figures of curves and studies; every function takes data and returns a matplotlib figure.

Import this package where figures are drawn, not at the top of a library module: it loads
matplotlib.
"""

from .curves import (
    defect_over_time,
    plot_balance,
    plot_certificates,
    plot_defect,
    plot_dissipation,
    plot_distances,
    plot_energy,
    plot_slopes,
)
from .illustration import Illustration
from .studies import (
    plot_bounds,
    plot_convergence,
    plot_head_counts,
    plot_optimality,
    plot_residuals,
    plot_shares,
    plot_taylor,
)
from .style import PALETTE, curve_color, curve_label, save_figure, to_svg
from .tokens import plot_tokens

__all__ = [
    "PALETTE",
    "Illustration",
    "curve_color",
    "curve_label",
    "defect_over_time",
    "plot_balance",
    "plot_bounds",
    "plot_certificates",
    "plot_convergence",
    "plot_defect",
    "plot_dissipation",
    "plot_distances",
    "plot_energy",
    "plot_head_counts",
    "plot_optimality",
    "plot_residuals",
    "plot_shares",
    "plot_slopes",
    "plot_taylor",
    "plot_tokens",
    "save_figure",
    "to_svg",
]
