"""The coupling between tokens in the preconditioner of a step."""

import numpy as np
import pytest
from jko import AttentionModel, Heads, TokenCloud, proximal_step, sphere
from jko.steps import coupling as couplings
from jko.steps.coupling import TokenCoupling
from jko.steps.positions import hessian_product
from jko.steps.preconditioner import Preconditioner
from jko.steps.problem import Coupling, Objective
from jko.steps.proximal import jko_problem


def model_of(heads, dim, norm, sign=1, seed=0):
    made = Heads.gaussian(heads, dim, seed)
    return AttentionModel(Heads(made.matrices * (norm / made.norms)[:, None, None]), sign)


def problem_of(dim=3, norm=1.0, sign=1, n=80, heads=3, step=0.1):
    rng = np.random.default_rng(dim)
    cloud = TokenCloud(TokenCloud.uniform(n, dim, rng).points, rng.dirichlet(np.ones(n)))
    problem = jko_problem(model_of(heads, dim, norm, sign), cloud, 0, step, step)
    objective = Objective(problem, Coupling.labels(cloud.weights))
    return objective, objective(cloud.points, 2)


def tangent(at, seed=0):
    rng = np.random.default_rng(seed)
    return sphere.project(at.points, rng.standard_normal(at.points.shape))


def product(coupling, at, v):
    return sphere.project(at.points, coupling.spread(coupling.collect(v)))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("dim", "norm", "accuracy"), [(2, 0.5, 5e-3), (3, 0.5, 5e-3), (5, 0.2, 3e-2)])
def test_blocks_and_coupling_are_the_hessian(dim, norm, accuracy, sign):
    """But for what polynomials of degree two, in high dimension one, do not see of weak heads."""
    objective, at = problem_of(dim, norm, sign)
    coupling = TokenCoupling(at.fields, objective.problem.weights)
    coupling = coupling.completed(coupling.gram)
    v = tangent(at)
    blocks = np.einsum("nij,nj->ni", objective.blocks(at), v)
    whole = hessian_product(objective, at, v)
    left = np.linalg.norm(whole - blocks)
    assert left > 0.02
    assert np.linalg.norm(whole - blocks - product(coupling, at, v)) < accuracy * left


def test_it_is_symmetric_in_the_inner_product_of_the_masses():
    objective, at = problem_of(norm=3.0)
    weights = objective.problem.weights
    coupling = TokenCoupling(at.fields, weights)
    coupling = coupling.completed(coupling.gram)
    u, v = tangent(at, 1), tangent(at, 2)
    forth = weights @ np.vecdot(u, product(coupling, at, v))
    back = weights @ np.vecdot(v, product(coupling, at, u))
    assert forth == pytest.approx(back, rel=1e-9)


def test_what_shards_add_is_what_all_tokens_have():
    objective, at = problem_of()
    weights = objective.problem.weights
    whole = TokenCoupling(at.fields, weights)
    v = tangent(at)
    parts = []
    for part in (slice(0, 30), slice(30, 80)):
        fields = objective.problem.model.fields(
            at.points[part], TokenCloud(at.points, weights), 0, 2
        )
        parts.append((TokenCoupling(fields, weights[part]), v[part]))
    np.testing.assert_allclose(sum(c.gram for c, _ in parts), whole.gram, rtol=1e-12, atol=1e-15)
    collected = sum(c.collect(w) for c, w in parts)
    np.testing.assert_allclose(collected, whole.collect(v), rtol=1e-11, atol=1e-14)
    with pytest.raises(RuntimeError, match="not completed"):
        whole.spread(collected)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("norm", [0.0, 2.0, 8.0])
@pytest.mark.parametrize("step", [0.05, 5.0])
def test_the_preconditioner_is_positive_however_strong_the_coupling(sign, norm, step):
    objective, at = problem_of(norm=norm, sign=sign, step=step)
    weights = objective.problem.weights
    made = Preconditioner(objective, at, coupled=True).completed()
    assert made.coupling is not None
    for seed in range(20):
        v = tangent(at, seed)
        assert weights @ np.vecdot(v, made(at.points, v)) > 0


@pytest.mark.parametrize("points", ["one", "same", "antipodal", "plane"])
def test_clouds_on_which_the_polynomials_depend_on_each_other(points):
    cloud = {
        "one": TokenCloud([[0.0, 0.6, 0.8]]),
        "same": TokenCloud(np.tile([0.0, 0.6, 0.8], (7, 1))),
        "antipodal": TokenCloud([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]]),
        "plane": TokenCloud(np.pad(sphere.circle_nodes(12), ((0, 0), (0, 1)))),
    }[points]
    result = proximal_step(model_of(2, 3, 2.0), cloud, 0, 0.05)
    assert result.success
    assert result.stats.gradient_evaluations <= 12


def test_steps_need_fewer_passes_with_it(monkeypatch):
    """Of steps to 1e-10, short and long: at least one in five of all passes is saved."""
    model, cloud = model_of(10, 3, 3.0), TokenCloud.uniform(200, 3, 1)

    def passes():
        results = [proximal_step(model, cloud, 0, s, certify="none") for s in (0.02, 0.1)]
        return sum(r.stats.gradient_evaluations for r in results), results

    with_it, results = passes()
    monkeypatch.setattr(couplings, "COUPLED_TOKENS", 0)
    without, others = passes()
    assert with_it <= 0.8 * without
    for one, other in zip(results, others, strict=True):
        assert one.objective == pytest.approx(other.objective, abs=1e-15)


def test_strong_heads_go_without(monkeypatch):
    """Quadratic polynomials tell nothing of kernels this narrow: the step is that of the blocks."""
    model, cloud = model_of(2, 3, 11.0), TokenCloud.uniform(30, 3, 1)
    one = proximal_step(model, cloud, 0, 0.02, certify="none")
    monkeypatch.setattr(couplings, "COUPLED_TOKENS", 0)
    other = proximal_step(model, cloud, 0, 0.02, certify="none")
    assert one.stats == other.stats
    np.testing.assert_array_equal(one.cloud.points, other.cloud.points)


def test_values_at_the_bound_of_the_potential_warn_of_nothing(monkeypatch):
    """Strong attraction: tokens end where V is its bound, to more digits than the noise allows."""
    monkeypatch.setattr(couplings, "COUPLED_NORM", np.inf)
    model = AttentionModel(Heads(np.diag([290.0, 0, 0])), -1)
    result = proximal_step(model, TokenCloud.uniform(20, 3, 0), 0, 0.1)
    assert result.success
