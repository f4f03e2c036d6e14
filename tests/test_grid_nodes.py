"""Fixed nodes: what they resolve, and densities against tokens and known solutions."""

from __future__ import annotations

import jko
import numpy as np
import pytest
from jko import AttentionModel, Heads, TokenCloud, sphere
from jko.problems import pure_attraction, pure_potential
from jko.steps.grid import (
    GRID_SOLVERS,
    NodesError,
    grid_de_giorgi_integral,
    node_spacing,
    on_nodes,
    reprove,
    require_on_nodes,
    resolution,
    solve_on_support,
)
from jko.steps.grid.interpolant import first_moving_step
from jko.steps.grid.problem import support_problem
from jko.steps.proximal import proximal_step
from jko.steps.result import StepStatus
from jko.transport.distance import wasserstein

TWO_HEADS = Heads(np.array([1.5 * np.eye(3), np.diag([2.0, 1.0, 0.5])]))
CIRCLE_HEADS = Heads(np.array([[[2.0, 0.5], [0.5, 1.0]], [[1.0, 0.0], [0.0, 1.5]]]))


def tilted(n, slope=3.0):
    """Density proportional to ``exp(slope z)`` on Fibonacci nodes."""
    nodes = sphere.fibonacci_nodes(n)
    return TokenCloud.normalized(nodes, np.exp(slope * nodes[:, 2]))


def two_bumps(n):
    """A density with two bumps on equispaced nodes of the circle."""
    nodes = sphere.circle_nodes(n)
    angle = np.arctan2(nodes[:, 1], nodes[:, 0])
    return TokenCloud.normalized(nodes, np.exp(2 * np.cos(angle) + np.sin(3 * angle)))


def test_mass_pins_on_coarse_nodes_and_the_status_says_so():
    model = AttentionModel(TWO_HEADS)
    cloud = tilted(100)
    stuck = solve_on_support(model, cloud, 0.0, 0.05)
    assert stuck.status is StepStatus.PINNED
    assert stuck.success
    np.testing.assert_array_equal(stuck.cloud.weights, cloud.weights)
    found = resolution(model, cloud, stuck)
    assert found.pinned
    assert found.ratio == 0
    assert found.cells < 0.5
    assert "tau |v| / h" in str(found)
    moving = solve_on_support(model, cloud, 0.0, 2.0)
    assert moving.status is StepStatus.CONVERGED
    assert 0.8 < resolution(model, cloud, moving).ratio < 1.2


def test_speed_meets_the_slope_as_nodes_refine():
    model = AttentionModel(CIRCLE_HEADS)
    errors, cells = [], []
    for n in (25, 100, 400):
        cloud = two_bumps(n)
        result = solve_on_support(model, cloud, 0.0, 0.3, solver="conditional_gradient")
        found = resolution(model, cloud, result)
        errors.append(abs(found.ratio - 1))
        cells.append(found.cells)
    assert cells[0] < 1 < cells[-1]
    assert errors[-1] < 0.01
    assert errors[-1] < errors[0] / 5


def test_equilibrium_is_not_called_pinned():
    nodes = sphere.circle_nodes(60)
    result = solve_on_support(AttentionModel(Heads(np.eye(2))), TokenCloud(nodes), 0.0, 0.1)
    assert result.status is StepStatus.CONVERGED
    assert result.distance_squared == 0


def test_objective_follows_the_step_as_de_giorgi_says():
    r"""``d Phi / d tau = -W^2 / (2 tau^2)`` along the minimisers of one program."""
    model, cloud = AttentionModel(CIRCLE_HEADS), two_bumps(60)
    options = {"energy_time": 0.0, "solver": "conditional_gradient", "tolerance": 1e-14}
    at = solve_on_support(model, cloud, 0.0, 1.0, **options)
    ahead = solve_on_support(model, cloud, 0.0, 1.0 + 1e-4, **options)
    behind = solve_on_support(model, cloud, 0.0, 1.0 - 1e-4, **options)
    slope = (ahead.objective - behind.objective) / 2e-4
    assert slope == pytest.approx(-at.distance_squared / 2, rel=1e-6)


@pytest.mark.parametrize("step", [0.5, 2.0])
def test_de_giorgi_identity_is_bracketed(step):
    model, cloud = AttentionModel(CIRCLE_HEADS), two_bumps(40)
    result = solve_on_support(model, cloud, 0.0, step, tolerance=1e-12)
    found = grid_de_giorgi_integral(model, cloud, result, solves=100)
    drop = result.energy_before - result.objective
    assert abs(found.value - drop) < found.error < 0.03 * drop
    assert found.value == pytest.approx(drop, rel=2e-3)
    with pytest.raises(NodesError):
        grid_de_giorgi_integral(model, cloud, result, support=sphere.circle_nodes(41))


def test_first_moving_step_is_where_pinning_ends():
    model, cloud = AttentionModel(CIRCLE_HEADS), two_bumps(40)
    problem, _, _ = support_problem(model, cloud, 0.0, 1.0, 1.0, cloud.points, "source")
    first = first_moving_step(problem, 1.0)
    below = solve_on_support(model, cloud, 0.0, first * (1 - 1e-6))
    above = solve_on_support(model, cloud, 0.0, first * (1 + 1e-2))
    assert below.distance_squared == 0 < above.distance_squared
    assert below.status is StepStatus.PINNED
    pinned = grid_de_giorgi_integral(model, cloud, below)
    assert pinned.value == pinned.solves == 0


@pytest.fixture(scope="module")
def weighted_step(convex_problem):
    model, cloud = convex_problem(5)
    weights = np.random.default_rng(5).dirichlet(np.ones(cloud.n))
    cloud = TokenCloud(cloud.points, weights)
    return model, cloud, proximal_step(model, cloud, 0.0, 0.1)


@pytest.mark.parametrize("solver", GRID_SOLVERS)
def test_token_step_is_reproved_on_nodes(weighted_step, solver):
    model, cloud, result = weighted_step
    assert result.certificate.optimality == "proven"
    found = reprove(result, model, cloud, sphere.fibonacci_nodes(400), solver=solver)
    assert found.convex
    assert found.nodes == 700
    assert found.confirmed
    assert found.gap < 1e-11
    assert abs(found.difference) <= found.gap + found.certified_gap + 1e-13
    assert found.lower_bound <= result.objective + 1e-13


def test_reproof_sees_a_step_that_is_not_optimal(weighted_step):
    """With the optimal end points among the nodes, the program finds exactly what was missed."""
    model, cloud, best = weighted_step
    early = proximal_step(model, cloud, 0.0, 0.1, tolerance=0.3, certify="none")
    missed = early.objective - best.objective
    assert missed > 1e-7
    nodes = np.concatenate([sphere.fibonacci_nodes(100), best.cloud.points])
    found = reprove(early, model, cloud, nodes)
    assert found.difference == pytest.approx(missed, abs=1e-11)
    assert not found.confirmed


def test_reproof_sees_mass_that_should_split():
    """A single heavy token under repulsion prefers two places: tokens cannot, nodes can."""
    model = AttentionModel(Heads(np.diag([3.0, 0.5, 0.5])))
    cloud = TokenCloud([[0.0, 0.0, 1.0]])
    result = proximal_step(model, cloud, 0.0, 3.0)
    found = reprove(result, model, cloud, sphere.fibonacci_nodes(400))
    assert found.difference > 1e-3
    assert found.lower_bound <= found.optimum <= result.objective
    assert result.certificate.optimality_gap > 0
    assert result.certificate.optimality == "failed"


def test_token_and_density_curves_meet_as_nodes_refine():
    model, step = AttentionModel(CIRCLE_HEADS), 0.25
    cloud = two_bumps(50)
    tokens = cloud
    for k in range(3):
        tokens = proximal_step(model, tokens, k * step, step, certify="local").cloud
    distances = []
    for m in (100, 200, 400):
        density = on_nodes(cloud, sphere.circle_nodes(m))
        for k in range(3):
            density = solve_on_support(
                model, density, k * step, step, solver="conditional_gradient"
            ).cloud
        distances.append(wasserstein(tokens, density) / (2 * np.pi / m))
    # first order in the spacing h: the distance is about h, and shrinks with it
    assert max(distances) < 1.2


@pytest.mark.parametrize("dim", [2, 3])
def test_pure_potential_against_its_closed_form(dim):
    problem = pure_potential(dim)
    flow = jko.particle_flow(problem.model, problem.cloud, (0, problem.horizon), rtol=1e-10)
    angles = np.arccos(flow.final.points[1:, -1])
    np.testing.assert_allclose(angles, problem.known["final_angles"], atol=1e-9)
    step = proximal_step(problem.model, problem.cloud, 0.0, problem.step)
    angles = np.arccos(step.cloud.points[1:, -1])
    np.testing.assert_allclose(angles, problem.known["step_angles"], atol=1e-12)


@pytest.mark.parametrize("dim", [2, 3])
def test_pure_attraction_against_its_closed_form(dim):
    problem = pure_attraction(dim)
    flow = jko.particle_flow(problem.model, problem.cloud, (0, problem.horizon), rtol=1e-10)
    angles = np.arccos(flow.final.points[:, -1])
    np.testing.assert_allclose(angles, problem.known["final_angles"][0], atol=1e-9)
    step = proximal_step(problem.model, problem.cloud, 0.0, problem.step)
    angles = np.arccos(step.cloud.points[:, -1])
    np.testing.assert_allclose(angles, problem.known["step_angles"][0], atol=1e-12)


@pytest.mark.parametrize("solver", GRID_SOLVERS)
def test_light_density_in_a_potential_on_nodes(solver):
    """Displacements are right to half a node spacing (and the light tokens' own weight)."""
    problem = pure_potential(2, tokens=30, step=0.3, light=1e-4)
    nodes = sphere.circle_nodes(1000)
    result = solve_on_support(
        problem.model, problem.cloud, 0.0, problem.step, support=nodes, solver=solver,
        tolerance=1e-13,
    )
    plan = result.plan.toarray()[1:]
    angles = np.arctan2(nodes[:, 0], nodes[:, 1])
    mean = plan @ angles / plan.sum(axis=1)
    np.testing.assert_allclose(mean, problem.known["step_angles"], atol=np.pi / 1000 + 1e-3)


@pytest.mark.parametrize("solver", GRID_SOLVERS)
def test_attraction_on_nodes(solver):
    problem = pure_attraction(2, tokens=2, step=0.3)
    nodes = sphere.circle_nodes(2000)
    result = solve_on_support(
        problem.model, problem.cloud, 0.0, problem.step, support=nodes, solver=solver
    )
    angles = np.abs(np.arctan2(nodes[:, 0], nodes[:, 1]))[result.plan.coords[1]]
    np.testing.assert_allclose(angles, problem.known["step_angles"][0], atol=np.pi / 1000)


def test_clouds_move_to_nodes():
    cloud = TokenCloud.octahedral(50, rng=0)
    nodes = sphere.fibonacci_nodes(500)
    density = on_nodes(cloud, nodes)
    assert density.weights.sum() == pytest.approx(1, abs=1e-15)
    assert wasserstein(cloud, density) < node_spacing(nodes)
    require_on_nodes(density, nodes)
    require_on_nodes(density, None)
    with pytest.raises(NodesError, match="must live on the 500 nodes"):
        require_on_nodes(cloud, nodes)


def test_node_areas():
    for n in (4, 6, 100):
        nodes = sphere.fibonacci_nodes(n)
        areas = sphere.node_areas(nodes)
        assert areas.sum() == pytest.approx(4 * np.pi, rel=1e-13)
    assert np.ptp(areas) < 0.15 * areas.mean()
    octahedron = np.concatenate([np.eye(3), -np.eye(3)])
    np.testing.assert_allclose(sphere.node_areas(octahedron), 4 * np.pi / 6, rtol=1e-12)
    np.testing.assert_allclose(sphere.node_areas(sphere.circle_nodes(7)), 2 * np.pi / 7)
    uneven = sphere.node_areas([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    np.testing.assert_allclose(uneven, np.pi * np.array([0.75, 0.5, 0.75]))
    with pytest.raises(ValueError, match="at least 4"):
        sphere.node_areas(np.eye(3))
    with pytest.raises(ValueError, match="at least 4"):
        sphere.node_areas(np.eye(5))


def test_figures(tmp_path):
    from jko.plotting.density import node_density, plot_density, plot_resolution

    cloud, circle = tilted(60), two_bumps(40)
    for clouds in ([cloud, tilted(80)], [circle]):
        for bandwidth in (0.0, 0.2):
            figure = plot_density(clouds, [f"n = {c.n}" for c in clouds], bandwidth)
            figure.savefig(tmp_path / "density.png")
    areas = sphere.node_areas(cloud.points)
    assert node_density(cloud) @ areas == pytest.approx(1)
    assert node_density(cloud, 0.2) @ areas == pytest.approx(1, rel=0.02)
    with pytest.raises(ValueError, match="with d = 2 or 3"):
        plot_density([cloud, circle], ["a", "b"])
    model = AttentionModel(TWO_HEADS)
    found = [resolution(model, cloud, solve_on_support(model, cloud, 0.0, t)) for t in (0.1, 2.0)]
    plot_resolution([found], ["n = 60"]).savefig(tmp_path / "resolution.png")
