r"""
Clustering
==========

With ``sign=-1`` the flow descends :math:`-E`: tokens attract each other, as in the usual
transformer. They gather in a few clusters, and the clusters merge slowly.
"""

import numpy as np
from jko import AttentionModel, Heads, TokenCloud, minimizing_movement, particle_flow
from jko.diagnostics.limits import cluster_count
from jko.plotting import PALETTE, plot_tokens
from jko.plotting.style import new_figure, styled

# %%
# One head, a multiple of the identity: the larger it is, the more local the attraction. A
# movement with steps of 0.05 follows the flow until a token near a watershed takes the other
# side.

cloud = TokenCloud.uniform(80, rng=1)
times = np.concatenate([[0], np.geomspace(0.05, 60, 60)])
flows = {
    beta: particle_flow(AttentionModel(Heads(beta * np.eye(3)), sign=-1), cloud, (0, 60),
                        rtol=1e-6, t_eval=times)
    for beta in (1.0, 4.0, 9.0)
}
movement = minimizing_movement(flows[4.0].model, cloud, (0, 4), step=0.05, certify="none")
print(movement.message)

# %%
# Tokens of the movement and of the flow for D = 4 I.

figure = plot_tokens([movement, flows[4.0]], times=[0, 0.5, 1.5, 4])
figure.savefig("plot_05_clustering_tokens.png", dpi=150)

# %%
# The number of clusters (tokens linked by gaps below 0.1 rad) over time, for three heads.


@styled
def draw():
    figure = new_figure(7.2, 3.6)
    ax = figure.subplots()
    looks = zip(flows.items(), ("blue", "orange", "vermilion"), ("-", "--", ":"), strict=True)
    for (beta, flow), color, line in looks:
        counts = [cluster_count(flow.cloud(k), 0.1) for k in range(flow.times.size)]
        ax.loglog(flow.times[1:], counts[1:], line, color=PALETTE[color], drawstyle="steps-post",
                  linewidth=2.2, label=f"D = {beta:g} I")
    ax.set_xlabel("time t")
    ax.set_ylabel("clusters")
    ax.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    ax.minorticks_off()
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


figure = draw()
figure.savefig("plot_05_clustering.png", dpi=150)
