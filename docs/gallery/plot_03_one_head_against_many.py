r"""
One head against many
=====================

For one head the softmax velocity *is* the gradient-flow velocity. For several heads it is not;
the difference, weighted by the mobility, is the defect

.. math:: \tfrac12\, \hat b\, |v_{soft} - v_{grad}|^2 .

Its integral over the measure is the rate at which the energy-dissipation identity fails.
"""

import numpy as np
from jko import AttentionModel, Heads, TokenCloud, sphere
from jko.plotting.style import new_figure, styled
from jko.plotting.tokens import lambert
from matplotlib.patches import Circle

# %%
# The article's cloud, 200 tokens near the octahedron's vertices, and the first 1, 2 and 10 of
# the same Gaussian heads.

cloud = TokenCloud.octahedral(200, noise=0.05, rng=0)
all_heads = Heads.gaussian(10, rng=1).matrices
models = {count: AttentionModel(Heads(all_heads[:count])) for count in (1, 2, 10)}
for count, model in models.items():
    rate, slope = model.defect_rate(cloud, 0.0), model.slope_squared(cloud, 0.0)
    print(f"{count:2d} heads: defect {rate:10.4f}, squared slope {slope:10.4f}")

# %%
# Two vector fields on the whole sphere, from the same kernel sums. The colour is logarithmic;
# tokens are white.


def defect_density(model, points):
    fields = model.fields(points, cloud, 0.0)
    gap = fields.softmax_velocity - fields.gradient_velocity
    return 0.5 * fields.effective_mobility * (gap**2).sum(axis=1)


def disc(side, cells=161):
    """Points of a hemisphere over a square of its equal-area projection."""
    u, v = np.meshgrid(*[np.linspace(-1, 1, cells)] * 2)
    r2 = np.minimum(u**2 + v**2, 1)
    scale = np.sqrt(2 - r2)
    points = np.stack([u * scale, v * scale, side * (1 - r2)], axis=-1)
    return sphere.normalize(points.reshape(-1, 3)), u.shape


@styled
def draw():
    figure = new_figure(8.4, 5.9)
    axes = figure.subplots(2, 3)
    for column, (count, model) in enumerate(models.items()):
        for row, side in enumerate((1, -1)):
            ax = axes[row, column]
            points, shape = disc(side)
            shown = np.log10(np.maximum(defect_density(model, points), 1e-3)).reshape(shape)
            ax.add_patch(rim := Circle((0, 0), 1, facecolor="none", edgecolor="#777777"))
            image = ax.imshow(shown, extent=(-1, 1, -1, 1), origin="lower", cmap="viridis",
                              vmin=-3, vmax=0, interpolation="bilinear")
            image.set_clip_path(rim)
            u, v = lambert(cloud.points[side * cloud.points[:, 2] >= 0]).T
            ax.scatter(u, v, s=7, facecolor="white", edgecolor="black", linewidth=0.4)
            ax.set(aspect="equal", xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), xticks=[], yticks=[])
            ax.grid(False)
            ax.spines[:].set_visible(False)
        axes[0, column].set_title(f"{count} head{'s' if count > 1 else ''}")
    axes[0, 0].set_ylabel("$x_3 \\geq 0$")
    axes[1, 0].set_ylabel("$x_3 < 0$ (seen through)")
    bar = figure.colorbar(image, ax=axes, shrink=0.75, extend="both",
                          label=r"$\frac{1}{2}\hat b\,|v_{soft} - v_{grad}|^2$ [energy / time]")
    bar.set_ticks(range(-3, 1), labels=[f"$10^{{{k}}}$" for k in range(-3, 1)])
    return figure


figure = draw()
figure.savefig("plot_03_one_head_against_many.png", dpi=150)
