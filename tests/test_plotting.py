"""Figures: complete, labelled, quiet towards the rest of matplotlib."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from jko import (
    AttentionModel,
    Heads,
    TokenCloud,
    energy_balance,
    minimizing_movement,
    particle_flow,
    sphere,
)
from jko.plotting import (
    curve_label,
    defect_over_time,
    plot_balance,
    plot_bounds,
    plot_certificates,
    plot_convergence,
    plot_defect,
    plot_dissipation,
    plot_distances,
    plot_energy,
    plot_head_counts,
    plot_optimality,
    plot_residuals,
    plot_shares,
    plot_slopes,
    plot_taylor,
    plot_tokens,
    save_figure,
    to_svg,
)
from jko.plotting.density import plot_density
from jko.plotting.tokens import lambert, principal_coordinates
from matplotlib.figure import Figure


def make_curves(dim: int, heads: int = 2):
    model = AttentionModel(Heads.gaussian(heads, dim, 0))
    cloud = TokenCloud.cross_polytope(12, dim, 0.2, 1)
    movement = minimizing_movement(model, cloud, (0, 0.2), 0.05)
    times = np.linspace(0, 0.2, 5)
    flows = [
        particle_flow(model, cloud, (0, 0.2), kind, t_eval=times)
        for kind in ("gradient", "softmax")
    ]
    return (movement, *flows)


@pytest.fixture(scope="module", params=[2, 3, 5])
def curves(request):
    return make_curves(request.param)


@pytest.fixture(scope="module")
def sphere_curves():
    return make_curves(3)


def check(figure: Figure) -> Figure:
    """Every axes labelled on its outer sides, legends off the axes, and it can be drawn."""
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()
    assert figure.axes
    outer = [ax for ax in figure.axes if ax.get_xlabel()]
    assert outer, "no x label"
    assert any(ax.get_ylabel() for ax in figure.axes), "no y label"
    for ax in figure.axes:
        assert ax.get_legend() is None, "a legend covers data"
        spec = ax.get_subplotspec()
        shared = ax.get_shared_x_axes().get_siblings(ax)
        if spec.is_last_row() and len(shared) == 1:
            assert ax.get_xlabel() or ax.get_aspect() == 1.0
    for size in [t.get_fontsize() for ax in figure.axes for t in ax.get_xticklabels()]:
        assert size >= 8
    return figure


def labels(figure: Figure) -> set[str]:
    return {text.get_text() for legend in figure.legends for text in legend.get_texts()}


def test_tokens_are_drawn_in_every_dimension(curves):
    figure = check_tokens(plot_tokens(curves))
    assert labels(figure) == {"JKO", "gradient flow", "softmax flow"}
    dim = curves[0].points.shape[2]
    assert len(figure.axes) == (4 if dim == 2 else 8)
    assert [ax.get_title() for ax in figure.axes[:4]] == [
        "t = 0",
        "t = 0.0667",
        "t = 0.133",
        "t = 0.2",
    ]
    if dim == 5:
        assert "principal coordinates of 5" in figure.get_supxlabel()


def check_tokens(figure: Figure) -> Figure:
    figure.draw_without_rendering()
    assert all(ax.get_legend() is None for ax in figure.axes)
    assert any(ax.get_ylabel() for ax in figure.axes)
    return figure


def test_every_token_is_drawn_once_per_time_and_curve(sphere_curves):
    figure = plot_tokens(sphere_curves, times=[0.1])
    drawn = [len(points.get_offsets()) for ax in figure.axes for points in ax.collections]
    assert sum(drawn) == 3 * 12
    with pytest.raises(ValueError, match="one dimension"):
        plot_tokens([sphere_curves[0], make_curves(2)[0]])
    with pytest.raises(ValueError, match="one dimension"):
        plot_tokens([])


def test_the_projection_keeps_areas_and_the_rim():
    nodes = TokenCloud.uniform(20_000, 3, 0).points
    radius = np.linalg.norm(lambert(nodes), axis=1)
    assert radius.max() <= 1 + 1e-12
    # uniform on the sphere is uniform on the disc: the squared radius is uniform on [0, 1]
    assert np.quantile(radius**2, [0.25, 0.5, 0.75]) == pytest.approx([0.25, 0.5, 0.75], abs=0.02)
    assert np.linalg.norm(lambert(np.array([[1.0, 0, 0]]))) == pytest.approx(1)


def test_principal_coordinates_carry_most_of_the_length():
    curves = make_curves(5)
    principal = principal_coordinates(curves)
    assert principal.axes @ principal.axes.T == pytest.approx(np.eye(3), abs=1e-12)
    coordinates = principal(curves[0].points)
    spread = (coordinates**2).mean(axis=(0, 1))
    assert (np.diff(spread) <= 1e-3).all()
    assert 3 / 5 <= principal.share < 1


def test_figures_over_time(sphere_curves):
    movement, gradient, softmax = sphere_curves
    assert labels(check(plot_energy(sphere_curves))) == {"JKO", "gradient flow", "softmax flow"}
    check(plot_slopes(sphere_curves))
    check(plot_dissipation(movement))
    check(plot_certificates(movement))
    shown = labels(check(plot_balance(energy_balance(softmax))))
    assert {"defect", "|residual|", "|closure|", "energy change"} <= shown
    assert "defect" not in labels(check(plot_balance(energy_balance(gradient))))
    distances = {"JKO to gradient flow": [0, 1e-3, 2e-3], "JKO to softmax flow": [0, 1e-2, 2e-2]}
    figure = check(plot_distances([0, 0.1, 0.2], distances))
    assert figure.axes[0].get_yscale() == "log"
    for flow in sphere_curves:
        check(plot_defect(flow))
    for draw in (plot_dissipation, plot_certificates):
        with pytest.raises(ValueError, match="at least one step"):
            draw(gradient)


def test_the_defect_over_time_agrees_however_it_is_found(sphere_curves):
    movement, gradient, softmax = sphere_curves
    times, rate, total = defect_over_time(softmax)
    assert total[-1] == pytest.approx(softmax.integrals["defect"][-1])
    trapezoid = np.trapezoid(rate, times)
    assert trapezoid == pytest.approx(total[-1], rel=0.05)
    assert (rate > 0).all()
    without = defect_over_time(replace(softmax, model=None))
    assert np.trapezoid(without[1], without[0]) == pytest.approx(total[-1], rel=0.3)
    assert not defect_over_time(gradient)[1].any()
    # along the movement: the softmax velocity's defect at the movement's own measures
    assert defect_over_time(movement)[1][0] == pytest.approx(rate[0])
    with pytest.raises(ValueError, match="weight path"):
        defect_over_time(replace(movement, model=None))


def test_the_terms_of_a_movement_add_up(sphere_curves):
    movement = sphere_curves[0]
    ax = plot_dissipation(movement).axes[0]
    stacked = np.zeros(movement.times.size)
    for band in ax.collections:
        vertices = band.get_paths()[0].vertices
        for k, t in enumerate(movement.times):
            heights = vertices[np.isclose(vertices[:, 0], t), 1]
            stacked[k] += np.sign(heights.sum()) * np.ptp(heights)
    assert stacked == pytest.approx(movement.energy - movement.energy[0], abs=1e-12)


def test_study_figures(sphere_curves):
    steps = np.array([0.1, 0.05, 0.025])
    errors = {"JKO to gradient flow": steps, "JKO to softmax flow": 0.12 + steps}
    figure = check(plot_convergence(steps, errors, {"JKO to softmax flow": 0.12}))
    ax = figure.axes[0]
    assert ax.get_xscale() == ax.get_yscale() == "log"
    texts = [text.get_text() for text in ax.texts]
    assert texts.count("1") == 2, "a slope triangle of order 1"
    assert "0.1200" in texts
    figure = check(plot_taylor(steps, {"a case": steps**2}))
    assert {"1", "2"} <= {text.get_text() for text in figure.axes[0].texts}
    check(plot_optimality({"case, step 0.05": sphere_curves[0].steps}))
    check(plot_residuals({"step 0.1": 1e-14, "step 0.2": 0.0}, 1e-8, "residual"))
    check(plot_bounds([0.5, 0.4], {"frozen": [1, 2]}, [2, 3], "$W^2/W_2^2$"))
    check(plot_shares({"1": [0.0, 0.0], "10": [0.3, 1.4]}, "share [%]", "number of heads H"))


def test_head_counts_show_the_mean_and_the_range_of_the_draws():
    counts, draws = [1, 2, 10], np.array([[1.0, 0.5, 0.1], [3.0, 1.5, 0.3]])
    ax = check(plot_head_counts(counts, {"speed": draws}, "average", -1)).axes[0]
    assert ax.get_xscale() == ax.get_yscale() == "log"
    (line,) = (line for line in ax.lines if line.get_label() == "slope -1")
    np.testing.assert_allclose(np.asarray(line.get_ydata(), dtype=float), [2, 1, 0.2])
    mean, low, high = (np.asarray(part.get_ydata(), dtype=float) for part in ax.lines[:3])
    np.testing.assert_allclose([mean, low, high], [draws.mean(0), draws.min(0), draws.max(0)])
    level = check(plot_head_counts(counts, {"level": [1.0, 1e-3, 0.0]}, "level")).axes[0]
    assert min(level.lines[0].get_ydata()) > 0


def test_curves_have_names(sphere_curves):
    assert [curve_label(c) for c in sphere_curves] == ["JKO", "gradient flow", "softmax flow"]
    assert curve_label(replace(sphere_curves[0], scheme="other")) == "other movement"


def test_a_curve_of_one_state_can_be_drawn(sphere_curves):
    movement, *_ = sphere_curves
    short = replace(
        movement,
        times=movement.times[:1],
        points=movement.points[:1],
        weights=movement.weights[:1],
        energy=movement.energy[:1],
        steps=(),
    )
    for figure in (
        plot_tokens([short]),
        plot_energy([short]),
        plot_slopes([short]),
        plot_defect(short),
    ):
        figure.draw_without_rendering()


def test_export_leaves_the_settings_alone(sphere_curves, tmp_path):
    mpl.rcParams["backend"]  # found on first use
    before = mpl.rcParams.copy()
    figure = plot_energy(sphere_curves)
    svg = to_svg(figure)
    assert svg.startswith("<svg")
    assert svg.rstrip().endswith("</svg>")
    assert "<metadata" not in svg
    assert to_svg(plot_energy(sphere_curves)) == svg, "drawings are reproducible"
    assert save_figure(figure, tmp_path / "deep" / "energy.png").stat().st_size > 1000
    assert dict(mpl.rcParams) == dict(before)


def test_pyplot_is_never_loaded():
    code = "import sys, jko.plotting, jko.report; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_one_curve_or_cloud_is_as_good_as_several(curves):
    movement = curves[0]
    clouds = [movement.cloud(0), movement.final]
    for given in (movement, clouds[0], clouds, (clouds[0], movement), iter(clouds)):
        figure = plot_tokens(given)
        assert isinstance(figure, Figure)
        figure.canvas.draw()
    labels = [text.get_text() for text in plot_tokens(clouds).legends[0].get_texts()]
    assert labels == ["cloud 1", "cloud 2"]
    assert plot_tokens(clouds[0]).axes[0].get_title() == ""
    assert len(plot_tokens((clouds[0], movement)).axes) == (4 if clouds[0].dim == 2 else 8)
    for draw in (plot_energy, plot_slopes):
        assert isinstance(draw(movement), Figure)
    if clouds[0].dim <= 3:
        nodes = sphere.circle_nodes(12) if clouds[0].dim == 2 else clouds[0].points
        assert isinstance(plot_density(TokenCloud(nodes), "one"), Figure)


@pytest.mark.parametrize("draw", [plot_tokens, plot_energy, plot_slopes])
def test_what_is_no_curve_is_named(draw):
    with pytest.raises(TypeError, match=r"curves must be a Curve.*got int"):
        draw(3)
    with pytest.raises(TypeError, match=r"curves must be a Curve.*got a sequence with str"):
        draw(["run.zarr"])


def test_figures_of_one_curve_name_what_they_were_given():
    cloud = TokenCloud.octahedral(6)
    for draw in (plot_dissipation, plot_certificates, plot_defect):
        with pytest.raises(TypeError, match="curve must be a Curve, got TokenCloud"):
            draw(cloud)
    with pytest.raises(TypeError, match=r"balance must be an EnergyBalance, which jko.energy_balance"):
        plot_balance(cloud)
    with pytest.raises(ValueError, match="labels must be 1 like clouds, got 2"):
        plot_density(cloud, ["a", "b"])


def test_paths_may_be_strings(curves, tmp_path):
    figure = plot_energy(curves)
    for path in (str(tmp_path / "new" / "a.png"), tmp_path / "b.svg"):
        assert save_figure(figure, path).stat().st_size > 1000


def test_a_balance_does_not_draw_its_exact_zeros(curves):
    balance = energy_balance(curves[2])
    assert balance.residual[0] == 0
    lower = plot_balance(balance).axes[1]
    for line in lower.lines:
        values = np.asarray(line.get_ydata())
        assert np.isnan(values[0])
        assert np.nanmin(values) > 1e-18
    assert lower.get_ylabel() == "residual, closure\n[energy]"
