"""Draw the figure of README and of the first page, readme.png: about half a minute.

Above, tokens of a minimizing movement and of the softmax flow on the sphere; below, energies,
distances between the curves, and the energy balance that closes next to the one that cannot.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jko import (
    AttentionModel,
    Heads,
    TokenCloud,
    energy_balance,
    minimizing_movement,
    particle_flow,
    wasserstein,
    weights,
)
from jko.plotting import PALETTE, save_figure
from jko.plotting.style import new_figure, styled
from matplotlib.figure import Figure
from matplotlib.patches import Circle

SPAN, STEP = (0.0, 3.0), 0.1
TIMES = (0.0, 0.3, 1.0, 3.0)
COLORS = {"JKO": "blue", "gradient flow": "green", "softmax flow": "vermilion"}


def curves():
    """JKO and the two direct flows from the article's cloud, three oscillating heads."""
    cloud = TokenCloud.octahedral(90, noise=0.05, rng=0)
    model = AttentionModel(weights.Oscillating(Heads.gaussian(3, rng=1)))
    movement = minimizing_movement(model, cloud, SPAN, step=STEP)
    times = movement.times
    flows = {
        kind: particle_flow(model, cloud, SPAN, velocity=kind, rtol=1e-10, t_eval=times)
        for kind in ("gradient", "softmax")
    }
    return {
        "JKO": movement,
        "gradient flow": flows["gradient"],
        "softmax flow": flows["softmax"],
    }


def view() -> np.ndarray:
    """Rows: right, up and towards the reader."""
    azimuth, height = np.radians(28), np.radians(22)
    towards = np.array(
        [np.cos(height) * np.cos(azimuth), np.cos(height) * np.sin(azimuth), np.sin(height)]
    )
    right = np.array([-np.sin(azimuth), np.cos(azimuth), 0.0])
    return np.stack([right, np.cross(towards, right), towards])


def grid_lines(ax, turn) -> None:
    """Meridians and parallels of the half that faces the reader."""
    s = np.linspace(0, 2 * np.pi, 241)
    lines = [
        np.stack([np.cos(a) * np.sin(s), np.sin(a) * np.sin(s), np.cos(s)], axis=1)
        for a in np.arange(6) * np.pi / 6
    ]
    lines += [
        np.stack([np.cos(b) * np.cos(s), np.cos(b) * np.sin(s), np.full_like(s, np.sin(b))], axis=1)
        for b in np.radians([-60, -30, 0, 30, 60])
    ]
    for line in lines:
        seen = line @ turn.T
        seen[seen[:, 2] < 0] = np.nan
        ax.plot(seen[:, 0], seen[:, 1], color="#D2D7DC", linewidth=0.6, zorder=1)


def globe(ax, movement, softmax, t: float) -> None:
    """Tokens at one time: dots for JKO, open rings for the softmax flow, faint on the far side."""
    turn = view()
    ax.add_patch(Circle((0, 0), 1, facecolor="#F4F7FA", edgecolor="#8A949E", linewidth=0.9))
    grid_lines(ax, turn)
    for curve, name in ((softmax, "softmax flow"), (movement, "JKO")):
        color = PALETTE[COLORS[name]]
        seen = curve.at(t).points @ turn.T
        for front in (False, True):
            u, v = seen[(seen[:, 2] >= 0) == front, :2].T
            look = {"alpha": 1.0 if front else 0.22, "zorder": 3 if front else 2}
            if name == "JKO":
                ax.scatter(u, v, s=13, color=color, linewidths=0, **look)
            else:
                ax.scatter(u, v, s=26, facecolors="none", edgecolors=color, linewidths=1, **look)
    ax.set(aspect="equal", xlim=(-1.03, 1.03), ylim=(-1.03, 1.03))
    ax.axis("off")
    ax.set_title(f"t = {t:g}")


@styled
def draw() -> Figure:
    """Build the figure."""
    found = curves()
    movement, gradient, softmax = found.values()
    figure = new_figure(10.4, 6.1)
    above, below = figure.subfigures(2, 1, height_ratios=[1.0, 1.02])
    for ax, t in zip(above.subplots(1, len(TIMES)), TIMES, strict=True):
        globe(ax, movement, softmax, t)
    energy, distance, balance = below.subplots(1, 3)
    for name, curve in found.items():
        style = "o" if name == "JKO" else "--" if name == "softmax flow" else "-"
        energy.plot(curve.times, curve.energy, style, color=PALETTE[COLORS[name]], markersize=3.2)
    energy.set(xlabel="time t", ylabel="energy E(μ, t)", title="Same energy, two flows")
    for name, flow in (("gradient flow", gradient), ("softmax flow", softmax)):
        gaps = [
            wasserstein(movement.cloud(k), flow.cloud(k)) for k in range(1, movement.times.size)
        ]
        distance.plot(movement.times[1:], gaps, color=PALETTE[COLORS[name]])
    distance.set(
        xlabel="time t",
        ylabel="$W_2$ from JKO [rad]",
        title="JKO follows one of them",
        ylim=(0, None),
    )
    for name, curve in (("JKO", movement), ("softmax flow", softmax)):
        result = energy_balance(curve)
        shown = np.maximum(np.abs(result.residual[1:]) / result.total_variation, 1e-18)
        balance.semilogy(result.times[1:], shown, color=PALETTE[COLORS[name]])
        print(f"{name}: relative residual {shown[-1]:.2e}")
    balance.set(
        xlabel="time t",
        ylabel="residual of the energy balance\n(relative to the energy's variation)",
        title="Its balance closes",
        ylim=(1e-17, 10),
    )
    handles = [
        figure.axes[0].scatter([], [], s=22, color=PALETTE["blue"]),
        energy.plot([], [], color=PALETTE["green"])[0],
        figure.axes[0].scatter([], [], s=30, facecolors="none", edgecolors=PALETTE["vermilion"]),
    ]
    labels = [
        "JKO, τ = 0.1, every step certified",
        "gradient flow",
        "softmax flow (three heads)",
    ]
    figure.legend(handles, labels, loc="outside upper center", ncols=3)
    print(movement.message, {step.certificate.optimality for step in movement.steps})
    return figure


if __name__ == "__main__":
    save_figure(draw(), Path(__file__).with_name("readme.png"))
