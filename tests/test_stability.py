"""Stability: growth against its a-priori bound, perturbed heads, sampled tokens."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from jko import AttentionModel, Heads, TokenCloud, sphere
from jko.attention.weights import Frozen, Perturbed
from jko.diagnostics.limits import fit_power_law
from jko.diagnostics.stability import (
    GrowthStudy,
    a_priori_rate,
    energy_gap,
    flow_gaps,
    growth_study,
    least_energy,
    movement_gaps,
    perturbed_cloud,
    sampling_gaps,
    weight_decay,
)
from jko.transport.distance import labelled_distance

EPSILONS = 0.04 / 2.0 ** np.arange(4)


def convex_heads(seed, scale=0.5):
    a = np.random.default_rng(seed).standard_normal((2, 3, 3))
    return Heads(scale * a @ a.transpose(0, 2, 1))


@pytest.mark.parametrize("sign", [1, -1])
def test_both_constants_agree_for_one_head(sign):
    heads = Heads(np.diag([1.5, -0.5, 0.2]))
    curvature = 1.5 if sign == 1 else 1.5 + 1.5**2
    expected = curvature + 2.5 * 1.5 * np.exp(1.5)
    assert a_priori_rate(heads, "softmax", sign) == pytest.approx(expected)
    assert a_priori_rate(heads, "gradient", sign) == pytest.approx(expected)
    pair = Heads(np.stack([heads.matrices[0]] * 2))
    assert a_priori_rate(pair, "softmax", sign) == pytest.approx(expected)
    assert a_priori_rate(pair, "gradient", sign) > expected


@pytest.mark.parametrize("velocity", ["gradient", "softmax"])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_constant_bounds_velocity_differences(velocity, sign):
    """One-sided Lipschitz in the point plus Lipschitz in the measure, on labelled pairs."""
    rng = np.random.default_rng(3)
    worst = 0.0
    for _ in range(30):
        heads = Heads(0.4 * Heads.gaussian(3, 3, rng).matrices, rng.dirichlet(np.ones(3)))
        model = AttentionModel(heads, sign)
        cloud = TokenCloud(TokenCloud.uniform(6, 3, rng).points, rng.dirichlet(np.ones(6)))
        other = perturbed_cloud(cloud, 0.05, rng)
        x, y, a = cloud.points, other.points, cloud.weights
        out, back = sphere.log(x, y), sphere.log(y, x)
        pull = np.einsum("nd,nd->n", model.velocity(cloud, 0.0, velocity), out)
        push = np.einsum("nd,nd->n", model.velocity(other, 0.0, velocity), back)
        growth = -(a @ (pull + push)) / labelled_distance(x, y, a) ** 2
        worst = max(worst, growth / a_priori_rate(heads, velocity, sign))
    assert 0 < worst < 1


def test_growth_study():
    model = AttentionModel(Heads(0.1 * Heads.gaussian(2, 3, 0).matrices), -1)
    cloud = TokenCloud.octahedral(12, 0.1, 1)
    study = growth_study(model, cloud, [0, 0.5, 1.0], [1e-3, 1e-2])
    assert study.distances.shape == (2, 3)
    np.testing.assert_allclose(study.distances[:, 0], study.sizes, rtol=1e-6)
    assert study.exponent == pytest.approx(study.a_priori * study.times)
    assert study.a_priori == pytest.approx(a_priori_rate(model.heads(0.0), "gradient", -1))
    assert (study.growth <= study.steepest + 1e-12).all()
    assert (study.steepest < study.a_priori).all()
    logs = np.log(study.distances[:, 1:] / study.distances[:, :1])
    assert study.slack == pytest.approx((study.exponent[1:] - logs).min())
    assert study.slack > 0
    # in the linear range the rate does not depend on the size
    assert np.ptp(study.growth) < 0.05


def test_merged_clouds_have_no_growth_rate():
    study = GrowthStudy(
        times=np.array([0.0, 1, 2, 3]),
        sizes=np.array([0.1]),
        distances=np.array([[0.1, 0.2, 1e-16, 0.0]]),
        exponent=np.arange(4.0),
    )
    assert study.growth == pytest.approx(np.log(2))
    assert study.steepest == pytest.approx(np.log(2))
    assert study.slack == pytest.approx(1 - np.log(2))
    grown = replace(study, distances=np.array([[1e-16, 1e-15, 1e-14, 1e-9]]))
    assert grown.steepest == 0


def test_energy_gap_is_a_bracket():
    base, other = AttentionModel(convex_heads(0)), AttentionModel(convex_heads(1))
    nodes = sphere.fibonacci_nodes(300)
    clouds = [TokenCloud.uniform(5, 3, s) for s in range(20)]
    gap = energy_gap(base, other, 0.0, nodes, clouds)
    assert 0 < gap.attained <= gap.bound
    for cloud in clouds:
        assert abs(base.energy(cloud, 0.0) - other.energy(cloud, 0.0)) <= gap.attained


def test_least_energy_is_least():
    model, nodes = AttentionModel(convex_heads(0)), sphere.fibonacci_nodes(80)
    least = least_energy(model, 0.0, nodes)
    assert least.weights.min() >= 0
    assert least.weights.sum() == pytest.approx(1)
    assert least.energy == pytest.approx(model.energy(TokenCloud(nodes, least.weights), 0.0))
    assert 0 <= least.gap <= 1e-12
    rng = np.random.default_rng(0)
    for _ in range(20):
        other = TokenCloud(nodes, rng.dirichlet(np.full(80, 0.2)))
        assert model.energy(other, 0.0) >= least.energy
    with pytest.raises(ValueError, match="the energy must be convex on the nodes"):
        least_energy(AttentionModel(Heads(np.diag([1.0, -2, 0.5]))), 0.0, nodes)


def test_everything_converges_at_first_order():
    base, direction = convex_heads(2), convex_heads(3)
    model = AttentionModel(base)
    perturbed = [AttentionModel(Perturbed(base, direction, e)) for e in EPSILONS]
    cloud = TokenCloud.octahedral(8, 0.3, 0)
    nodes = sphere.fibonacci_nodes(60)
    energies = [energy_gap(model, other, 0.0, nodes).bound for other in perturbed]
    zero = least_energy(model, 0.0, nodes).energy
    least = [least_energy(other, 0.0, nodes).energy - zero for other in perturbed]
    decayed = [AttentionModel(weight_decay(model.path, e)) for e in EPSILONS]
    studies = {
        "energies": energies,
        "least": least,
        "flows": flow_gaps(model, perturbed, cloud, 0.3),
        "softmax": flow_gaps(model, perturbed, cloud, 0.3, "softmax"),
        "movements": movement_gaps(model, perturbed, cloud, 0.3, 0.1),
        "decay": flow_gaps(model, decayed, cloud, 0.3),
    }
    orders = {name: fit_power_law(EPSILONS, values).exponent for name, values in studies.items()}
    assert orders == pytest.approx(dict.fromkeys(studies, 1.0), abs=0.1)


def test_weight_decay():
    heads = convex_heads(0)
    path = weight_decay(Frozen(heads), 0.3)
    np.testing.assert_allclose(path(2.0).matrices, np.exp(-0.6) * heads.matrices)
    np.testing.assert_allclose(path.derivative(2.0), -0.3 * path(2.0).matrices)
    assert pickle.loads(pickle.dumps(path))(0.0).count == 2


def test_sampling_gaps_shrink_with_the_sample():
    model = AttentionModel(convex_heads(0))
    fine = TokenCloud(sphere.fibonacci_nodes(200))
    samples = [TokenCloud.uniform(n, 3, n) for n in (10, 100)]
    before, after = sampling_gaps(model, fine, [*samples, fine], 0.2)
    assert before[0] > before[1] > before[2] == pytest.approx(0, abs=1e-7)
    assert after[0] > after[1] > after[2] == pytest.approx(0, abs=1e-7)


def test_perturbation_has_its_size():
    cloud = TokenCloud(TokenCloud.uniform(5, 4, 0).points, [0.1, 0.2, 0.3, 0.4, 0])
    moved = perturbed_cloud(cloud, 0.03, 1)
    size = labelled_distance(cloud.points, moved.points, cloud.weights)
    assert size == pytest.approx(0.03, rel=1e-9)
