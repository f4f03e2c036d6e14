r"""
A convex step on a grid
=======================

On fixed nodes a step is a quadratic program over plans that may split mass. Where the kernel
matrix is positive semidefinite it is convex, and two solvers that share no code must find one
optimum.
"""

import numpy as np
from jko import AttentionModel, Heads, TokenCloud, proximal_step, sphere
from jko.plotting.density import plot_density
from jko.steps.grid import on_nodes

# %%
# A cloud of 400 tokens around two directions becomes a density on 500 Fibonacci nodes.

rng = np.random.default_rng(0)
nodes = sphere.fibonacci_nodes(500)
tokens = TokenCloud.clustered(400, [[1, 0, 1], [-0.6, 0.8, 0.4]], noise=0.25, rng=rng)
density = on_nodes(tokens, nodes)
a = rng.standard_normal((3, 3, 3))
model = AttentionModel(Heads(a @ a.transpose(0, 2, 1) / 2))

# %%
# The step is long enough for mass to cross several cells: short steps would be pinned by the
# nodes.

steps = {
    solver: proximal_step(model, density, 0.0, 0.5, solver=solver, support=nodes, tolerance=1e-9)
    for solver in ("cvxpy", "conditional_gradient")
}
for solver, step in steps.items():
    gap = step.certificate.optimality_gap
    print(f"{solver:<21} objective {step.objective:.12f}  gap {gap:.1e}  "
          f"{step.certificate.optimality}")
values = [step.objective for step in steps.values()]
print(f"difference {abs(values[0] - values[1]):.1e}")

# %%
# A step on nodes rounds every displacement to a node, so cells are averaged over 0.15 rad.

clouds = [density, *(step.cloud for step in steps.values())]
figure = plot_density(clouds, ["before", "cvxpy", "conditional gradient"], bandwidth=0.15)
figure.savefig("plot_06_convex_step_on_a_grid.png", dpi=150)
