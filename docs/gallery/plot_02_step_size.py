r"""
What the step size does
=======================

Every step is a minimisation, so no step is unstable: a large :math:`\tau` loses accuracy, not
control. Three steps on the circle, with the gradient flow below them.
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
# Fourteen tokens, two oscillating heads, and steps of 1/2, 1/8 and 1/32.

cloud = TokenCloud.pentagonal(14, noise=0.15, rng=3)
model = AttentionModel(weights.Oscillating(Heads.gaussian(2, dim=2, rng=5)))
span = (0.0, 3.0)
flow = particle_flow(model, cloud, span, t_eval=np.linspace(*span, 193))
curves = {n: minimizing_movement(model, cloud, span, step=1 / n) for n in (2, 8, 32)}
for n, curve in curves.items():
    gap = wasserstein(curve.final, flow.final)
    kinds = sorted({step.certificate.optimality for step in curve.steps})
    print(f"step 1/{n:<3} W2 to the flow at t = 3: {gap:.4f} rad, certificates: {kinds}")

# %%
# Left, angles of the tokens; right, the distance to the flow. Dividing the step by four divides
# the distance by about four: order one.


@styled
def draw():
    figure = new_figure(8.4, 4.2)
    left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
    angles = np.unwrap(np.arctan2(flow.points[..., 1], flow.points[..., 0]), axis=0)
    left.plot(flow.times, angles, color="#BBBBBB", linewidth=3.5)
    left.plot([], [], color="#BBBBBB", linewidth=3.5, label="gradient flow")
    looks = {2: ("vermilion", "o"), 8: ("blue", "s"), 32: ("green", "^")}
    for n, curve in curves.items():
        color, marker = looks[n]
        jumps = np.unwrap(np.arctan2(curve.points[..., 1], curve.points[..., 0]), axis=0)
        if n < 32:
            left.plot(curve.times, jumps, color=PALETTE[color], linewidth=1, marker=marker,
                      markersize=3.5)
        left.plot([], [], color=PALETTE[color], marker=marker, label=f"JKO, τ = 1/{n}")
        gaps = [wasserstein(curve.cloud(k), flow.at(t)) for k, t in enumerate(curve.times)]
        right.semilogy(curve.times[1:], gaps[1:], color=PALETTE[color], marker=marker,
                       markersize=3)
    left.set_xlabel("time t")
    left.set_ylabel("angle of every token [rad]")
    right.set_xlabel("time t")
    right.set_ylabel("$W_2$ to the gradient flow [rad]")
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


figure = draw()
figure.savefig("plot_02_step_size.png", dpi=150)
