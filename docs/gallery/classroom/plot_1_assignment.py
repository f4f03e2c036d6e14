r"""
The plan as an assignment
=========================

Between two clouds of equally many equal tokens an optimal plan is a permutation: everyone gets
one partner, and the total of squared distances is smallest. Names do not matter.
"""

import numpy as np
from jko import TokenCloud, sphere
from jko.plotting.style import PALETTE, new_figure, styled
from jko.transport.plan import optimal_plan

first = TokenCloud.clustered(10, sphere.circle_nodes(10), noise=0.12, rng=8)
second = TokenCloud.normalized(first.points + 0.45 * np.random.default_rng(9).normal(size=(10, 2)))
cost = sphere.distance_matrix(first.points, second.points) ** 2
best = optimal_plan(cost, first.weights, second.weights)
partner = best.plan.toarray().argmax(axis=1)
by_name = float(first.weights @ np.diag(cost))
print(f"by name: W2 would be {np.sqrt(by_name):.4f} rad; optimal: {np.sqrt(best.cost):.4f} rad")

# %%
# Left, who goes where; right, the same two plans as matrices over the cost. On the circle optimal
# paths never cross.


@styled
def draw():
    figure = new_figure(8.4, 4.6)
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.15])
    for pairs, color, width, name in (
        (np.arange(10), "orange", 5, "by name"),
        (partner, "blue", 1.8, "optimal plan"),
    ):
        radius = np.linspace(1.0, 1.35, 40)[:, None]
        for i, j in enumerate(pairs):
            arc = sphere.geodesic(first.points[i], second.points[j], np.linspace(0, 1, 40))
            left.plot(*(radius * arc).T, color=PALETTE[color], linewidth=width, alpha=0.85,
                      label=name if i == 0 else None, zorder=1 if color == "orange" else 2)
    left.scatter(*first.points.T, s=34, color="black", zorder=3, label="first cloud")
    left.scatter(*(1.35 * second.points.T), s=34, facecolor="white", edgecolor="black", zorder=3,
                 label="second cloud")
    left.set(aspect="equal", xticks=[], yticks=[], xlabel="$x_1$", ylabel="$x_2$")
    left.grid(False)
    left.spines[:].set_visible(False)
    image = right.imshow(cost, cmap="Greys")
    right.grid(False)
    right.scatter(np.arange(10), np.arange(10), s=120, marker="s", facecolor="none",
                  edgecolor=PALETTE["orange"], linewidth=2)
    right.scatter(partner, np.arange(10), s=45, color=PALETTE["blue"])
    right.set_xlabel("token of the second cloud")
    right.set_ylabel("token of the first cloud")
    figure.colorbar(image, ax=right, label="squared distance [rad²]")
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


figure = draw()
figure.savefig("plot_1_assignment.png", dpi=150)
