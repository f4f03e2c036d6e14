"""The constants that proofs rest on, by sampling; the cells that cover the sphere."""

from __future__ import annotations

import numpy as np
import pytest
from jko import AttentionModel, Heads, TokenCloud, sphere
from jko.steps.bounds import PotentialBounds
from jko.steps.branch import Curvature
from jko.steps.cells import Cells
from jko.steps.survey import Survey

CASES = [(dim, sign, size) for dim in (2, 3, 5) for sign in (1, -1) for size in (0.1, 1.0, 5.0)]


def problem(dim, sign, size, seed=0):
    rng = np.random.default_rng(seed)
    heads = Heads.gaussian(2, dim, rng)
    heads = Heads(size * heads.matrices / heads.norms.max(), rng.dirichlet(np.ones(2)))
    cloud = TokenCloud(TokenCloud.uniform(4, dim, rng).points, rng.dirichlet(np.ones(4)))
    return AttentionModel(heads, sign), cloud


def samples(model, cloud, count=4000):
    """Random points, the tokens, the heads' axes: V is extreme near the latter."""
    axes = np.linalg.eigh(model.path(0).matrices)[1].transpose(0, 2, 1).reshape(-1, cloud.dim)
    random = TokenCloud.uniform(count, cloud.dim, 1).points
    return sphere.normalize(np.vstack([random, cloud.points, axes, -axes]))


def tangent_eigenvalues(hessian, at):
    """Extreme eigenvalues of the Hessian on the tangent spaces."""
    big = 1e6 * at[:, :, None] * at[:, None, :]
    lowest = np.linalg.eigvalsh(hessian + big)[:, 0]
    highest = np.linalg.eigvalsh(hessian - big)[:, -1]
    return lowest, highest


def hessian_rates(model, cloud, at, rng, h=1e-4):
    """``|d/ds Hess V(u, u)|`` along geodesics with transported unit u, by differences."""
    direction, u = (sphere.project(at, rng.standard_normal(at.shape)) for _ in range(2))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    if rng.random() < 0.5:
        u = direction
    values = []
    for s in (h, -h):
        end = sphere.exp(at, s * direction)
        moved = sphere.transport(at, end, u)
        hessian = model.fields(end, cloud, 0, 2).first_variation_hessian()
        values.append(np.einsum("mi,mij,mj->m", moved, hessian, moved))
    return np.abs(values[0] - values[1]) / (2 * h)


@pytest.mark.parametrize(("dim", "sign", "size"), CASES)
def test_global_constants(dim, sign, size):
    model, cloud = problem(dim, sign, size)
    bounds = PotentialBounds.of_measure(cloud.points, cloud.weights, model.path(0), sign)
    at = samples(model, cloud)
    fields = model.fields(at, cloud, 0, 2)
    assert fields.first_variation.min() >= bounds.lower
    assert np.linalg.norm(fields.gradient, axis=1).max() <= bounds.lipschitz
    assert tangent_eigenvalues(fields.first_variation_hessian(), at)[0].min() >= -bounds.concavity
    rng = np.random.default_rng(2)
    for _ in range(4):
        assert hessian_rates(model, cloud, at, rng).max() <= bounds.hessian_lipschitz * (1 + 1e-6)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("strength", [0.3, 3.0])
def test_constants_are_nearly_attained_by_one_source(sign, strength):
    """One source, D = lambda I: the bounds are suprema, not merely bounds."""
    model = AttentionModel(Heads(strength * np.eye(3)), sign)
    cloud = TokenCloud([[0, 0, 1.0]])
    bounds = PotentialBounds.of_measure(cloud.points, cloud.weights, model.path(0), sign)
    angle = np.linspace(0, np.pi, 2001)
    at = sphere.normalize(np.stack([np.sin(angle), 0 * angle, np.cos(angle)], axis=1))
    fields = model.fields(at, cloud, 0, 2)
    lowest = tangent_eigenvalues(fields.first_variation_hessian(), at)[0].min()
    assert bounds.lower == pytest.approx(fields.first_variation.min(), rel=1e-6)
    steepest = np.linalg.norm(fields.gradient, axis=1).max()
    assert bounds.lipschitz == pytest.approx(steepest, rel=1e-4)
    assert bounds.concavity == pytest.approx(-lowest, rel=0.05)


def test_constants_of_zero_heads():
    cloud = TokenCloud.uniform(3, 3, 0)
    bounds = PotentialBounds.of_measure(cloud.points, cloud.weights, Heads(np.zeros((1, 3, 3))), 1)
    assert bounds.lower == pytest.approx(1)
    assert bounds.lipschitz == bounds.concavity == bounds.hessian_lipschitz == 0


@pytest.mark.parametrize(("dim", "sign", "size"), [c for c in CASES if c[0] < 4])
@pytest.mark.parametrize("level", [2, 5])
def test_local_and_surveyed_constants(dim, sign, size, level):
    """Random points of the caps against the constants of the caps."""
    model, cloud = problem(dim, sign, size, 1)
    heads = model.path(0)
    bounds = PotentialBounds.of_measure(cloud.points, cloud.weights, heads, sign)
    curvature = Curvature.of(heads, sign, bounds)
    cells = Cells.cover(dim, level)
    chosen = np.random.default_rng(0).permutation(cells.centers.shape[0])[:300]
    centers, radii = cells.centers[chosen], cells.radii[chosen]
    fields = model.fields(centers, cloud, 0, 2)
    survey = Survey.of(model.fields(cells.centers, cloud, 0, 2), cells.radii, curvature)
    floor = curvature.concavity(fields.head_mobility, radii)
    third = curvature.third(fields.head_mobility, radii)
    rng = np.random.default_rng(3)
    for _ in range(8):
        v = sphere.project(centers, rng.standard_normal(centers.shape))
        length = radii * rng.uniform(0, 1, radii.size) ** (1 / 2)
        at = sphere.exp(centers, (length / np.linalg.norm(v, axis=1))[:, None] * v)
        inside = model.fields(at, cloud, 0, 2)
        lowest = tangent_eigenvalues(inside.first_variation_hessian(), at)[0]
        assert (lowest >= -floor - 1e-12).all()
        assert (lowest >= -survey.concavity[chosen] - 1e-12).all()
        assert (hessian_rates(model, cloud, at, rng) <= third * (1 + 1e-6) + 1e-6).all()
        assert inside.first_variation.min() >= survey.bounds.lower
        assert np.linalg.norm(inside.gradient, axis=1).max() <= survey.bounds.lipschitz
    assert survey.bounds.lower >= bounds.lower
    assert survey.bounds.lipschitz <= bounds.lipschitz
    assert survey.bounds.concavity <= bounds.concavity


class TestCells:
    @pytest.mark.parametrize(("dim", "level"), [(2, 0), (2, 4), (3, 0), (3, 1), (3, 4)])
    def test_they_cover_the_sphere(self, dim, level):
        cells = Cells.cover(dim, level)
        assert cells.vertices.shape[0] == 2**dim * (2 if dim == 2 else 4) ** level
        points = TokenCloud.uniform(3000, dim, 0).points
        corners = cells.vertices.reshape(-1, dim)
        points = np.vstack([points, corners[:: max(1, corners.shape[0] // 500)]])
        reach = sphere.distance_matrix(points, cells.centers) <= cells.radii
        assert reach.any(axis=1).all()

    @pytest.mark.parametrize("dim", [2, 3])
    def test_children_cover_their_parent_and_shrink(self, dim):
        cells = Cells.cover(dim, 2)
        children = cells.subdivided()
        count = children.vertices.shape[0] // cells.vertices.shape[0]
        rng = np.random.default_rng(0)
        for index in range(0, cells.vertices.shape[0], 5):
            mix = rng.dirichlet(np.ones(dim), 200)
            points = sphere.normalize(mix @ cells.vertices[index])
            own = cells.take(np.array([index]))
            assert (sphere.distance(points, own.centers) <= own.radii).all()
            parts = children.take(np.arange(index * count, (index + 1) * count))
            reach = sphere.distance_matrix(points, parts.centers) <= parts.radii
            assert reach.any(axis=1).all()
            assert parts.radii.max() < 0.75 * own.radii[0]

    @pytest.mark.parametrize("dim", [2, 3])
    def test_radii_halve(self, dim):
        radii = [Cells.cover(dim, level).radii.max() for level in range(6)]
        ratios = np.divide(radii[1:], radii[:-1])
        assert (ratios < 0.72).all()
        assert ratios[-1] == pytest.approx(0.5, abs=0.02)
