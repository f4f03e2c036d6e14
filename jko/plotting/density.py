r"""Figures of densities on fixed nodes, and of what the nodes can resolve.

d = 2: density over the angle.  d = 3: the nodes' Voronoi cells on the two hemispheres, in Lambert's
azimuthal equal-area projection, all columns on one colour scale.

A step on nodes rounds every displacement to a node, so that single cells run empty or full while averages
over a few cells are right: the density converges weakly, not cell by cell.  ``bandwidth`` shows those
averages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from numpy.typing import NDArray
from scipy.spatial import SphericalVoronoi

from .. import sphere
from ..measures import TokenCloud
from ..steps.grid import Resolution
from ..steps.grid.resolution import PINNED_RATIO
from .arguments import members
from .style import PALETTE, legend_above, new_figure, styled

__all__ = ["plot_density", "plot_resolution"]

Array = NDArray[np.float64]

COLORS = ("blue", "vermilion", "green", "orange", "purple", "sky", "black", "grey")


@styled
def plot_density(
    clouds: TokenCloud | Sequence[TokenCloud], labels: str | Sequence[str], bandwidth: float = 0.0
) -> Figure:
    """Densities on nodes, ``weights / cell areas``, side by side or, on the circle, in one panel.

    Parameters
    ----------
    clouds : TokenCloud or sequence of them
        Densities on nodes of the circle or of S^2 (each on its own nodes, if need be).
    labels : str or sequence of str
        One a cloud.
    bandwidth : float
        Standard deviation, in radians, of the Gaussian that averages neighbouring cells; zero
        shows the cells as they are.  On the circle the cells stay visible as thin lines.

    Raises
    ------
    ValueError
        If there is no cloud, or their dimensions differ or exceed 3.
    """
    clouds = members(clouds, TokenCloud, "clouds")
    labels = members(labels, str, "labels")
    if len(labels) != len(clouds):
        raise ValueError(f"labels must be {len(clouds)} like clouds, got {len(labels)}")
    dims = {cloud.dim for cloud in clouds}
    if len(dims) != 1 or not dims <= {2, 3}:
        raise ValueError(f"clouds must be one or more clouds with d = 2 or 3, got d in {dims}")
    draw = _circle if dims == {2} else _hemispheres
    return draw(clouds, labels, bandwidth)


def node_density(cloud: TokenCloud, bandwidth: float = 0.0) -> Array:
    """``weights / areas`` of the cells, or its Gaussian average over neighbouring cells."""
    areas = sphere.node_areas(cloud.points)
    if bandwidth == 0:
        return cloud.weights / areas
    distance = sphere.distance_matrix(cloud.points, cloud.points)
    near = np.exp(-0.5 * (distance / bandwidth) ** 2)
    return (near @ cloud.weights) / (near @ areas)


def _circle(clouds: Sequence[TokenCloud], labels: Sequence[str], bandwidth: float) -> Figure:
    figure = new_figure()
    ax = figure.subplots()
    for index, (cloud, label) in enumerate(zip(clouds, labels, strict=True)):
        angle = np.arctan2(cloud.points[:, 1], cloud.points[:, 0])
        order = np.argsort(angle)
        color = PALETTE[COLORS[index % len(COLORS)]]
        if bandwidth > 0:
            cells = node_density(cloud)[order]
            ax.plot(angle[order], cells, color=color, linewidth=0.5, alpha=0.35)
        density = node_density(cloud, bandwidth)[order]
        ax.plot(angle[order], density, color=color, label=label)
    ax.set_xlim(-1.02 * np.pi, 1.02 * np.pi)
    ax.set_xticks([-np.pi, -np.pi / 2, 0, np.pi / 2, np.pi], ["−π", "−π/2", "0", "π/2", "π"])
    ax.set_ylim(bottom=0)
    ax.set_xlabel("angle [rad]")
    ax.set_ylabel("density [1/rad]")
    legend_above(figure, ax, 6)
    return figure


def _hemispheres(clouds: Sequence[TokenCloud], labels: Sequence[str], bandwidth: float) -> Figure:
    densities = [node_density(cloud, bandwidth) for cloud in clouds]
    top = max(float(density.max()) for density in densities)
    figure = new_figure(2.5 * len(clouds) + 0.9, 5.4)
    axes = figure.subplots(2, len(clouds), squeeze=False)
    for column, (cloud, density) in enumerate(zip(clouds, densities, strict=True)):
        for row, side in enumerate((1.0, -1.0)):
            shown = _cells(axes[row, column], cloud.points, density, side, top)
        axes[0, column].set_title(labels[column])
    axes[0, 0].set_ylabel("$x_3 \\geq 0$")
    axes[1, 0].set_ylabel("$x_3 < 0$ (seen through)")
    figure.colorbar(shown, ax=list(axes.flat), label="density [1/sr]", shrink=0.7)
    return figure


def _cells(ax: Axes, nodes: Array, density: Array, side: float, top: float) -> PolyCollection:
    """The cells that reach into one hemisphere, clipped at its rim."""
    diagram: Any = SphericalVoronoi(nodes, threshold=1e-9)
    diagram.sort_vertices_of_regions()
    cells, values = [], []
    for region, value in zip(diagram.regions, density, strict=True):
        corners = np.asarray(diagram.vertices[region])
        if (side * corners[:, 2]).max() <= 0:
            continue
        # equal-area projection, continued a little beyond the rim
        scale = np.sqrt(1 / np.maximum(1 + side * corners[:, 2], 0.2))
        cells.append(corners[:, :2] * scale[:, None])
        values.append(value)
    cells_shown = PolyCollection(
        cells, array=np.array(values), cmap=colormaps["viridis"], edgecolors="face", linewidths=0.2
    )
    cells_shown.set_clim(0, top)
    ax.add_collection(cells_shown)
    rim = Circle((0, 0), 1, facecolor="none", edgecolor="#666666", linewidth=0.8)
    ax.add_patch(rim)
    cells_shown.set_clip_path(rim)
    ax.set_aspect("equal")
    ax.set_xlim(-1.03, 1.03)
    ax.set_ylim(-1.03, 1.03)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.grid(False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return cells_shown


@styled
def plot_resolution(series: Sequence[Sequence[Resolution]], labels: Sequence[str]) -> Figure:
    r"""Speed over slope against :math:`\tau|v|/h`: one where nodes are fine enough, zero where they pin."""
    figure = new_figure()
    ax = figure.subplots()
    for index, (found, label) in enumerate(zip(series, labels, strict=True)):
        color = PALETTE[COLORS[index % len(COLORS)]]
        cells = [r.cells for r in found]
        ax.semilogx(cells, [r.ratio for r in found], "o-", color=color, label=label)
    ax.axhline(1.0, color=PALETTE["grey"], linewidth=1, linestyle="--")
    ax.axvline(0.5, color=PALETTE["grey"], linewidth=1, linestyle=":")
    ax.annotate(
        r"$2\tau|v| = h$", (0.5, 0.04), (4, 0), textcoords="offset points", fontsize=9,
        xycoords=("data", "axes fraction"), color="#444444",
    )
    ax.axhspan(0, PINNED_RATIO, color=PALETTE["grey"], alpha=0.12, linewidth=0)
    ax.set_ylim(bottom=0)
    ax.set_xlabel(r"node spacings a step wants to cross, $\tau |v| / h$")
    ax.set_ylabel("speed / slope")
    legend_above(figure, ax, 6)
    return figure
