"""Ceilings on the work of a step: a cost regression fails here."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from jko import AttentionModel, Heads, TokenCloud, minimizing_movement, proximal_step
from jko.problems import reference_case


@pytest.mark.parametrize(("factor", "ceiling"), [(0.5, 12), (1.0, 30)])
def test_gradient_evaluations_of_a_step(factor, ceiling):
    """200 tokens, 10 heads, step 0.1, relative gradient norm 1e-8: (Z + Z^T)/2 and Z + Z^T."""
    counts = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        cloud = TokenCloud.uniform(200, 3, rng)
        z = rng.standard_normal((10, 3, 3))
        model = AttentionModel(Heads(factor * (z + z.transpose(0, 2, 1))))
        result = proximal_step(model, cloud, 0, 0.1, tolerance=1e-8)
        assert result.certificate.gradient_norm <= 1e-8
        assert result.status.name == "CONVERGED"
        counts.append(result.stats.gradient_evaluations)
    assert max(counts) <= ceiling


def test_the_counts_are_those_of_the_kernel(monkeypatch):
    """Every kernel pass of the step is in the statistics, but for mobility and advice."""
    problem = reference_case("sphere_three_heads")
    model, calls = problem.model, []
    plain = type(model.kernel).sums

    def counted(self, *args):
        calls.append(args[-1])
        return plain(self, *args)

    monkeypatch.setattr(type(model.kernel), "sums", counted)
    result = proximal_step(model, problem.cloud, 0, 0.1)
    stats = result.stats
    outside = len(calls) - stats.gradient_evaluations - stats.certificate_evaluations
    assert 0 <= outside <= 1
    assert stats.iterations < stats.gradient_evaluations


def test_a_proven_step_needs_no_transport_problem(monkeypatch):
    """Where the O(n) proof covers every token, POT is not asked at all."""
    problem = reference_case("sphere_one_head")
    monkeypatch.setattr("jko.steps.plans.optimal_plan", None)
    result = proximal_step(problem.model, problem.cloud, 0, 0.01)
    assert result.stats.plans == 0
    assert result.certificate.plan_checked_by == "potentials"
    assert result.certificate.optimality == "proven"


def test_evaluations_of_a_curve_add_up():
    problem = reference_case("circle_two_heads")
    curve = minimizing_movement(problem.model, problem.cloud, (0, 0.3), 0.1)
    assert curve.evaluations == sum(s.stats.gradient_evaluations for s in curve.steps)
    # a smooth problem at this step takes a handful of passes
    assert curve.evaluations <= 30


def test_memory_in_high_dimension():
    """No d x d matrix per token: 40 of them would take 47 MB here, and their eigenvectors more."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((2, 384, 384)) / 20
    model, cloud = AttentionModel(Heads.symmetrized(z)), TokenCloud.uniform(40, 384, rng)
    tracemalloc.start()
    result = proximal_step(model, cloud, 0, 0.1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.status.name == "CONVERGED"
    assert peak < 40e6
