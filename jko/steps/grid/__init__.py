"""The proximal step for densities on fixed nodes, by two independent solvers."""

from .interpolant import GridIdentity, grid_de_giorgi_integral
from .reproof import Reproof, reprove
from .resolution import Resolution, node_spacing
from .step import (
    GRID_SOLVERS,
    NodesError,
    on_nodes,
    require_on_nodes,
    resolution,
    solve_on_support,
)

__all__ = [
    "GRID_SOLVERS",
    "GridIdentity",
    "NodesError",
    "Reproof",
    "Resolution",
    "grid_de_giorgi_integral",
    "node_spacing",
    "on_nodes",
    "reprove",
    "require_on_nodes",
    "resolution",
    "solve_on_support",
]
