r"""
Why a grid pins mass
====================

On fixed nodes of spacing :math:`h`, moving to the neighbour costs :math:`\hat b h^2/(2\tau)` and
gains about :math:`|p| h = \hat b |v| h`. If :math:`2\tau |v| < h` staying is cheaper, for
*every* token: a smaller step does not help, it freezes the density.
"""

import numpy as np
from jko import proximal_step, sphere
from jko.plotting.density import plot_resolution
from jko.problems import pure_attraction
from jko.steps.grid import on_nodes, resolution

# %%
# Two groups of tokens on the circle that attract each other, at the angles :math:`\pm 1` from
# the axis: all have one speed, :math:`\theta' = -\sin\theta\cos\theta`, known and independent of
# everything below.

problem = pure_attraction(dim=2)
series, labels = [], []
for count in (100, 200, 400):
    nodes = sphere.circle_nodes(count)
    density = on_nodes(problem.cloud, nodes)
    found = []
    for tau in np.geomspace(0.25, 0.01, 40):
        step = proximal_step(problem.model, density, 0.0, tau, solver="conditional_gradient",
                             support=nodes, tolerance=1e-10)
        found.append(resolution(problem.model, density, step))
    series.append(found)
    labels.append(f"{count} nodes")
    print(f"{count} nodes, step {tau:.3g}: {found[-1]}")

# %%
# All node counts fall near one curve, rounding to whole cells (dashed): what matters is how many
# cells a step wants to cross. Below half a cell, none is crossed.

figure = plot_resolution(series, labels)
ax = figure.axes[0]
cells = np.geomspace(0.05, 8, 2000)
ax.plot(cells, np.round(cells) / cells, "--", color="black", linewidth=0.9, zorder=0)
figure.savefig("plot_3_why_grids_pin.png", dpi=150)
