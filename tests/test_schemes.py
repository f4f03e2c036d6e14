"""Schemes beyond JKO: their equations, labels, test particles, statuses and symmetries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from jko import AttentionModel, Heads, TokenCloud, minimizing_movement, particle_flow, sphere
from jko.problems import reference_case
from jko.runs.curve import CurveStatus
from jko.schemes import BDF2, JKO, SCHEMES, VE2, Midpoint, Past, Richardson, make_scheme, stages
from jko.steps.particles import solve_tokens
from jko.steps.problem import Anchor, StepProblem
from jko.steps.proximal import StepOptions
from jko.steps.result import StepStatus
from jko.transport.cost import SourceCost
from jko.transport.distance import labelled_distance
from jko.transport.plan import optimal_plan

QUICK = StepOptions(certify="none")
VARIANTS = (
    *SCHEMES,
    "midpoint,mobility=old",
    "midpoint,mobility=extrapolated",
    "bdf2,mobility=extrapolated",
    "bdf2,start=jko",
    "ve2,mobility=extrapolated",
)
CASE = reference_case("sphere_weighted")


def two_steps(model, cloud, name, step=0.05):
    """The state after two steps, enough for every scheme to use all its memory."""
    curve = minimizing_movement(model, cloud, (0.0, 2 * step), step, name, certify="none")
    assert curve.status is CurveStatus.COMPLETE, curve.message
    return curve


def strong_attractive(seed, tokens=8):
    """Heads of norm 6 that attract, tokens of unequal weights: steps of 0.1 are far too large."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((2, 3, 3))
    heads = a @ a.transpose(0, 2, 1)
    heads *= 6 / np.abs(np.linalg.eigvalsh(heads)).max()
    weights = rng.dirichlet(np.ones(tokens))
    points = TokenCloud.octahedral(tokens, 0.3, rng).points
    return AttentionModel(Heads(heads), sign=-1), TokenCloud(points, weights)


# the equations


def test_midpoint_is_the_implicit_midpoint_rule_on_the_sphere():
    past, step = Past(time=0.2, cloud=CASE.cloud), 0.1
    solution, half = Midpoint().half_step(CASE.model, (past,), 0.2 + step, QUICK)
    result = Midpoint().advance(CASE.model, (past,), 0.2 + step, QUICK)
    velocity = CASE.model.velocity(half.cloud, 0.2 + step / 2)
    backwards = sphere.log(half.cloud.points, CASE.cloud.points)
    np.testing.assert_allclose(-2 * backwards / step, velocity, atol=1e-8)
    np.testing.assert_allclose(
        sphere.log(half.cloud.points, result.cloud.points), -backwards, atol=1e-13
    )
    mobility = CASE.model.effective_mobility(half.cloud.points, half.cloud, 0.2 + step / 2)
    np.testing.assert_allclose(solution.mobility, mobility, rtol=1e-9)
    assert (half.step, half.energy_time) == (pytest.approx(0.05), pytest.approx(0.25))


def test_half_step_decreases_the_energy_and_satisfies_de_giorgi():
    past, step = Past(time=0.0, cloud=CASE.cloud), 0.2
    solution, half = Midpoint().half_step(CASE.model, (past,), step, QUICK)
    assert half.objective < half.energy_before
    assert half.energy_before == pytest.approx(CASE.model.energy(CASE.cloud, step / 2), rel=1e-14)

    def distance_squared(r):
        cost = SourceCost(CASE.cloud.points, solution.mobility)
        problem = StepProblem(
            model=CASE.model,
            weights=CASE.cloud.weights,
            step=r,
            energy_time=step / 2,
            anchors=(Anchor(cost),),
            start=CASE.cloud.points,
        )
        return 2 * r * solve_tokens(problem, 1e-12, 500, "none").at.transport

    nodes, weights = np.polynomial.legendre.leggauss(8)
    r = (nodes + 1) / 2 * half.step
    integrand = [distance_squared(x) / (2 * x**2) for x in r]
    integral = half.step / 2 * weights @ integrand
    assert half.energy_before - half.objective == pytest.approx(integral, rel=1e-9)


@pytest.mark.parametrize("ratio", [0.4, 1.0, 1.7])
def test_bdf2_solves_its_equation_with_unequal_steps(ratio):
    """The covariant two-step difference equals the velocity at the new measure."""
    before = CASE.cloud
    sigma, tau = 0.06, 0.06 * ratio
    flow = particle_flow(CASE.model, before, (0.0, sigma), t_eval=[sigma])
    last = flow.final
    past = (Past(time=0.0, cloud=before), Past(time=sigma, cloud=last))
    y = BDF2().advance(CASE.model, past, sigma + tau, QUICK).cloud
    near, far = sphere.log(y.points, last.points), sphere.log(y.points, before.points)
    difference = (1 + ratio) * near - ratio**2 / (1 + ratio) * far
    np.testing.assert_allclose(
        -difference / tau, CASE.model.velocity(y, sigma + tau), atol=1e-8
    )


def test_bdf2_keeps_order_two_on_alternating_steps():
    """With the coefficients of equal steps the order would be one."""
    exact = CASE.known["flow_gradient_T"]
    errors = []
    for pairs in (12, 24):
        pattern = np.tile([1.0, 1.6], pairs)
        times = np.concatenate([[0], np.cumsum(pattern) / pattern.sum()])
        past = [Past(time=0.0, cloud=CASE.cloud)]
        for stop in times[1:]:
            result = BDF2().advance(CASE.model, tuple(past[-2:]), float(stop), QUICK)
            past.append(Past(time=float(stop), cloud=result.cloud))
        errors.append(labelled_distance(past[-1].cloud.points, exact, CASE.cloud.weights))
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2, abs=0.1)


def test_bdf2_starts_with_the_named_scheme():
    past = (Past(time=0.0, cloud=CASE.cloud),)
    for name, scheme in (("jko", JKO()), ("midpoint", Midpoint())):
        first = BDF2(start=name).advance(CASE.model, past, 0.1, QUICK)
        same = scheme.advance(CASE.model, past, 0.1, QUICK)
        np.testing.assert_array_equal(first.cloud.points, same.cloud.points)


def test_ve2_solves_its_three_stages():
    step, x = 0.1, CASE.cloud.points
    past = Past(time=0.0, cloud=CASE.cloud)
    plan = stages.StagePlan(
        model=CASE.model,
        weights=CASE.cloud.weights,
        sources=(x,),
        rows=VE2.ROWS,
        step=step,
        energy_time=step / 2,
        fraction=0.5,
    )
    solution = stages.solve_stages(plan, None, QUICK)
    np.testing.assert_array_equal(
        solution.stages[-1], VE2().advance(CASE.model, (past,), step, QUICK).cloud.points
    )
    middle = sphere.midpoint(x, solution.stages[-1])
    cloud = TokenCloud(middle, CASE.cloud.weights)
    mobility = CASE.model.effective_mobility(middle, cloud, step / 2)
    np.testing.assert_allclose(solution.mobility, mobility, rtol=1e-9)
    positions = [x]
    for row, u in zip(VE2.ROWS, solution.stages, strict=True):
        pull = sum(gamma * sphere.log(u, v) for gamma, v in zip(row, positions, strict=True))
        force = CASE.model.gradient(u, TokenCloud(u, CASE.cloud.weights), step / 2)
        np.testing.assert_allclose(mobility[:, None] * pull / step, force, atol=1e-8)
        positions.append(u)


def test_richardson_extrapolates_along_geodesics():
    past = (Past(time=0.0, cloud=CASE.cloud),)
    coarse = JKO().advance(CASE.model, past, 0.1, QUICK).cloud
    half = JKO().advance(CASE.model, past, 0.05, QUICK).cloud
    fine = JKO().advance(CASE.model, (Past(time=0.05, cloud=half),), 0.1, QUICK).cloud
    result = Richardson().advance(CASE.model, past, 0.1, QUICK)
    expected = sphere.geodesic(coarse.points, fine.points, np.asarray(2.0))
    np.testing.assert_allclose(result.cloud.points, expected, atol=1e-14)
    assert result.energy == pytest.approx(CASE.model.energy(result.cloud, 0.1), rel=1e-14)
    with pytest.raises(ValueError, match="base must be a one-step scheme, got 'bdf2'"):
        Richardson(base=BDF2())


# what holds for every scheme


@pytest.mark.parametrize("name", VARIANTS)
def test_names_build_their_schemes(name):
    scheme = make_scheme(name)
    assert scheme.name == name
    assert make_scheme(scheme.name) == scheme
    assert make_scheme(scheme) is scheme


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("euler", "scheme must be one of 'jko', 'midpoint'"),
        ("midpoint,colour=red", "an option that 'midpoint' does not know"),
        ("jko,mobility=old", "an option that 'jko' does not know"),
        ("midpoint,mobility=new", "mobility must be one of 'implicit', 'extrapolated', 'old'"),
        ("midpoint,mobility", "must have options of the form name=value"),
        ("bdf2,start=ve2", "start must be one of 'midpoint', 'jko'"),
    ],
)
def test_names_that_mean_nothing(name, message):
    with pytest.raises(ValueError, match=message):
        make_scheme(name)


@pytest.mark.parametrize("name", ["midpoint", "bdf2", "ve2", "richardson-midpoint"])
def test_labelled_schemes_refuse_other_costs(name):
    with pytest.raises(ValueError, match="cost must be 'source' for scheme"):
        minimizing_movement(
            CASE.model, CASE.cloud, (0.0, 0.2), 0.1, name, cost="midpoint", certify="none"
        )


@pytest.mark.parametrize("name", VARIANTS)
def test_test_particles_are_the_limit_of_small_weights(name):
    points, weights = CASE.cloud.points, CASE.cloud.weights
    extra = sphere.normalize(np.array([[0.2, -0.5, 0.9], [1.0, 1.0, -0.3]]))
    both = np.concatenate([points[:5], extra, points[5:]])
    index = np.r_[0:5, 7 : points.shape[0] + 2]

    def moved(share):
        mixed = np.insert((1 - 2 * share) * weights, [5, 5], share)
        return two_steps(CASE.model, TokenCloud(both, mixed), name).points[-1]

    with_test, with_small = moved(0.0), moved(1e-12)
    np.testing.assert_allclose(with_test, with_small, atol=1e-8)
    alone = two_steps(CASE.model, CASE.cloud, name).points[-1]
    np.testing.assert_allclose(with_test[index], alone, atol=1e-13)
    assert sphere.distance(with_test[5:7], extra).min() > 1e-3


@pytest.mark.parametrize("name", VARIANTS)
def test_rotations_and_permutations_commute_with_the_scheme(name):
    rng = np.random.default_rng(3)
    rotation, _ = np.linalg.qr(rng.standard_normal((3, 3)))
    order = rng.permutation(12)
    heads = Heads.gaussian(2, 3, rng)
    cloud = TokenCloud.uniform(12, 3, rng)
    turned = Heads(rotation @ heads.matrices @ rotation.T)
    moved = TokenCloud(cloud.points[order] @ rotation.T, cloud.weights)
    first = two_steps(AttentionModel(heads), cloud, name, 0.02)
    second = two_steps(AttentionModel(turned), moved, name, 0.02)
    np.testing.assert_allclose(
        second.points[-1], first.points[-1][order] @ rotation.T, atol=1e-9
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_curves_hold_the_energy_at_their_times(name):
    curve = two_steps(CASE.model, CASE.cloud, name)
    energies = [CASE.model.energy(curve.cloud(k), t) for k, t in enumerate(curve.times)]
    np.testing.assert_allclose(curve.energy, energies, rtol=1e-13)
    assert curve.scheme == name


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("kind", ["one", "equal", "antipodal", "no heads"])
def test_degenerate_clouds(name, kind):
    axis = np.eye(3)
    points = {"one": axis[:1], "equal": axis[[0, 0, 0]], "antipodal": axis[:1] * [[1], [-1]]}
    matrix = np.zeros((3, 3)) if kind == "no heads" else np.diag([1.0, 2.0, 3.0])
    cloud = TokenCloud(points.get(kind, axis))
    curve = two_steps(AttentionModel(Heads(matrix)), cloud, name)
    # eigenvectors of the heads, and everything without heads, stay where they are
    np.testing.assert_allclose(curve.points[-1], cloud.points, atol=1e-14)


def test_last_step_is_shortened():
    case = reference_case("circle_two_heads")
    for name in ("midpoint", "bdf2", "ve2"):
        curve = minimizing_movement(
            case.model, case.cloud, (0.0, case.horizon), 0.03, name, certify="none"
        )
        assert curve.times[-1] == case.horizon
        assert curve.times[-1] - curve.times[-2] == pytest.approx(0.01)
        error = labelled_distance(
            curve.points[-1], case.known["flow_gradient_T"], case.cloud.weights
        )
        assert error < 0.2 * 0.03**2


# work, certificates, statuses


@pytest.mark.parametrize(
    ("name", "ceiling"),
    [
        ("midpoint", 12),
        ("midpoint,mobility=extrapolated", 9),
        ("bdf2", 13),
        ("ve2", 38),
        ("richardson-midpoint", 33),
    ],
)
def test_work_stays_low(name, ceiling):
    """An implicit mobility costs little more than a given one: 10.3, 7.8, 11, 34, 28 measured."""
    case = reference_case("sphere_three_heads")
    curve = minimizing_movement(case.model, case.cloud, (0.0, 1.0), 0.1, name, certify="none")
    assert curve.evaluations <= 10 * ceiling


def test_half_steps_carry_the_certificate():
    past = (Past(time=0.0, cloud=CASE.cloud),)
    result = Midpoint().advance(CASE.model, past, 0.02, StepOptions(certify="full"))
    assert result.certificate.optimality == "proven"
    assert result.certificate.gradient_norm <= 1e-10
    assert result.certificate.proven_tokens == CASE.cloud.n


@pytest.mark.parametrize(
    ("name", "seed", "step"),
    [("midpoint,mobility=old", 20, 0.4), ("ve2,mobility=old", 0, 0.1), ("richardson-jko", 20, 0.4)],
)
def test_plans_that_split_end_the_run(name, seed, step):
    model, cloud = strong_attractive(seed)
    past = (Past(time=0.0, cloud=cloud),)
    result = make_scheme(name).advance(model, past, step, QUICK)
    assert result.status is StepStatus.PLAN_SPLITS
    curve = minimizing_movement(model, cloud, (0.0, 1.0), step, name, certify="none")
    assert curve.status is CurveStatus.STEP_FAILED
    assert StepStatus.PLAN_SPLITS.value in curve.message
    assert curve.times.size == 1


def test_labels_follow_mass_where_the_plan_is_a_permutation():
    rng = np.random.default_rng(1)
    a = rng.standard_normal((2, 3, 3))
    heads = a @ a.transpose(0, 2, 1)
    heads *= 6 / np.abs(np.linalg.eigvalsh(heads)).max()
    cloud = TokenCloud.octahedral(12, 0.3, rng)
    past = (Past(time=0.0, cloud=cloud),)
    model = AttentionModel(Heads(heads), sign=-1)
    solution, half = Midpoint().half_step(model, past, 0.1, QUICK)
    assert half.stats.plan_changes > 0
    assert half.status is StepStatus.CONVERGED
    cost = SourceCost(cloud.points, solution.mobility)
    best = optimal_plan(cost.matrix(half.cloud.points), cloud.weights, cloud.weights)
    assert half.distance_squared == pytest.approx(best.cost, rel=1e-9)
    own = cost.pairs(np.arange(cloud.n), half.cloud.points)
    assert cloud.weights @ own == pytest.approx(best.cost, rel=1e-9)


def test_a_mobility_that_does_not_converge_is_said(monkeypatch):
    monkeypatch.setattr(stages, "UPDATES", 1)
    past = (Past(time=0.0, cloud=CASE.cloud),)
    assert Midpoint().advance(CASE.model, past, 0.3, QUICK).status is StepStatus.STALLED
    curve = minimizing_movement(CASE.model, CASE.cloud, (0.0, 0.3), 0.3, "ve2", certify="none")
    assert curve.status is CurveStatus.UNCONVERGED


@pytest.mark.parametrize("name", ["midpoint", "ve2", "midpoint,mobility=old"])
@pytest.mark.parametrize("count", [1, 3, 4])
def test_few_evaluations_are_said(name, count):
    past = (Past(time=0.0, cloud=CASE.cloud),)
    options = replace(QUICK, max_evaluations=count)
    result = make_scheme(name).advance(CASE.model, past, 0.2, options)
    assert result.status is StepStatus.MAX_EVALUATIONS
    stages_more = 3 if name == "ve2" else 1
    assert result.stats.gradient_evaluations <= count + 3 + stages_more


def test_nearest_targets_prove_the_labels():
    rng = np.random.default_rng(0)
    x = TokenCloud.uniform(30, 3, rng).points
    assert stages.keeps_nearest(x, x)
    assert stages.keeps_nearest(np.repeat(x, 2, axis=0), np.repeat(x, 2, axis=0))
    assert not stages.keeps_nearest(x, x[::-1])
