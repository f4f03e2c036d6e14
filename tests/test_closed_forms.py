"""Cases whose answers are formulas."""

from __future__ import annotations

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
    weights,
)
from scipy.integrate import solve_ivp
from scipy.special import iv

TIGHT = {"rtol": 1e-12, "atol": 1e-13}


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dim", [2, 3, 7])
def test_one_token_turns_along_the_matrix_exponential(dim, sign):
    """x(t) is proportional to exp(-sign Dbar t) x_0: one head, or any heads by softmax."""
    heads = Heads(Heads.gaussian(3, dim, 1).matrices, [0.2, 0.3, 0.5])
    cloud = TokenCloud.uniform(1, dim, 2)

    def exact(average, t):
        values, vectors = np.linalg.eigh(average)
        return sphere.normalize(
            vectors @ (np.exp(-sign * t * values) * (vectors.T @ cloud.points[0]))
        )

    one, many = AttentionModel(Heads(heads.matrices[0]), sign), AttentionModel(heads, sign)
    average = np.einsum("h,hij->ij", heads.weights, heads.matrices)
    cases = [(one, "gradient", heads.matrices[0]), (one, "softmax", heads.matrices[0])]
    for model, velocity, matrix in [*cases, (many, "softmax", average)]:
        curve = particle_flow(model, cloud, (1, 2.5), velocity, t_eval=[1, 1.6, 2.5], **TIGHT)
        for t, points in zip(curve.times, curve.points, strict=True):
            np.testing.assert_allclose(points[0], exact(matrix, t - 1), atol=1e-10)


def test_one_token_under_a_moving_head():
    """D(t) = (1 + t) D commutes with itself: x(t) is proportional to exp(-(t + t^2/2) D) x_0."""
    matrix = Heads.gaussian(1, 3, 1).matrices[0]
    model = AttentionModel(weights.FromFunction(lambda t: (1 + t) * matrix))
    cloud = TokenCloud.uniform(1, 3, 2)
    values, vectors = np.linalg.eigh(matrix)
    curve = particle_flow(model, cloud, (0, 1), **TIGHT)
    expected = vectors @ (np.exp(-1.5 * values) * (vectors.T @ cloud.points[0]))
    np.testing.assert_allclose(curve.final.points[0], sphere.normalize(expected), atol=1e-10)


@pytest.mark.parametrize("strength", [0.5, 2.0, -1.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_two_tokens_open_their_angle(strength, sign):
    """phi' = 2 lambda sin(phi) / (1 + exp(lambda (1 - cos phi)))."""

    def rate(t, phi):
        scale = np.exp(strength * (1 - np.cos(phi)))
        return 2 * sign * strength * np.sin(phi) / (1 + scale)

    start, times = 0.7, np.linspace(0, 2, 5)
    exact = solve_ivp(rate, (0, 2), [start], method="DOP853", t_eval=times, **TIGHT).y[0]
    model = AttentionModel(Heads(strength * np.eye(3)), sign)
    cloud = TokenCloud([[1, 0, 0], [np.cos(start), np.sin(start), 0]])
    for velocity in ("gradient", "softmax"):
        curve = particle_flow(model, cloud, (0, 2), velocity, t_eval=times, **TIGHT)
        angle = sphere.distance(curve.points[:, 0], curve.points[:, 1])
        np.testing.assert_allclose(angle, exact, atol=1e-9)
    # the minimizing movement follows at first order
    errors = []
    for step in (0.05, 0.025):
        curve = minimizing_movement(model, cloud, (0, 2), step, certify="local")
        errors.append(abs(sphere.distance(*curve.final.points) - exact[-1]))
    assert errors[1] < 0.02
    assert errors[0] / errors[1] == pytest.approx(2, abs=0.15)


def sphere_quadrature(order):
    """Weighted nodes on S^2 that integrate polynomials of degree < 2 order exactly."""
    z, wz = np.polynomial.legendre.leggauss(order)
    phi = 2 * np.pi * (np.arange(2 * order) + 0.5) / (2 * order)
    z, phi = (a.ravel() for a in np.meshgrid(z, phi, indexing="ij"))
    r = np.sqrt(1 - z**2)
    points = np.stack([r * np.cos(phi), r * np.sin(phi), z], axis=1)
    return TokenCloud.normalized(points, np.repeat(wz, 2 * order))


@pytest.mark.parametrize("strength", [-3.0, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_uniform_measure_on_the_sphere_is_stationary(strength, sign):
    """b = sinh(lambda)/lambda, E = sinh(lambda)/(2 lambda), no velocity."""
    model, cloud = AttentionModel(Heads(strength * np.eye(3)), sign), sphere_quadrature(14)
    mobility = np.sinh(strength) / strength
    at = TokenCloud.uniform(20, 3, 0).points
    for points in (cloud.points, at):
        np.testing.assert_allclose(model.effective_mobility(points, cloud, 0), mobility, rtol=1e-11)
        np.testing.assert_allclose(model.gradient(points, cloud, 0), 0, atol=1e-10)
    assert model.energy(cloud, 0) == pytest.approx(sign * mobility / 2, rel=1e-12)
    assert model.slope_squared(cloud, 0) == pytest.approx(0, abs=1e-20)
    curve = particle_flow(model, cloud, (0, 0.1))
    np.testing.assert_allclose(curve.final.points, cloud.points, atol=1e-10)


def test_uniform_measure_is_kept_by_a_step():
    """For a positive definite head it is the minimiser; nothing moves and nothing breaks."""
    model, cloud = AttentionModel(Heads(np.eye(3))), sphere_quadrature(6)
    result = proximal_step(model, cloud, 0, 0.1)
    assert sphere.distance(result.cloud.points, cloud.points).max() < 1e-7
    assert result.objective == pytest.approx(np.sinh(1) / 2, rel=1e-9)
    assert result.success


@pytest.mark.parametrize("strength", [0.5, 4.0])
def test_uniform_measure_on_the_circle(strength):
    """b = I_0(lambda), and the equispaced tokens are stationary."""
    model, cloud = AttentionModel(Heads(strength * np.eye(2))), TokenCloud(sphere.circle_nodes(40))
    at = TokenCloud.uniform(9, 2, 0).points
    np.testing.assert_allclose(model.effective_mobility(at, cloud, 0), iv(0, strength), rtol=1e-13)
    assert model.energy(cloud, 0) == pytest.approx(iv(0, strength) / 2, rel=1e-13)
    assert np.abs(model.velocity(cloud, 0)).max() < 1e-13


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("sign", [1, -1])
def test_equiangular_tokens_stay_equiangular(n, sign):
    """rho' = -2 lambda e^{lambda rho}(1 - rho)(1 + (n-1) rho) / (e^lambda + (n-1) e^{lambda rho})."""
    strength, start = 1.3, 0.35

    def rate(t, rho):
        e = np.exp(strength * rho)
        top = 2 * strength * e * (1 - rho) * (1 + (n - 1) * rho)
        return -sign * top / (np.exp(strength) + (n - 1) * e)

    times = [0, 0.5, 1.5]
    exact = solve_ivp(rate, (0, 1.5), [start], method="DOP853", t_eval=times, **TIGHT).y[0]
    gram = (1 - start) * np.eye(n) + start
    cloud = TokenCloud.normalized(np.linalg.cholesky(gram))
    model = AttentionModel(Heads(strength * np.eye(n)), sign)
    curve = particle_flow(model, cloud, (0, 1.5), t_eval=times, **TIGHT)
    for rho, points in zip(exact, curve.points, strict=True):
        products = (points @ points.T)[np.triu_indices(n, 1)]
        np.testing.assert_allclose(products, rho, atol=1e-9)
    # a proximal step keeps the symmetry as well
    stepped = proximal_step(model, cloud, 0, 0.1).cloud.points
    assert np.ptp((stepped @ stepped.T)[np.triu_indices(n, 1)]) < 1e-8


@pytest.mark.parametrize("dim", [2, 3, 10])
@pytest.mark.parametrize("copies", [1, 4])
def test_dirac(dim, copies):
    """E = exp<x, D x>/2, G^2 = exp<x, D x> |P_x D x|^2, however many tokens carry the mass."""
    matrix = Heads.gaussian(1, dim, 0).matrices[0]
    x = TokenCloud.uniform(1, dim, 1).points[0]
    model, cloud = AttentionModel(Heads(matrix)), TokenCloud(np.tile(x, (copies, 1)))
    kernel = np.exp(x @ matrix @ x)
    tangent = sphere.project(x, matrix @ x)
    assert model.energy(cloud, 0) == pytest.approx(kernel / 2, rel=1e-13)
    assert model.slope_squared(cloud, 0) == pytest.approx(kernel * (tangent @ tangent), rel=1e-12)
    np.testing.assert_allclose(model.velocity(cloud, 0), np.tile(-tangent, (copies, 1)), atol=1e-13)


def test_two_antipodal_tokens_are_an_ordinary_input():
    """They sit at a critical point of their interaction; other directions may still push them."""
    cloud = TokenCloud([[1, 0, 0], [-1, 0, 0]])
    stationary = AttentionModel(Heads(2 * np.eye(3)))
    np.testing.assert_allclose(stationary.velocity(cloud, 0), 0, atol=1e-15)
    assert stationary.energy(cloud, 0) == pytest.approx(np.cosh(2) / 2, rel=1e-14)
    result = proximal_step(stationary, cloud, 0, 0.1)
    np.testing.assert_allclose(result.cloud.points, cloud.points, atol=1e-9)


def test_zero_heads_move_nothing():
    """D = 0: kernel one, energy one half, every mobility one."""
    model, cloud = AttentionModel(Heads(np.zeros((2, 3, 3)))), TokenCloud.uniform(9, 3, 0)
    assert model.energy(cloud, 0) == pytest.approx(0.5, rel=1e-15)
    np.testing.assert_allclose(model.effective_mobility(cloud.points, cloud, 0), 1, rtol=1e-15)
    assert not model.velocity(cloud, 0).any()
    for sign in (1, -1):
        result = proximal_step(AttentionModel(model.path, sign), cloud, 0, 0.5)
        np.testing.assert_array_equal(result.cloud.points, cloud.points)
        assert result.objective == pytest.approx(sign * 0.5, rel=1e-15)
        assert result.certificate.optimality == "proven"
        assert result.certificate.convex
        assert result.success
