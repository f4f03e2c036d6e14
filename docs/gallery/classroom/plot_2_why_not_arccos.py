r"""
Why arccos is wrong
===================

:math:`\arccos\langle x, y\rangle` is the distance on the sphere, on paper. In floating point the
inner product of two close points is one minus half a squared distance, rounded: below
:math:`10^{-8}` nothing is left.
"""

import numpy as np
from jko import sphere
from jko.plotting.style import PALETTE, new_figure, styled

# %%
# Pairs whose distance is known: a point, moved along a geodesic by a known angle.

rng = np.random.default_rng(0)
angles = np.geomspace(1e-12, 3.0, 400)
x = sphere.normalize(rng.standard_normal((angles.size, 3)))
tangent = sphere.normalize(sphere.project(x, rng.standard_normal(x.shape)))
y = sphere.exp(x, angles[:, None] * tangent)
methods = {
    "arccos": np.arccos(np.clip((x * y).sum(axis=1), -1, 1)),
    "2 arcsin(|x − y|/2)": 2 * np.arcsin(np.minimum(np.linalg.norm(x - y, axis=1) / 2, 1)),
    "2 atan2(|x − y|, |x + y|)": sphere.distance(x, y),
}
for name, values in methods.items():
    worst = np.abs(values / angles - 1).max()
    print(f"{name:<27} largest relative error {worst:.1e}")

# %%
# The remaining slope of the lower curves is not theirs: ``y`` itself is rounded to 1e-16, which
# a short distance feels. A JKO step with a small :math:`\tau` lives at the left end.


@styled
def draw():
    figure = new_figure(7.2, 4.0)
    ax = figure.subplots()
    looks = (("vermilion", "x"), ("orange", "+"), ("blue", "."))
    for (name, values), (color, marker) in zip(methods.items(), looks, strict=True):
        error = np.maximum(np.abs(values / angles - 1), 1e-17)
        ax.loglog(angles, error, marker, color=PALETTE[color], markersize=4.5, label=name)
    ax.axhline(1, color="#777777", linewidth=1, linestyle="--")
    ax.annotate("all digits lost", (3, 1), (0, 4), textcoords="offset points", ha="right",
                color="#555555", fontsize=9)
    ax.set_xlabel("true distance [rad]")
    ax.set_ylabel("relative error (1e-17: exact)")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=3,
                  markerscale=1.6)
    return figure


figure = draw()
figure.savefig("plot_2_why_not_arccos.png", dpi=150)
