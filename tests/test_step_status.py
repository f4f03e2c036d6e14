"""Every way in which a step can end."""

from __future__ import annotations

import numpy as np
import pytest
from jko import TokenCloud, proximal_step, sphere
from jko.steps import positions
from jko.steps.result import StepError, StepStatus
from jko.transport.cost import ground_cost


def test_converged(random_problem):
    model, cloud = random_problem(0)
    result = proximal_step(model, cloud, 0, 0.1)
    assert result.status is StepStatus.CONVERGED
    assert result.certificate.gradient_norm <= 1e-10


@pytest.mark.parametrize("step", [1e-12, 1e-300])
def test_rounding(step, random_problem):
    model, cloud = random_problem(0)
    result = proximal_step(model, cloud, 0, step)
    assert result.status in (StepStatus.ROUNDING, StepStatus.CONVERGED)
    assert result.success
    assert sphere.distance(result.cloud.points, cloud.points).max() <= 1e-11


def test_rounding_is_said(random_problem):
    model, cloud = random_problem(0)
    result = proximal_step(model, cloud, 0, 0.1, tolerance=1e-300)
    assert result.status is StepStatus.ROUNDING
    assert result.success
    assert result.certificate.gradient_norm < 1e-13


def test_max_evaluations(random_problem):
    model, cloud = random_problem(0)
    for limit in (1, 2, 3):
        result = proximal_step(model, cloud, 0, 0.5, max_evaluations=limit)
        assert result.status is StepStatus.MAX_EVALUATIONS
        assert not result.success
        assert "ran out of evaluations" in result.message
        assert result.objective <= result.energy_before


def test_stalled(random_problem, monkeypatch):
    model, cloud = random_problem(0)
    monkeypatch.setattr(positions, "_line_search", lambda *args: None)
    result = proximal_step(model, cloud, 0, 0.5, certify="none")
    assert result.status is StepStatus.STALLED
    assert not result.success
    np.testing.assert_array_equal(result.cloud.points, cloud.points)


def test_split(convex_problem):
    """One token has to split its mass: whole moves are exhausted, and a gap remains."""
    model, cloud = convex_problem(11)
    result = proximal_step(model, cloud, 0, 0.3)
    certificate = result.certificate
    assert result.status is StepStatus.SPLIT
    assert "splitting a token's mass would" in result.message
    assert certificate.optimality == "failed"
    assert certificate.convex
    assert certificate.proven_tokens == 149
    assert certificate.optimality_gap == pytest.approx(4.2326e-5, rel=1e-3)
    # it is true: cut a tenth off that token, and the objective goes down, by less than the gap
    nodes, y = sphere.fibonacci_nodes(2000), result.cloud
    cost = ground_cost("source", model, cloud, 0)
    own = cost.pairs(np.arange(150), y.points) / 0.6 + model.first_variation(y.points, y, 0)
    best = cost.matrix(nodes) / 0.6 + model.first_variation(nodes, y, 0)
    token = int(np.argmax(own - best.min(axis=1)))
    cut = np.insert(cloud.weights, token, cloud.weights[token] / 10)
    cut[token + 1] *= 0.9
    points = np.insert(cloud.points, token, cloud.points[token], axis=0)
    parts = proximal_step(model, TokenCloud(points, cut), 0, 0.3)
    assert parts.objective < result.objective - 1e-6
    assert result.objective - parts.objective <= certificate.optimality_gap


def test_not_global(random_problem, monkeypatch):
    """Without restarts left a better position of a token is reported."""
    monkeypatch.setattr("jko.steps.particles.RESTARTS", 0)
    for seed in range(60):
        model, cloud = random_problem(seed, 6, sign=-1, size=2.5)
        result = proximal_step(model, cloud, 0, 2.0)
        if result.status is not StepStatus.CONVERGED:
            break
    assert result.status is StepStatus.NOT_GLOBAL
    assert result.certificate.optimality == "failed"
    assert result.certificate.optimality_gap > 0
    assert "a better position of a token exists" in result.message


def test_every_status_is_a_sentence():
    for status in StepStatus:
        assert len(status.value.split()) > 4
    failures = {status for status in StepStatus if not status.success}
    assert failures == {StepStatus.STALLED, StepStatus.MAX_EVALUATIONS}


def test_an_increase_is_an_error_not_a_result(random_problem, monkeypatch):
    model, cloud = random_problem(0)

    def climb(objective, start, tolerance, limit):
        worse = objective(sphere.exp(start.points, 0.1 * start.gradient))
        return positions.PositionsResult(best=worse, iterations=1, converged=True)

    monkeypatch.setattr("jko.steps.particles.minimise_positions", climb)
    with pytest.raises(StepError, match=r"objective .* above the energy"):
        proximal_step(model, cloud, 0, 0.1)
