"""Limits: the kernel of infinitely many heads, power laws, averages, late times."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from jko import AttentionModel, Heads, TokenCloud, particle_flow, sphere
from jko.attention.weights import OrnsteinUhlenbeck
from jko.diagnostics.limits import (
    ManyHeads,
    article_model,
    cluster_count,
    decaying_path,
    fit_power_law,
    fit_power_law_groups,
    late_times,
    time_average,
)

CLOUD = TokenCloud(TokenCloud.uniform(9, 3, 4).points, np.arange(1, 10) / 45)


def sampled_heads(law, t, count, seed):
    """Independent heads of the Ornstein-Uhlenbeck law, by the exact transition from Z + Z^T."""
    rng = np.random.default_rng(seed)
    start = Heads.gaussian(count, law.dim, rng)
    path = OrnsteinUhlenbeck(start, horizon=t, variance=law.variance, base_step=t, rng=rng)
    return path(t)


@pytest.mark.parametrize("t", [0.8, 3.0])
@pytest.mark.parametrize(("dim", "variance"), [(3, 2.0), (2, 0.5)])
def test_closed_kernel_is_the_mean_over_sampled_heads(t, dim, variance):
    law = ManyHeads(dim=dim, variance=variance)
    heads = sampled_heads(law, t, 40_000, 1)
    x, y = TokenCloud.uniform(2, dim, 5).points
    values = np.exp(np.einsum("d,hde,e->h", x, heads.matrices, y))
    error = values.std() / np.sqrt(values.size)
    assert values.mean() == pytest.approx(float(law.kernel(x @ y, t)), abs=4 * error)
    assert error < 0.05 * values.mean()


def test_energy_first_variation_and_gradient_fit_together():
    law, t = ManyHeads(), 0.7
    values = law.first_variation(CLOUD.points, CLOUD, t)
    assert law.energy(CLOUD, t) == pytest.approx(CLOUD.weights @ values / 2, rel=1e-14)
    at = TokenCloud.uniform(3, 3, 6).points
    direction = sphere.project(at, np.random.default_rng(7).standard_normal(at.shape))
    h = 1e-5
    ends = [law.first_variation(sphere.exp(at, s * direction), CLOUD, t) for s in (h, -h)]
    slope = np.einsum("md,md->m", law.gradient(at, CLOUD, t), direction)
    np.testing.assert_allclose((ends[0] - ends[1]) / (2 * h), slope, rtol=1e-8)


def test_the_limit_path_has_the_law_and_approaches_the_limit():
    law, t = ManyHeads(), 1.5
    path = law.path(4000, 0)
    model = AttentionModel(path)
    assert pickle.loads(pickle.dumps(path))(t).count == 4000
    matrices = path(t).matrices
    np.testing.assert_allclose(matrices.mean(axis=0), law.mean(t) * np.eye(3), atol=1e-12)
    deviation = matrices - law.mean(t) * np.eye(3)
    assert deviation[:, 0, 0].std() == pytest.approx(law.spread(t), rel=0.05)
    assert deviation[:, 0, 1].std() == pytest.approx(law.spread(t) / np.sqrt(2), rel=0.05)
    assert model.energy(CLOUD, t) == pytest.approx(law.energy(CLOUD, t), rel=0.02)
    gap = model.gradient(CLOUD.points, CLOUD, t) - law.gradient(CLOUD.points, CLOUD, t)
    assert np.abs(gap).max() < 0.1
    slope = law.slope_squared(CLOUD, t, 4000, 0)
    assert slope == pytest.approx(model.slope_squared(CLOUD, t), rel=0.1)


def test_speed_of_the_gaussian_law_is_that_of_its_transported_heads():
    law, t, h = ManyHeads(), 0.4, 1e-4
    path = law.path(20_000, 0)
    moved = (path(t + h).matrices - path(t - h).matrices) / (2 * h)
    speed = np.sqrt(np.einsum("hij,hij->h", moved, moved).mean())
    assert law.wasserstein_speed(t) == pytest.approx(speed, rel=0.02)


def test_power_law_is_recovered_with_an_interval_that_covers_it():
    x = np.array([1.0, 2, 5, 10, 20])
    exact = fit_power_law(x, 3 * x**-1.2)
    assert exact.exponent == pytest.approx(-1.2)
    assert exact.prefactor == pytest.approx(3)
    assert exact.interval == pytest.approx((-1.2, -1.2))
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(60):
        noisy = x**-1.0 * rng.lognormal(-0.02, 0.2, (12, 5))
        low, high = fit_power_law(x, noisy).interval
        covered += low <= -1 <= high
    assert covered >= 48  # nominally 57; a bootstrap of 12 paths is a little narrow
    assert str(exact) == "-1.20 [-1.20, -1.20]"


@pytest.mark.parametrize("samples", [[[1, 2]], [[1, 2, -1]], [[[1, 2, 3]]]])
def test_power_law_refuses(samples):
    with pytest.raises(ValueError, match="samples must"):
        fit_power_law([1, 2, 3], samples)


def test_power_law_of_groups_of_different_sizes():
    x = np.array([1.0, 2, 5, 10, 20])
    sizes = (48, 24, 12, 12, 6)
    exact = fit_power_law_groups(x, [np.full(k, 3 * v**-1.2) for k, v in zip(sizes, x, strict=True)])
    assert exact.exponent == pytest.approx(-1.2)
    assert exact.interval == pytest.approx((-1.2, -1.2))
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(60):
        groups = [v**-1.0 * rng.lognormal(-0.02, 0.2, k) for k, v in zip(sizes, x, strict=True)]
        low, high = fit_power_law_groups(x, groups).interval
        covered += low <= -1 <= high
    assert covered >= 46  # nominally 57; the bootstrap of the smallest groups is narrow


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([[1.0], [2.0]], "groups must be 3"),
        ([[1.0], [2.0], []], r"groups\[2\] must be 1-d and not empty"),
        ([[1.0], [2.0], [0.0]], "must be positive"),
    ],
)
def test_power_law_of_groups_refuses(groups, message):
    with pytest.raises(ValueError, match=message):
        fit_power_law_groups([1, 2, 3], groups)


@pytest.fixture(scope="module")
def curve():
    model = article_model("oscillating", 2, rng=0)
    return particle_flow(
        model, CLOUD, (0, 2), "softmax", rtol=1e-6, t_eval=[0, 0.5, 1, 1.5, 2]
    )


def test_time_averages_add_up(curve):
    parts = [time_average(curve, "slope_squared", a, a + 0.5) for a in (1, 1.5)]
    assert time_average(curve, "slope_squared", 1, 2) == pytest.approx(np.mean(parts), rel=1e-12)
    rates = [curve.model.slope_squared(curve.cloud(k), curve.times[k]) for k in (2, 4)]
    assert min(rates) / 2 < np.mean(parts) < 2 * max(rates)
    with pytest.raises(ValueError, match=r"start must be one of the times of the curve, got 0\.3"):
        time_average(curve, "slope_squared", 0.3, 2)
    with pytest.raises(ValueError, match="end must be later"):
        time_average(curve, "slope_squared", 2, 1)
    with pytest.raises(ValueError, match="quantity must be one of"):
        time_average(curve, "speed", 0, 1)


def test_clusters_are_chains_of_small_gaps():
    angles = np.array([0, 0.05, 0.1, 0.15, 1.0, 1.08, 3.0])
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert cluster_count(TokenCloud(points), 0.06) == 4
    assert cluster_count(TokenCloud(points), 0.09) == 3
    assert cluster_count(TokenCloud(points, [1, 0, 0, 0, 0, 0, 0]), 0.06) == 1
    with pytest.raises(ValueError, match="radius must be positive"):
        cluster_count(TokenCloud(points), 0)


def test_late_times_of_a_flow_at_rest():
    point = TokenCloud(np.tile([[0.0, 0, 1]], (3, 1)))
    model = AttentionModel(Heads(np.eye(3)), -1)
    late = late_times(particle_flow(model, point, (0, 4), t_eval=[0, 2, 4]), 2.0)
    assert late.slope_squared == late.mean_slope_squared == late.largest_distance == 0
    assert late.clusters == (1, 1)


def test_late_times_of_a_moving_flow(curve):
    late = late_times(curve, 1.0, 0.1)
    assert late.slope_squared == curve.model.slope_squared(curve.final, 2.0)
    assert late.mean_speed_squared == time_average(curve, "metric_speed_squared", 1, 2)
    assert late.largest_distance > 0
    assert len(late.clusters) == 3


def test_article_models():
    kinds = [article_model(r, 2, 4, 1.0, 0).path for r in ("ornstein-uhlenbeck", "frozen")]
    np.testing.assert_array_equal(kinds[0](0.0).matrices, kinds[1](0.0).matrices)
    decaying = article_model("decaying", 2, rng=0, sign=-1)
    assert decaying.sign == -1
    assert np.abs(decaying.path.derivative(40.0)).max() < 1e-15
    change = (decaying.path(0.5001).matrices - decaying.path(0.4999).matrices) / 2e-4
    np.testing.assert_allclose(decaying.path.derivative(0.5), change, rtol=1e-6)
    assert pickle.loads(pickle.dumps(decaying.path))(1.0).count == 2
    with pytest.raises(ValueError, match="regime must be one of"):
        article_model("steady", 2)
    with pytest.raises(ValueError, match="deviation must have shape"):
        decaying_path(Heads(np.eye(3)), np.zeros((2, 3, 3)))
