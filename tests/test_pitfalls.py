"""Inputs that broke others, on everything: a right answer or a clear error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from jko import (
    AttentionModel,
    Heads,
    TokenCloud,
    minimizing_movement,
    particle_flow,
    proximal_step,
    sphere,
    step_advice,
    wasserstein,
    weighted_distance,
)
from jko.attention.fields import KernelOverflowError


@dataclass(frozen=True)
class Case:
    """A model and a cloud; ``overflow`` says what cannot be represented."""

    model: AttentionModel
    cloud: TokenCloud
    overflow: str = "nothing"


def heads_of_norm(norm, dim=3, count=1, seed=1):
    heads = Heads.gaussian(count, dim, seed)
    return Heads(heads.matrices * (norm / heads.norms)[:, None, None])


def cloud_of(n=7, dim=3, weights=None):
    return TokenCloud(TokenCloud.uniform(n, dim, 5).points, weights)


ONE, THREE = Heads.gaussian(1, 3, 0), Heads.gaussian(3, 3, 0)
POLE = np.array([[0.0, 0, 1]])
PLANE = np.array([[1.0, 0], [0.6, 0.8], [0, -1]])

CLOUDS = {
    "one token": cloud_of(1),
    "all tokens equal": TokenCloud(np.repeat(POLE, 5, axis=0)),
    "two pairs of equal tokens": TokenCloud(np.repeat(cloud_of(2).points, 2, axis=0)),
    "two antipodal tokens": TokenCloud(np.vstack([POLE, -POLE])),
    "antipodal tokens among others": TokenCloud(np.vstack([cloud_of(4).points, POLE, -POLE])),
    "zero weights": cloud_of(7, weights=np.r_[0, 0.5, 0, 0.3, 0.2, 0, 0]),
    "one charged token": cloud_of(4, weights=[0, 1, 0, 0]),
    "very unequal weights": cloud_of(4, weights=np.r_[1e-12, 1e-6, 0.5, 0.5 - 1e-6 - 1e-12]),
    "a weight near the smallest double": cloud_of(3, weights=[1e-300, 0.5, 0.5]),
    "float32": TokenCloud(cloud_of().points.astype(np.float32)),
    "nearly coincident tokens": TokenCloud.normalized(POLE + 1e-9 * cloud_of(6).points),
}

HEADS = {
    "one head": ONE,
    "three heads": THREE,
    "all heads equal": Heads(np.repeat(ONE.matrices, 3, axis=0)),
    "zero": Heads(np.zeros((2, 3, 3))),
    "negative definite": Heads(-np.eye(3)),
    "rank one": Heads(np.outer([1, 2, 3], [1, 2, 3]) / 7),
    "a head of weight zero": Heads(THREE.matrices, [0.5, 0.5, 0]),
    "integers": Heads([[2, 1, 0], [1, 0, 0], [0, 0, -1]]),
}

CASES = {
    f"{name}, sign {s:+d}": Case(AttentionModel(THREE, s), c)
    for name, c in CLOUDS.items()
    for s in (1, -1)
}
CASES |= {
    f"{name}, sign {s:+d}": Case(AttentionModel(h, s), cloud_of())
    for name, h in HEADS.items()
    for s in (1, -1)
}
CASES |= {
    f"dimension {dim}": Case(
        AttentionModel(Heads.gaussian(2, dim, 0).symmetrized(z / dim**0.5)), cloud_of(6, dim)
    )
    for dim in (2, 4, 10, 384)
    for z in [np.random.default_rng(0).standard_normal((2, dim, dim))]
}
CASES |= {
    "strong heads, 50": Case(AttentionModel(heads_of_norm(50)), cloud_of()),
    "strong heads, 500": Case(AttentionModel(heads_of_norm(500)), cloud_of(), "squares"),
    "strong heads, 1000": Case(AttentionModel(heads_of_norm(1000)), cloud_of(), "energy"),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def is_cloud_like(points, cloud):
    assert points.shape == cloud.points.shape
    assert np.abs(np.linalg.norm(points, axis=1) - 1).max() < 1e-14


def test_model(case, naive):
    model, cloud = case.model, case.cloud
    for kind in ("gradient", "softmax"):
        velocity = model.velocity(cloud, 0, kind)
        assert np.isfinite(velocity).all()
        size = np.abs(velocity).max(initial=1)
        assert np.abs((velocity * cloud.points).sum(axis=1)).max() < 1e-12 * size
    if case.overflow == "energy":
        for call in (model.energy, model.slope_squared, model.energy_time_derivative):
            with pytest.raises(KernelOverflowError, match="overflows double precision"):
                call(cloud, 0)
        return
    oracle = naive(model, cloud)
    assert model.energy(cloud, 0) == pytest.approx(oracle.energy, rel=1e-11)
    assert model.energy_time_derivative(cloud, 0) == 0
    if case.overflow == "nothing":
        assert model.slope_squared(cloud, 0) == pytest.approx(oracle.slope_squared, rel=1e-9)
        for name in ("head_mobility", "effective_mobility", "first_variation", "gradient"):
            expected = getattr(oracle, name)(cloud.points)
            size = np.abs(expected).max(initial=1e-300)
            value = getattr(model, name)(cloud.points, cloud, 0)
            np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-12 * size)
        assert model.defect_rate(cloud, 0) >= 0


@pytest.mark.parametrize("step", [1e-6, 0.1, 20.0])
def test_proximal_step(case, step):
    model, cloud = case.model, case.cloud
    if case.overflow != "nothing":
        with pytest.raises(KernelOverflowError, match="overflows double precision"):
            proximal_step(model, cloud, 0, step)
        return
    result = proximal_step(model, cloud, 0, step)
    is_cloud_like(result.cloud.points, cloud)
    np.testing.assert_array_equal(result.cloud.weights, cloud.weights)
    scale = max(1, abs(result.energy_before))
    assert result.objective <= result.energy_before + 1e-12 * scale
    assert result.distance_squared >= 0
    assert result.success
    total = result.distance_squared / (2 * step) + result.energy
    assert result.objective == pytest.approx(total, rel=1e-12)
    assert result.energy == pytest.approx(model.energy(result.cloud, step), rel=1e-11)
    plan = result.plan.toarray()
    np.testing.assert_allclose(plan.sum(axis=1), cloud.weights, atol=1e-14)
    np.testing.assert_allclose(plan.sum(axis=0), cloud.weights, atol=1e-14)
    assert result.certificate.plan_gap <= 1e-9


def test_minimizing_movement(case):
    model, cloud = case.model, case.cloud
    if case.overflow == "energy":
        with pytest.raises(KernelOverflowError, match="overflows double precision"):
            minimizing_movement(model, cloud, (0, 0.1), 0.05)
        return
    curve = minimizing_movement(model, cloud, (0, 0.1), 0.05)
    if case.overflow == "squares":
        assert not curve.success
        assert "overflows double precision" in curve.message
        return
    assert curve.success
    for points in curve.points:
        is_cloud_like(points, cloud)
    assert (np.diff(curve.energy) <= 1e-12 * np.abs(curve.energy[:-1])).all()


@pytest.mark.parametrize("velocity", ["gradient", "softmax"])
def test_particle_flow(case, velocity):
    model, cloud = case.model, case.cloud
    if case.overflow == "energy":
        with pytest.raises(KernelOverflowError, match="overflows double precision"):
            particle_flow(model, cloud, (0, 0.01), velocity)
        return
    curve = particle_flow(model, cloud, (0, 0.01), velocity)
    if case.overflow == "squares":
        assert not curve.success
        assert "overflow double precision" in curve.message
        return
    assert curve.success
    for points in curve.points:
        is_cloud_like(points, cloud)
    last = {name: values[-1] for name, values in curve.integrals.items()}
    halves = (last["metric_speed_squared"] + last["slope_squared"]) / 2
    change = curve.energy[-1] - curve.energy[0]
    scale = np.abs(curve.energy).max() + halves
    assert change == pytest.approx(last["defect"] - halves, abs=1e-7 * scale)


def test_distances(case):
    cloud = case.cloud
    other = TokenCloud.uniform(cloud.n + 3, cloud.dim, 9)
    there, back = wasserstein(cloud, other), wasserstein(other, cloud)
    assert there == pytest.approx(back, rel=1e-12)
    assert 0 <= there <= np.pi
    assert wasserstein(cloud, cloud) == pytest.approx(0, abs=1e-12)
    if case.overflow == "energy":
        with pytest.raises(KernelOverflowError, match="overflows double precision"):
            weighted_distance(cloud, other, case.model, 0)
        return
    frozen = weighted_distance(cloud, other, case.model, 0)
    bounds = case.model.effective_mobility(cloud.points[cloud.weights > 0], cloud, 0)
    tolerance = 1 + 1e-9
    assert np.sqrt(bounds.min()) * there <= frozen * tolerance
    assert frozen <= np.sqrt(bounds.max()) * there * tolerance


def test_step_advice(case):
    if case.overflow == "energy":
        with pytest.raises(KernelOverflowError, match="overflows double precision"):
            step_advice(case.model, case.cloud, 0)
        return
    advice = step_advice(case.model, case.cloud, 0)
    assert 0 < advice.guaranteed <= advice.tightened
    assert advice.gain >= 1


OTHER = cloud_of()
WRONG_CALLS = {
    "model.energy": lambda m, c: m.energy(c, 0),
    "model.velocity": lambda m, c: m.velocity(c, 0),
    "model.gradient": lambda m, c: m.gradient(OTHER.points, c, 0),
    "proximal_step": lambda m, c: proximal_step(m, c, 0, 0.1),
    "minimizing_movement": lambda m, c: minimizing_movement(m, c, (0, 0.1), 0.1),
    "particle_flow": lambda m, c: particle_flow(m, c, (0, 0.1)),
    "step_advice": lambda m, c: step_advice(m, c, 0),
    "wasserstein": lambda m, c: wasserstein(c, OTHER),
    "weighted_distance": lambda m, c: weighted_distance(c, OTHER, m, 0),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_a_cloud_of_another_dimension_is_named(name):
    message = "dimension 2|dimension 3"
    with pytest.raises(ValueError, match=message):
        WRONG_CALLS[name](AttentionModel(ONE), TokenCloud(PLANE))


@pytest.mark.parametrize("name", WRONG_CALLS)
@pytest.mark.parametrize("value", [POLE, None, "cloud"])
def test_what_is_not_a_cloud_is_named(name, value):
    with pytest.raises(TypeError, match=f"must be a TokenCloud, got {type(value).__name__}"):
        WRONG_CALLS[name](AttentionModel(ONE), value)


@pytest.mark.parametrize("name", ["model.energy", "proximal_step"])
@pytest.mark.parametrize("t", [np.nan, np.inf, None, "0"])
def test_bad_times_are_named(name, t):
    model = AttentionModel(ONE)
    calls = {
        "model.energy": lambda: model.energy(OTHER, t),
        "proximal_step": lambda: proximal_step(model, OTHER, t, 0.1),
    }
    with pytest.raises((ValueError, TypeError), match=r"t must be (finite|a real number), got"):
        calls[name]()


def test_float32_points_of_evaluation_are_renormalised():
    model, exact = AttentionModel(THREE), cloud_of(20)
    rounded = exact.points.astype(np.float32)
    expected = sphere.normalize(rounded.astype(float))
    for name in ("first_variation", "gradient", "effective_mobility"):
        values = [getattr(model, name)(at, OTHER, 0) for at in (rounded, expected)]
        np.testing.assert_allclose(*values, rtol=1e-14, atol=1e-14)


def test_points_drift_is_not_accumulated():
    """A thousand steps leave the points on the sphere and the weights as they were."""
    model, cloud = AttentionModel(Heads.gaussian(1, 2, 0), -1), cloud_of(3, 2, [0.2, 0.3, 0.5])
    state = cloud
    for _ in range(1000):
        state = TokenCloud(sphere.exp(state.points, 1e-3 * model.velocity(state, 0)), state.weights)
    assert np.abs(np.linalg.norm(state.points, axis=1) - 1).max() < 4e-16
    np.testing.assert_array_equal(state.weights, cloud.weights)
