"""Plans are checked by potentials where these answer, by the network simplex where they do not."""

from functools import partial

import numpy as np
import pytest
from jko import AttentionModel, Heads, TokenCloud, proximal_step, sphere
from jko.steps import particles, plans
from jko.steps.plans import check_plan, cost_floor, potential_excess
from jko.steps.pointwise import TokenProblems
from jko.steps.problem import Coupling, Objective
from jko.steps.proximal import jko_problem
from jko.transport.plan import optimal_plan


@pytest.fixture
def configuration(random_problem):
    """A step's problem and an evaluation near its sources that is no solution of it."""
    return partial(_configuration, random_problem)


def _configuration(random_problem, seed, n=40, size=0.3, permuted=False, cost="source"):
    model, cloud = random_problem(seed, n)
    rng = np.random.default_rng(seed)
    problem = jko_problem(model, cloud, 0, 0.1, 0.1, cost)
    moved = cloud.points + size * rng.standard_normal(cloud.points.shape)
    coupling = Coupling.labels(cloud.weights)
    if permuted:
        order = rng.permutation(n)
        index = np.arange(n)
        coupling = Coupling(index, order, cloud.weights, np.ones(n), False)
    at = Objective(problem, coupling)(sphere.normalize(moved))
    return problem, coupling, at


def dense_excess(problem, coupling, at):
    """The bound by its formula, from all pairs."""
    total = problem.anchors[0].cost.matrix(at.points)
    total += 2 * problem.step * at.fields.first_variation
    own = total[coupling.rows, coupling.columns]
    return coupling.mass @ (own - total.min(axis=1)[coupling.rows])


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("size", [1e-6, 1e-3, 0.1, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_bound_is_its_formula(seed, size, permuted, configuration, monkeypatch):
    # several blocks of rows
    monkeypatch.setattr(plans, "PAIR_BLOCK", 300)
    problem, coupling, at = configuration(seed, size=size, permuted=permuted)
    problems = TokenProblems(problem, at.points, problem.anchors)
    found = potential_excess(problems, coupling, at)
    expected = dense_excess(problem, coupling, at)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("size", [1e-3, 0.1, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_it_bounds_the_excess_of_the_plan(seed, size, configuration):
    problem, coupling, at = configuration(seed, size=size)
    problems = TokenProblems(problem, at.points, problem.anchors)
    cost = problem.anchors[0].cost.matrix(at.points)
    best = optimal_plan(cost, problem.weights, problem.weights).cost
    used = coupling.mass @ cost[coupling.rows, coupling.columns]
    assert used - best <= potential_excess(problems, coupling, at) + 1e-13


def test_other_costs_are_not_bounded_by_chords(configuration):
    problem, coupling, at = configuration(0, cost="midpoint")
    problems = TokenProblems(problem, at.points, problem.anchors)
    assert potential_excess(problems, coupling, at) == np.inf
    assert check_plan(problem, coupling, at, "none").checked_by == "network simplex"


def test_too_many_pairs_are_not_looked_at(configuration, monkeypatch):
    problem, coupling, at = configuration(0)
    monkeypatch.setattr(plans, "PAIR_LIMIT", 1)
    problems = TokenProblems(problem, at.points, problem.anchors)
    assert potential_excess(problems, coupling, at) == np.inf


@pytest.mark.parametrize("step", [1e-6, 1e-3, 0.02, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_a_step_is_checked_without_solving_a_transport_problem(step, seed, random_problem):
    """And the network simplex, asked afterwards, agrees."""
    model, cloud = random_problem(seed, 60)
    result = proximal_step(model, cloud, 0, step, certify="none")
    certificate = result.certificate
    cost = jko_problem(model, cloud, 0, step, step).anchors[0].cost.matrix(result.cloud.points)
    best = optimal_plan(cost, cloud.weights, cloud.weights).cost
    floor = 1e4 * np.finfo(float).eps ** 2 * model.effective_mobility(cloud.points, cloud, 0).max()
    assert result.distance_squared <= best * (1 + 1e-9) + floor
    assert certificate.plan_gap <= 1e-9
    assert result.stats.plans == (certificate.plan_checked_by == "network simplex")
    if step <= 0.02:
        assert certificate.plan_checked_by == "potentials"


def test_coinciding_tokens_need_no_transport_problem(random_problem):
    model, cloud = random_problem(2, 20)
    double = TokenCloud(np.repeat(cloud.points, 2, axis=0), np.repeat(cloud.weights, 2) / 2)
    result = proximal_step(model, double, 0, 0.02, certify="none")
    assert result.certificate.plan_checked_by == "potentials"
    assert result.certificate.plan_gap <= 1e-12


def test_a_wrong_coupling_is_found_and_mended():
    """Labels exchanged: potentials do not prove it, the network simplex finds the better plan."""
    model = AttentionModel(Heads(np.zeros((1, 3, 3))))
    cloud = TokenCloud(np.eye(3))
    problem = jko_problem(model, cloud, 0, 0.1, 0.1)
    at = Objective(problem, Coupling.labels(cloud.weights))(cloud.points[[1, 2, 0]])
    check = check_plan(problem, Coupling.labels(cloud.weights), at, "none")
    assert check.checked_by == "network simplex"
    assert check.plans == 1
    assert check.better is not None
    np.testing.assert_array_equal(check.better.permutation, [2, 0, 1])
    assert cost_floor(problem) < 1e-20


def test_the_certificate_is_that_of_the_plan_that_was_used(random_problem, monkeypatch):
    """Also where no exchange of the plan is left: it then says how far off the plan is."""
    model, cloud = random_problem(0, 20)
    problem = jko_problem(model, cloud, 0, 0.01, 0.01).with_start(np.roll(cloud.points, 1, axis=0))
    settled = particles.solve_tokens(problem, 1e-6, 1, "none")
    assert settled.stats.plan_changes >= 1
    assert settled.certificate.plan_gap <= 1e-9
    monkeypatch.setattr(particles, "PLAN_CHANGES", 0)
    left = particles.solve_tokens(problem, 1e-6, 1, "none")
    cost = problem.anchors[0].cost.matrix(left.at.points)
    best = optimal_plan(cost, cloud.weights, cloud.weights).cost
    assert left.stats.plan_changes == 0
    used = 2 * problem.step * left.at.transport
    assert left.certificate.plan_gap == pytest.approx(used / best - 1)
    assert left.certificate.plan_gap > 1e-3
