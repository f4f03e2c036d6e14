r"""
Rough heads, smooth heads
=========================

Two paths of the heads from the same start: Ornstein-Uhlenbeck, sampled exactly on a base grid,
and the oscillating one. A path never depends on the solver's step, so a movement and a flow see
the same heads.
"""

import numpy as np
from jko import (
    AttentionModel,
    Heads,
    TokenCloud,
    minimizing_movement,
    particle_flow,
    wasserstein,
    weights,
)
from jko.plotting.style import PALETTE, new_figure, styled

# %%
# Adaptive high order is wasted on a rough path: there a fixed step that divides the base grid is
# right.

span = (0.0, 3.0)
cloud = TokenCloud.octahedral(30, rng=0)
heads = Heads.gaussian(3, rng=2)
paths = {
    "Ornstein-Uhlenbeck": weights.OrnsteinUhlenbeck(heads, horizon=3.0, base_step=0.01, rng=7),
    "oscillating": weights.Oscillating(heads),
}
movements, flows = {}, {}
for name, path in paths.items():
    model = AttentionModel(path)
    how = {"method": "heun", "step": 0.01} if "Orn" in name else {}
    flows[name] = particle_flow(model, cloud, span, **how)
    movements[name] = minimizing_movement(model, cloud, span, step=0.05, certify="none")
    gap = wasserstein(flows[name].final, movements[name].final)
    print(f"{name:<20} W2(JKO, gradient flow) at t = 3: {gap:.4f} rad")

# %%
# Above, one diagonal entry of every head; below, the energy. Its ups and downs are the work of
# the heads: between two changes of the heads it can only fall.


@styled
def draw():
    figure = new_figure(8.4, 5.0)
    axes = figure.subplots(2, 2, sharex=True, sharey="row")
    for column, (name, path) in enumerate(paths.items()):
        upper, lower = axes[:, column]
        times = np.linspace(*span, 301)
        entries = np.array([path(t).matrices[:, 0, 0] for t in times])
        for head, color in enumerate(("blue", "orange", "green")):
            upper.plot(times, entries[:, head], color=PALETTE[color], linewidth=1.1,
                       label=f"head {head + 1}")
        upper.set_title(name)
        flow, movement = flows[name], movements[name]
        lower.plot(flow.times, flow.energy, color="#AAAAAA", linewidth=4,
                       label="gradient flow")
        lower.plot(movement.times, movement.energy, ".", color="black", markersize=4,
                       label="JKO, τ = 0.05")
        lower.set_xlabel("time t")
    axes[0, 0].set_ylabel("first entry of each head")
    axes[1, 0].set_ylabel("energy E(μ, t)")
    marks = [axes[row, 0].get_legend_handles_labels() for row in (0, 1)]
    figure.legend(marks[0][0] + marks[1][0], marks[0][1] + marks[1][1],
                  loc="outside upper center", ncols=5)
    return figure


figure = draw()
figure.savefig("plot_04_rough_and_smooth_heads.png", dpi=150)
