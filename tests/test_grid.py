"""The step on fixed nodes: two solvers that must agree, and their certificates."""

from __future__ import annotations

import itertools

import jko
import numpy as np
import pytest
from jko import AttentionModel, Heads, TokenCloud, sphere
from jko.attention.fields import KernelOverflowError
from jko.steps.grid import (
    GRID_SOLVERS,
    solve_on_support,
)
from jko.steps.grid import columns as columns_module
from jko.steps.grid import problem as problem_module
from jko.steps.grid.curvature import curvature, pivoted_cholesky
from jko.steps.grid.problem import GridPlan, kernel_matrix, support_problem
from jko.steps.result import StepStatus
from jko.transport.plan import PlanTooLargeError

TWO_HEADS = Heads(np.array([1.5 * np.eye(3), np.diag([2.0, 1.0, 0.5])]))
INDEFINITE = Heads(np.array([np.diag([2.0, -1.0, 0.5]), np.eye(3)]))
CIRCLE_HEADS = Heads(np.array([[[2.0, 0.5], [0.5, 1.0]], [[1.0, 0.0], [0.0, 1.5]]]))

#: Optimal values of the two-head problem, step 0.5, on Fibonacci nodes.
KNOWN = {100: 0.93428973, 200: 0.91821282, 400: 0.90739526}


def tilted(n, slope=3.0):
    """Density proportional to ``exp(slope z)`` on Fibonacci nodes."""
    nodes = sphere.fibonacci_nodes(n)
    return TokenCloud.normalized(nodes, np.exp(slope * nodes[:, 2]))


def two_bumps(n):
    """A density with two bumps on equispaced nodes of the circle."""
    nodes = sphere.circle_nodes(n)
    angle = np.arctan2(nodes[:, 1], nodes[:, 0])
    return TokenCloud.normalized(nodes, np.exp(2 * np.cos(angle) + np.sin(3 * angle)))


def naive_objective(model, cloud, result):
    """The objective of a result's plan, from the formulas."""
    plan = result.plan.toarray()
    mobility = model.effective_mobility(cloud.points, cloud, result.time)
    squared = sphere.distance_matrix(cloud.points, result.cloud.points) ** 2
    transport = (plan * mobility[:, None] * squared).sum() / (2 * result.step)
    return transport + model.energy(result.cloud, result.energy_time)


@pytest.mark.parametrize("n", sorted(KNOWN))
def test_both_solvers_reach_the_known_value(n):
    model, cloud = AttentionModel(TWO_HEADS), tilted(n)
    found = {}
    for solver in GRID_SOLVERS:
        result = solve_on_support(model, cloud, 0.0, 0.5, solver=solver)
        assert result.objective == pytest.approx(KNOWN[n], rel=1e-7)
        assert result.certificate.convex
        assert result.certificate.optimality == "proven"
        assert result.certificate.optimality_gap < 1e-9
        assert result.success
        found[solver] = result.objective
    assert found["cvxpy"] == pytest.approx(found["conditional_gradient"], rel=1e-11)


@pytest.mark.parametrize("solver", GRID_SOLVERS)
@pytest.mark.parametrize("cost", ["source", "midpoint", "geodesic"])
def test_result_is_consistent(solver, cost):
    model, cloud = AttentionModel(TWO_HEADS), tilted(60)
    result = solve_on_support(model, cloud, 0.1, 1.0, solver=solver, cost=cost)
    plan = result.plan.toarray()
    assert (plan >= 0).all()
    np.testing.assert_allclose(plan.sum(axis=1), cloud.weights, rtol=1e-13)
    np.testing.assert_allclose(plan.sum(axis=0), result.cloud.weights, atol=1e-15)
    assert result.cloud.points is cloud.points or (result.cloud.points == cloud.points).all()
    assert result.objective <= result.energy_before
    assert result.objective == pytest.approx(
        result.distance_squared / (2 * result.step) + result.energy, rel=1e-14
    )
    assert result.energy == pytest.approx(model.energy(result.cloud, 1.1), rel=1e-13)
    if cost == "source":
        assert result.objective == pytest.approx(naive_objective(model, cloud, result), rel=1e-13)


@pytest.mark.parametrize("step", [0.05, 0.5, 5.0, 50.0])
@pytest.mark.parametrize("heads", [TWO_HEADS, Heads(6 * np.eye(3))])
def test_solvers_agree_from_pinned_to_equilibrium(step, heads):
    model, cloud = AttentionModel(heads), tilted(80)
    found = [solve_on_support(model, cloud, 0.0, step, solver=solver) for solver in GRID_SOLVERS]
    gaps = [result.certificate.optimality_gap for result in found]
    assert max(gaps) <= 1e-10 * found[0].energy_before
    assert abs(found[0].objective - found[1].objective) <= max(gaps) + 1e-13


@pytest.mark.parametrize("solver", GRID_SOLVERS)
def test_no_random_plan_beats_the_lower_bound(solver):
    """Objective minus gap is below every plan; for an indefinite energy, minus the excess too."""
    rng = np.random.default_rng(3)
    cloud = tilted(12, 1.0)
    for heads, sign in ((TWO_HEADS, 1), (INDEFINITE, 1), (TWO_HEADS, -1)):
        model = AttentionModel(heads, sign=sign)
        result = solve_on_support(model, cloud, 0.0, 2.0, solver=solver)
        problem, _, _ = support_problem(model, cloud, 0.0, 2.0, 2.0, cloud.points, "source")
        shape = curvature(problem.kernel, heads, sign)
        low = result.objective - result.certificate.optimality_gap
        low -= shape.excess(result.cloud.weights)
        for concentration in (0.02, 0.1, 1.0):
            for _ in range(100):
                shares = rng.dirichlet(np.full(12, concentration), size=12)
                rows, columns = np.nonzero(shares)
                mass = cloud.weights[rows] * shares[rows, columns]
                assert problem.state(GridPlan(rows, columns, mass)).value >= low - 1e-12


def test_convexity_is_that_of_the_kernel_on_mean_zero_vectors():
    nodes = sphere.fibonacci_nodes(80)
    project = np.eye(80) - 1 / 80
    for heads, sign in ((TWO_HEADS, 1), (TWO_HEADS, -1), (INDEFINITE, 1), (INDEFINITE, -1)):
        kernel = kernel_matrix(AttentionModel(heads, sign=sign), nodes, 0.0)
        shape = curvature(kernel, heads, sign)
        values = np.linalg.eigvalsh(project @ kernel @ project)
        assert shape.convex == (values[0] > -1e-10)
        assert shape.lowest == pytest.approx(min(values[0], 0.0), abs=1e-9 * np.abs(values).max())
        split = shape.convex_factor @ shape.convex_factor.T
        split -= shape.concave_factor @ shape.concave_factor.T
        np.testing.assert_allclose(split, project @ kernel @ project, atol=2e-8)


def test_indefinite_heads_can_be_convex_on_some_nodes():
    """On the equator the sign of the head along the axis is never felt."""
    heads = Heads(np.diag([1.0, 1.0, -1.0]))
    ring = np.c_[sphere.circle_nodes(40), np.zeros(40)]
    cloud = TokenCloud.normalized(ring, np.exp(ring[:, 0]))
    result = solve_on_support(AttentionModel(heads), cloud, 0.0, 1.0)
    assert not heads.positive_semidefinite
    assert result.certificate.convex
    assert result.certificate.optimality == "proven"
    whole = solve_on_support(AttentionModel(heads), tilted(60), 0.0, 1.0)
    assert not whole.certificate.convex
    assert whole.certificate.optimality == "searched"


def test_pivoted_cholesky_reproduces_a_semidefinite_matrix():
    factor = np.random.default_rng(0).standard_normal((50, 90))[:, :7]
    matrix = factor @ factor.T
    found = pivoted_cholesky(matrix)
    assert found.shape == (50, 7)
    np.testing.assert_allclose(found @ found.T, matrix, atol=1e-8 * matrix.max())


@pytest.mark.parametrize("solver", GRID_SOLVERS)
@pytest.mark.parametrize("step", [0.5, 5.0])
def test_indefinite_energy_ends_stationary_and_claims_no_more(solver, step):
    model, cloud = AttentionModel(INDEFINITE), tilted(150)
    result = solve_on_support(model, cloud, 0.0, step, solver=solver)
    assert not result.certificate.convex
    assert result.certificate.optimality == "searched"
    assert result.certificate.proven_tokens == 0
    assert result.certificate.optimality_gap <= 1e-10 * result.energy_before
    assert result.objective < result.energy_before


def test_majorised_steps_never_raise_the_objective(monkeypatch):
    values = []
    original = problem_module.SupportProblem.state

    def watched(self, plan):
        state = original(self, plan)
        values.append(state.value)
        return state

    cloud = tilted(100)
    monkeypatch.setattr(columns_module, "DUST", (0.0,))
    monkeypatch.setattr(problem_module.SupportProblem, "state", watched)
    result = solve_on_support(AttentionModel(INDEFINITE), cloud, 0.0, 10.0)
    assert result.stats.iterations > 3
    assert (np.diff(values) <= 1e-13).all()


@pytest.mark.parametrize("solver", GRID_SOLVERS)
def test_attractive_semidefinite_heads_split_no_mass(solver):
    model, cloud = AttentionModel(TWO_HEADS, sign=-1), tilted(120)
    result = solve_on_support(model, cloud, 0.0, 0.5, solver=solver)
    assert result.plan.nnz == cloud.n
    assert not result.certificate.convex
    assert result.objective < result.energy_before
    if solver == "cvxpy":  # one argmin per source: no program, a few evaluations
        assert result.stats.gradient_evaluations < 60


def test_attractive_step_is_local_and_its_bound_holds():
    """All 256 assignments of a concave step: a better one exists, and the excess covers it."""
    rng = np.random.default_rng(0)
    cloud = TokenCloud.uniform(4, 3, rng)
    a = rng.standard_normal((3, 3))
    heads = Heads(a @ a.T / 3)
    model = AttentionModel(heads, sign=-1)
    problem, _, _ = support_problem(model, cloud, 0.0, 0.3, 0.3, cloud.points, "source")
    assignments = (np.array(k) for k in itertools.product(range(4), repeat=4))
    best = min(problem.state(GridPlan.assignment(k, cloud.weights)).value for k in assignments)
    shape = curvature(problem.kernel, heads, -1)
    for solver in GRID_SOLVERS:
        result = solve_on_support(model, cloud, 0.0, 0.3, solver=solver)
        assert result.certificate.optimality == "searched"
        assert best < result.objective - 0.1 < result.energy_before
        excess = shape.excess(result.cloud.weights)
        assert best >= result.objective - result.certificate.optimality_gap - excess


@pytest.mark.parametrize("solver", GRID_SOLVERS)
def test_public_step_and_movement(solver, tmp_path):
    model, cloud = AttentionModel(CIRCLE_HEADS), two_bumps(60)
    step = jko.proximal_step(model, cloud, 0.0, 0.5, solver=solver)
    same = solve_on_support(model, cloud, 0.0, 0.5, solver=solver)
    assert step.objective == same.objective
    curve = jko.minimizing_movement(model, cloud, (0.0, 1.0), 0.5, solver=solver)
    assert curve.success, curve.message
    assert curve.weights.shape == (3, 60)
    assert (curve.points == cloud.points).all()
    assert (np.diff(curve.energy) < 0).all()
    np.testing.assert_array_equal(curve.weights[1], step.cloud.weights)
    assert {record.certificate.optimality for record in curve.steps} == {"proven"}
    curve.save(tmp_path / "run")
    again = jko.load(tmp_path / "run")
    np.testing.assert_array_equal(again.weights, curve.weights)


@pytest.mark.parametrize("solver", GRID_SOLVERS)
def test_rotating_nodes_and_heads_changes_nothing(solver, rotation):
    q = rotation(3, 1)
    cloud = tilted(80)
    turned = TokenCloud(cloud.points @ q.T, cloud.weights)
    heads = Heads(q @ TWO_HEADS.matrices @ q.T)
    here = solve_on_support(AttentionModel(TWO_HEADS), cloud, 0.0, 1.0, solver=solver)
    there = solve_on_support(AttentionModel(heads), turned, 0.0, 1.0, solver=solver)
    assert there.objective == pytest.approx(here.objective, rel=1e-10)


@pytest.mark.parametrize("solver", GRID_SOLVERS)
def test_ordinary_extremes(solver):
    model = AttentionModel(TWO_HEADS)
    nodes = sphere.fibonacci_nodes(60)
    single = solve_on_support(model, TokenCloud(nodes[:1]), 0.0, 1.0, solver=solver)
    assert single.objective == pytest.approx(single.energy_before, rel=1e-14)
    equal = TokenCloud(np.repeat(nodes[:1], 4, axis=0))
    together = solve_on_support(model, equal, 0.0, 1.0, support=nodes, solver=solver)
    assert together.certificate.optimality == "proven"
    flat = solve_on_support(AttentionModel(Heads(np.zeros((3, 3)))), tilted(60), 0.0, 1.0)
    assert flat.distance_squared == 0
    assert flat.certificate.convex
    weights = np.exp(-28 * np.random.default_rng(0).random(60))
    uneven = TokenCloud.normalized(nodes, weights)
    result = solve_on_support(model, uneven, 0.0, 1.0, solver=solver)
    assert result.certificate.optimality == "proven"
    np.testing.assert_allclose(result.plan.sum(axis=1), uneven.weights, rtol=1e-12)


@pytest.mark.parametrize("solver", GRID_SOLVERS)
def test_empty_nodes_send_nothing_and_may_receive(solver):
    nodes = sphere.fibonacci_nodes(100)
    weights = np.where(nodes[:, 2] > 0.5, 1.0, 0.0)
    cloud = TokenCloud.normalized(nodes, weights)
    result = solve_on_support(AttentionModel(TWO_HEADS), cloud, 0.0, 2.0, solver=solver)
    sent = result.plan.toarray().sum(axis=1)
    assert (sent[weights == 0] == 0).all()
    assert (result.cloud.weights[weights == 0] > 0).any()
    assert result.certificate.total_tokens == (weights > 0).sum()


@pytest.mark.parametrize("solver", GRID_SOLVERS)
@pytest.mark.parametrize("strength", [20.0, 100.0])
def test_strong_heads(solver, strength):
    model = AttentionModel(Heads(strength * np.eye(3)))
    result = solve_on_support(model, tilted(60), 0.0, 0.5, solver=solver)
    assert result.success
    assert result.certificate.optimality_gap <= 1e-10 * result.energy_before


def test_statuses_of_solvers_that_do_not_get_there(monkeypatch):
    model, cloud = AttentionModel(INDEFINITE), tilted(60)
    for solver in GRID_SOLVERS:
        short = solve_on_support(model, cloud, 0.0, 10.0, solver=solver, max_iterations=1)
        assert short.status is StepStatus.MAX_EVALUATIONS
        assert not short.success
        assert short.certificate.optimality == "failed"
    monkeypatch.setattr(columns_module, "restricted_step", lambda *_: None)
    stalled = solve_on_support(model, cloud, 0.0, 10.0)
    assert stalled.status is StepStatus.STALLED
    assert stalled.objective == stalled.energy_before


def test_work_stays_small():
    cloud = tilted(400)
    columns = solve_on_support(AttentionModel(TWO_HEADS), cloud, 0.0, 0.5)
    assert columns.stats.iterations <= 2
    gradients = solve_on_support(
        AttentionModel(TWO_HEADS), cloud, 0.0, 0.5, solver="conditional_gradient"
    )
    assert gradients.stats.iterations <= 60


def test_invalid_arguments_are_named():
    model, cloud = AttentionModel(TWO_HEADS), tilted(20)
    with pytest.raises(ValueError, match=r"support must have shape \(m, 3\)"):
        solve_on_support(model, cloud, 0.0, 1.0, support=sphere.circle_nodes(5))
    with pytest.raises(ValueError, match="support: points must be unit vectors"):
        solve_on_support(model, cloud, 0.0, 1.0, support=2 * cloud.points)
    with pytest.raises(ValueError, match="solver must be one of 'cvxpy'"):
        solve_on_support(model, cloud, 0.0, 1.0, solver="simplex")
    with pytest.raises(ValueError, match="step must be positive"):
        solve_on_support(model, cloud, 0.0, 0.0)
    with pytest.raises(ValueError, match="tolerance must be positive"):
        solve_on_support(model, cloud, 0.0, 1.0, tolerance=0.0)
    with pytest.raises(KernelOverflowError, match="norm 2000"):
        solve_on_support(AttentionModel(Heads(2000 * np.eye(3))), cloud, 0.0, 1.0)


def test_too_many_nodes_are_refused_before_any_work(monkeypatch):
    monkeypatch.setattr(problem_module, "MEMORY_LIMIT", 2**20)
    with pytest.raises(PlanTooLargeError, match="200 sources to 200 nodes needs about"):
        solve_on_support(AttentionModel(TWO_HEADS), tilted(200), 0.0, 1.0)
