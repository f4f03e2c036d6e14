"""Ground costs: gradients, symmetry, and how far they are from each other and the distance."""

from __future__ import annotations

import numpy as np
import pytest
from jko import AttentionModel, Heads, TokenCloud, sphere
from jko.transport.cost import COSTS, SourceCost, ground_cost
from scipy.optimize import minimize


class TestGroundCosts:
    @pytest.fixture
    def model(self):
        return AttentionModel(Heads.gaussian(3, 3, 0))

    @pytest.fixture
    def cloud(self):
        return TokenCloud(TokenCloud.uniform(8, 3, 1).points, np.arange(8) / 28)

    @staticmethod
    def along(cost, x_index, direction, angles):
        """Costs of moving token x_index by the given angles along a great circle."""
        x = cost.points[x_index]
        v = sphere.project(x, direction)
        v = v / np.linalg.norm(v)
        y = sphere.exp(x, np.asarray(angles)[:, None] * v)
        return cost.pairs(np.full(len(angles), x_index), y), y

    @pytest.mark.parametrize("kind", COSTS)
    @pytest.mark.parametrize("dim", [2, 3, 5])
    def test_gradient_against_differences(self, kind, dim):
        model = AttentionModel(Heads.gaussian(2, dim, 0))
        cloud = TokenCloud.uniform(6, dim, 1)
        cost = ground_cost(kind, model, cloud, 0)
        rng, h = np.random.default_rng(2), 1e-6
        rows = np.array([0, 1, 2, 3, 4, 5, 0, 1])
        y = TokenCloud.uniform(8, dim, 3).points.copy()
        y[0] = cloud.points[0]
        y[1] = sphere.exp(cloud.points[1], 1e-4 * sphere.project(cloud.points[1], y[1]))
        gradient = cost.gradient(rows, y)
        np.testing.assert_allclose((gradient * y).sum(axis=1), 0, atol=1e-13)
        for _ in range(3):
            v = sphere.project(y, rng.standard_normal(y.shape))
            ends = [cost.pairs(rows, sphere.exp(y, s * h * v)) for s in (1, -1)]
            slope = (ends[0] - ends[1]) / (2 * h)
            np.testing.assert_allclose((gradient * v).sum(axis=1), slope, atol=2e-7, rtol=2e-7)

    @pytest.mark.parametrize("kind", COSTS)
    def test_matrix_take_and_pairs_agree(self, kind, model, cloud, monkeypatch):
        monkeypatch.setattr("jko.transport.cost.PAIR_BLOCK", 7)
        cost = ground_cost(kind, model, cloud, 0)
        y = TokenCloud.uniform(5, 3, 4).points
        matrix = cost.matrix(y)
        rows, columns = (k.ravel() for k in np.indices(matrix.shape))
        np.testing.assert_allclose(cost.pairs(rows, y[columns]), matrix.ravel(), rtol=1e-13)
        some = np.array([6, 2])
        np.testing.assert_allclose(cost.take(some).matrix(y), matrix[some], rtol=1e-13)
        assert (np.diag(cost.matrix(cloud.points)) == 0).all()

    def test_source_cost_is_the_frozen_mobility_times_the_square(self, model, cloud):
        cost = ground_cost("source", model, cloud, 0)
        y = TokenCloud.uniform(5, 3, 4).points
        mobility = model.effective_mobility(cloud.points, cloud, 0)
        expected = mobility[:, None] * sphere.distance(cloud.points[:, None], y[None]) ** 2
        np.testing.assert_allclose(cost.matrix(y), expected, rtol=1e-14)

    def test_source_hessian_against_differences(self, model, cloud):
        cost = ground_cost("source", model, cloud, 0)
        rows, y, h = np.arange(5), TokenCloud.uniform(5, 3, 4).points, 1e-5
        v = sphere.project(y, np.random.default_rng(0).standard_normal(y.shape))
        ends = []
        for s in (1, -1):
            z = sphere.exp(y, s * h * v)
            ends.append(sphere.transport(z, y, cost.gradient(rows, z)))
        product = (ends[0] - ends[1]) / (2 * h)
        back = cost.terms(rows, y).back
        along, across = cost.curvature(rows, back)
        hessian = sphere.restrict(y, along[:, None, None] * back[:, :, None] * back[:, None], across)
        np.testing.assert_allclose(np.einsum("kij,kj->ki", hessian, v), product, atol=1e-7)

    @pytest.mark.parametrize("kind", COSTS)
    def test_constant_mobility_gives_the_squared_distance(self, kind, cloud):
        flat = AttentionModel(Heads(np.zeros((2, 3, 3))))
        y = TokenCloud.uniform(5, 3, 4).points
        expected = sphere.distance(cloud.points[:, None], y[None]) ** 2
        cost = ground_cost(kind, flat, cloud, 0)
        np.testing.assert_allclose(cost.matrix(y), expected, rtol=1e-13)
        rows = np.zeros(5, dtype=int)
        pull = -2 * sphere.log(y, np.broadcast_to(cloud.points[0], y.shape))
        np.testing.assert_allclose(cost.gradient(rows, y), pull, atol=1e-12)

    @pytest.mark.parametrize("kind", ["midpoint", "geodesic"])
    def test_symmetric_costs(self, kind, model, cloud):
        matrix = ground_cost(kind, model, cloud, 0).matrix(cloud.points)
        np.testing.assert_allclose(matrix, matrix.T, rtol=1e-12, atol=1e-15)

    def test_costs_agree_to_the_documented_orders(self, model, cloud):
        """source - geodesic = O(d^3); midpoint - geodesic = O(d^4)."""
        angles = np.array([0.2, 0.1, 0.05, 0.025])
        values = {}
        for kind in COSTS:
            cost = ground_cost(kind, model, cloud, 0)
            values[kind] = self.along(cost, 0, np.array([0.3, -1.0, 0.7]), angles)[0]
        for kind, order in (("source", 3), ("midpoint", 4)):
            errors = np.abs(values[kind] - values["geodesic"])
            slope = np.polyfit(np.log(angles), np.log(errors), 1)[0]
            assert slope == pytest.approx(order, abs=0.25)

    def test_geodesic_cost_bounds_the_conformal_distance(self, model, cloud):
        """The best curve between two points is cheaper than the great circle, by O(d^4)."""
        cost = ground_cost("geodesic", model, cloud, 0)
        x, edges = cost.points[0], np.linspace(0, 1, 121)[:, None]
        angles, excess = np.array([0.4, 0.2, 0.1]), []
        values, ends = self.along(cost, 0, np.array([0.1, 0.5, -1.0]), angles)
        for value, angle, y in zip(values, angles, ends, strict=True):
            normal = sphere.normalize(np.cross(x, y))
            shapes = [np.sin(k * np.pi * edges) * normal for k in (1, 2, 3)]
            straight = sphere.geodesic(x, y, edges[:, 0])

            def length(c, straight=straight, shapes=shapes, size=angle**2):
                bump = size * sum(ck * shape for ck, shape in zip(c, shapes, strict=True))
                curve = sphere.normalize(straight + bump)
                middle = sphere.midpoint(curve[1:], curve[:-1])
                root = np.sqrt(model.effective_mobility(middle, cloud, 0))
                return 1e3 * float(root @ sphere.distance(curve[1:], curve[:-1]))

            first = (length(np.zeros(3)) / 1e3) ** 2
            assert first == pytest.approx(value, rel=1e-5)
            best = (minimize(length, np.zeros(3), options={"gtol": 1e-9}).fun / 1e3) ** 2
            excess.append(first - best)
        assert min(excess) > 0
        slope = np.polyfit(np.log(angles), np.log(excess), 1)[0]
        assert slope == pytest.approx(4, abs=0.25)

    @pytest.mark.parametrize("kind", COSTS)
    def test_antipodal_targets_are_survived(self, kind, model, cloud):
        cost = ground_cost(kind, model, cloud, 0)
        y = -cloud.points[:3]
        assert np.isfinite(cost.pairs(np.arange(3), y)).all()
        gradient = cost.gradient(np.arange(3), y)
        assert np.isfinite(gradient).all()
        if kind == "source":
            sizes = np.linalg.norm(gradient, axis=1)
            np.testing.assert_allclose(sizes, 2 * np.pi * cost.mobility[:3], rtol=1e-6)

    def test_names_are_checked(self, model, cloud):
        with pytest.raises(
            ValueError, match="cost must be one of 'source', 'midpoint', 'geodesic'"
        ):
            ground_cost("exact", model, cloud, 0)

    def test_scaled_source_cost(self, cloud):
        one, two = (SourceCost(cloud.points, np.full(8, s)) for s in (1.0, 2.5))
        y = TokenCloud.uniform(4, 3, 0).points
        np.testing.assert_allclose(two.matrix(y), 2.5 * one.matrix(y), rtol=1e-14)
