r"""
One step, seen
==============

A JKO step moves a cloud :math:`\mu_k` to the minimiser of

.. math::

    \Phi(\nu) = \frac{1}{2\tau} \min_\pi \int \hat b(x)\, d(x, y)^2\, d\pi(x, y) + E(\nu, t_{k+1}).

It comes with a plan, and with a certificate: no token would gain by going elsewhere. Both can be
drawn.
"""

import numpy as np
from jko import AttentionModel, Heads, TokenCloud, proximal_step, sphere
from jko.plotting.style import PALETTE, new_figure, styled
from jko.plotting.tokens import lambert
from matplotlib import colormaps
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.patches import Circle

# %%
# Three heads :math:`A A^T/2`, all positive semidefinite: the energy is convex in the measure,
# and a zero gap then proves the *global* minimum over all measures.

rng = np.random.default_rng(4)
cloud = TokenCloud.uniform(60, rng=rng)
a = rng.standard_normal((3, 3, 3))
model = AttentionModel(Heads(a @ a.transpose(0, 2, 1) / 2))
tau = 0.25
step = proximal_step(model, cloud, 0.0, tau)
print(step.message)
print("optimality:", step.certificate.optimality)
print(f"{step.certificate.proven_tokens} of {step.certificate.total_tokens} tokens proven")
print(f"Frank-Wolfe gap: {step.certificate.optimality_gap:.1e} of the energy {step.energy:.3f}")

# %%
# The plan is a relabelling here, so token ``i`` goes to ``y[i]``; its price is
# :math:`\hat b_i d(x_i, y_i)^2/(2\tau)`. For one token the right column shows how much worse
# every other place of the sphere would be, :math:`f_i(y) - f_i(y_i)` with
# :math:`f_i(y) = \hat b_i d(x_i, y)^2/(2\tau) + V(y)`. The smallest value is zero, at
# :math:`y_i`: that is the certificate.

x, y = cloud.points, step.cloud.points
mobility = model.effective_mobility(x, cloud, 0.0)
price = mobility * sphere.distance(x, y) ** 2 / (2 * tau)
# the dearest move well inside the hemisphere in front
token = int(np.argmax(price * (x[:, 2] > 0.3) * (y[:, 2] > 0.3)))


def excess(points):
    """f_i(y) - f_i(y_i) of the chosen token."""
    distance = sphere.distance(x[token], points)
    value = model.first_variation(points, step.cloud, tau)
    f = mobility[token] * distance**2 / (2 * tau) + value
    own = price[token] + model.first_variation(y[[token]], step.cloud, tau)[0]
    return f - own


def disc(side, cells=201):
    """Points of a hemisphere over a square of its equal-area projection."""
    u, v = np.meshgrid(*[np.linspace(-1, 1, cells)] * 2)
    r2 = np.minimum(u**2 + v**2, 1)
    scale = np.sqrt(2 - r2)
    points = np.stack([u * scale, v * scale, side * (1 - r2)], axis=-1)
    return sphere.normalize(points.reshape(-1, 3)), u.shape


def bare(ax):
    ax.add_patch(rim := Circle((0, 0), 1, facecolor="none", edgecolor="#777777"))
    ax.set(aspect="equal", xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), xticks=[], yticks=[])
    ax.grid(False)
    ax.spines[:].set_visible(False)
    return rim


@styled
def draw():
    figure = new_figure(7.2, 7.0)
    axes = figure.subplots(2, 2)
    scale = Normalize(0, price.max())
    paths = sphere.geodesic(x[:, None], y[:, None], np.linspace(0, 1, 20)[None, :])
    maps = {side: excess(disc(side)[0]).reshape(disc(side)[1]) for side in (1, -1)}
    for row, side in enumerate((1, -1)):
        left, right = axes[row]
        bare(left)
        shown = (side * paths[..., 2] >= 0).any(axis=1)
        lines = LineCollection(
            [lambert(path[side * path[:, 2] >= 0]) for path in paths[shown]],
            array=price[shown], norm=scale, cmap=colormaps["viridis_r"], linewidths=2.2,
        )
        left.add_collection(lines)
        for points, face, name in ((x, "white", "before"), (y, "black", "after")):
            u, v = lambert(points[side * points[:, 2] >= 0]).T
            left.scatter(u, v, s=13, facecolor=face, edgecolor="black", linewidth=0.7,
                         zorder=3, label=name)
        rim = bare(right)
        image = right.imshow(np.maximum(maps[side], 1e-9), extent=(-1, 1, -1, 1), origin="lower",
                             norm=LogNorm(1e-2, 1e2), cmap="cividis_r")
        image.set_clip_path(rim)
        for point, marker, name in ((x[token], "o", "the token, before"),
                                    (y[token], "X", "the token, after")):
            if side * point[2] >= 0:
                right.scatter(*lambert(point[None])[0], s=70, marker=marker, zorder=4, label=name,
                              facecolor=PALETTE["vermilion"], edgecolor="white")
        left.set_ylabel("$x_3 \\geq 0$" if side > 0 else "$x_3 < 0$ (seen through)")
    axes[0, 0].set_title("plan")
    axes[0, 1].set_title("what one token would lose elsewhere")
    marks = [ax.get_legend_handles_labels() for ax in axes[0]]
    figure.legend(marks[0][0] + marks[1][0], marks[0][1] + marks[1][1],
                  loc="outside upper center", ncols=4)
    figure.colorbar(lines, ax=axes[:, 0], location="bottom", aspect=30, pad=0.02,
                    label=r"price of the move, $\hat b_i d^2/(2\tau)$ [energy]")
    figure.colorbar(image, ax=axes[:, 1], location="bottom", aspect=30, pad=0.02, extend="both",
                    label=r"$f_i(y) - f_i(y_i)$ [energy]")
    return figure


figure = draw()
figure.savefig("plot_01_one_step.png", dpi=150)
