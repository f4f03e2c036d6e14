"""Steps on many tokens: no array of n x n numbers, memory as announced, work independent of n."""

from __future__ import annotations

import logging
import os
import tracemalloc

import numpy as np
import pytest
from jko import AttentionModel, Heads, TokenCloud, proximal_step, sphere
from jko.steps import certificate, memory, preconditioner
from jko.steps.bounds import PotentialBounds
from jko.steps.memory import StepTooLargeError, remembered_pairs, step_bytes
from jko.steps.problem import Coupling, Objective
from jko.steps.proximal import jko_problem
from jko.transport.plan import MEMORY_LIMIT, plan_bytes
from jko.weights import Oscillating

#: A dense plan of these does not fit.
TOKENS = 20_000


def many(n, heads=4, dim=3, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((heads, dim, dim))
    matrices = z + z.transpose(0, 2, 1)
    matrices *= 3 / np.abs(np.linalg.eigvalsh(matrices)).max()
    return AttentionModel(Heads(matrices)), TokenCloud.uniform(n, dim, rng)


@pytest.fixture(scope="module")
def large():
    """A step on many tokens and the most memory it took."""
    assert plan_bytes(TOKENS, TOKENS) > MEMORY_LIMIT
    model, cloud = many(TOKENS)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    result = proximal_step(model, cloud, 0, 0.02)
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    return result, peak


def test_a_large_step_is_proven_without_a_plan(large):
    result, _ = large
    assert result.certificate.optimality == "proven"
    assert result.certificate.proven_tokens == TOKENS
    assert result.certificate.plan_checked_by == "potentials"
    assert result.certificate.plan_gap < 1e-9
    assert result.stats.plans == 0
    assert result.status.name == "CONVERGED"
    assert result.stats.gradient_evaluations <= 9
    assert result.stats.certificate_evaluations <= 3


def test_memory_is_what_was_announced(large):
    _, peak = large
    estimate = step_bytes(TOKENS, 3, 4)
    assert peak <= estimate
    # and the estimate, which counts slow convergence in, says something
    assert peak >= estimate / 3
    # one n x n array alone would be ten times more
    assert peak < TOKENS**2 * 8 / 10


def test_a_million_tokens_fit_in_four_gigabytes():
    assert step_bytes(10**6, 3, 4) < 4 * 2**30
    # all terms are linear in n, but for the pairs that L-BFGS may keep
    assert step_bytes(2 * 10**6, 3, 4) < 2 * step_bytes(10**6, 3, 4)
    assert [remembered_pairs(n, 3) for n in (10**3, 10**6, 10**9)] == [20, 11, 2]


def test_a_larger_step_states_its_certificate():
    """Ten times the step: more tokens than a plan has room for, and still every one is decided."""
    result = proximal_step(*many(TOKENS), 0, 0.2, certify="local")
    stated = result.certificate
    assert result.status.name == "CONVERGED"
    assert stated.plan_checked_by == "potentials"
    assert 0 < stated.proven_tokens <= TOKENS
    assert stated.optimality == ("proven" if stated.proven_tokens == TOKENS else "unchecked")


@pytest.mark.parametrize(
    ("frozen", "step", "first"),
    [
        # one pass has mobility, gradient and second moments of the start; a short first move
        # is expected to be fast, a longer one is looked at again
        (True, 0.02, [2]),
        (True, 0.1, [2, 2]),
        # heads that move: the mobility belongs to another time
        (False, 0.02, [0, 2]),
    ],
)
def test_fast_steps_take_few_second_moments(monkeypatch, frozen, step, first):
    """Once a preconditioner makes iterations fast, passes of order 1 are enough."""
    model, cloud = many(300)
    if not frozen:
        model = AttentionModel(Oscillating(model.heads(0)))
    orders = []
    plain = type(model.kernel).sums

    def recorded(self, *args):
        orders.append(args[-1])
        return plain(self, *args)

    monkeypatch.setattr(type(model.kernel), "sums", recorded)
    result = proximal_step(model, cloud, 0, step, certify="local")
    passes = orders[: len(orders) - result.stats.certificate_evaluations]
    assert passes == [*first, *[1] * (len(passes) - len(first))]
    assert len(passes) > len(first) + 1


def test_work_does_not_grow_with_the_number_of_tokens():
    counts = []
    for n in (500, 2000, 8000):
        result = proximal_step(*many(n), 0, 0.02, certify="local")
        counts.append(result.stats.gradient_evaluations)
    assert max(counts) <= min(counts) + 1


def test_a_step_that_cannot_fit_is_refused_before_it_starts(monkeypatch, caplog):
    model, cloud = many(3000)
    monkeypatch.setattr(memory, "ANNOUNCED", 0)
    with caplog.at_level(logging.INFO, logger="jko.steps.memory"):
        proximal_step(model, cloud, 0, 0.02)
    assert caplog.records[0].getMessage().startswith("a step on 3000 tokens (d = 3, 4 heads) takes")
    needed = step_bytes(3000, 3, 4)
    monkeypatch.setattr(memory, "physical_memory", lambda: needed - 1)
    calls = []
    monkeypatch.setattr("jko.steps.particles.Objective", lambda *args: calls.append(args))
    with pytest.raises(StepTooLargeError, match="a step on 3000 tokens of dimension 3 with 4 heads"):
        proximal_step(model, cloud, 0, 0.02)
    assert not calls
    assert issubclass(StepTooLargeError, MemoryError)


@pytest.mark.skipif(not hasattr(os, "sysconf"), reason="this system does not tell its memory")
def test_systems_that_do_not_tell_their_memory_refuse_nothing(monkeypatch):
    with pytest.raises(StepTooLargeError):
        memory.require_memory(10**12, 3, 4)

    def unknown(name):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr("os.sysconf", unknown)
    memory.require_memory(10**12, 3, 4)


def test_averaged_costs_announce_their_quadrature(monkeypatch):
    asked = []
    monkeypatch.setattr("jko.steps.problem.require_memory", lambda *args: asked.append(args))
    model, cloud = many(50)
    for cost in ("source", "geodesic"):
        proximal_step(model, cloud, 0, 0.02, cost=cost)
    assert asked[0] == (50, 3, 4, 0)
    assert asked[-1][3] == 8
    assert step_bytes(50, 3, 4, 8) > step_bytes(50, 3, 4)


def test_the_potential_at_the_sources_is_bounded_without_a_pass():
    """From below, and as closely as two bounded Hessians allow."""
    model, cloud = many(400)
    step = 0.002
    problem = jko_problem(model, cloud, 0, step, step)
    objective = Objective(problem, Coupling.labels(cloud.weights))
    at = objective(proximal_step(model, cloud, 0, step).cloud.points)
    norms = model.heads(0).norms
    bounds = PotentialBounds.of_measure(at.points, cloud.weights, model.heads(0), 1, third=False)
    floor = certificate._source_floor(at, bounds)
    exact = problem.fields(cloud.points, at.points, 0).first_variation
    assert (floor <= exact + 1e-15).all()
    bend = bounds.concavity + (norms * (1 + norms) * np.exp(norms)).mean()
    squared = sphere.distance(cloud.points, at.points) ** 2
    assert (exact - floor <= bend * squared / 2 + 1e-15).all()
    # the slope along the move is what matters at this step, by an order of magnitude
    assert np.median(2 * problem.stiffness) > 10 * bend / 2
    assert bounds.hessian_lipschitz == np.inf


class TestPreconditioner:
    def test_the_sweep_and_eigenvectors_agree(self):
        """Positive, barely positive, indefinite and negative blocks, in every dimension."""
        rng = np.random.default_rng(0)
        for dim in (2, 3, 5, 8):
            blocks = rng.standard_normal((400, dim, dim))
            blocks = blocks @ blocks.swapaxes(1, 2)
            blocks += rng.uniform(-3, 3, 400)[:, None, None] * np.eye(dim)
            floor = rng.uniform(0.01, 0.2, 400)
            values, vectors = np.linalg.eigh(blocks)
            assert (values[:, 0] < 0).any()
            assert (values[:, 0] > 1).any()
            values = np.maximum(np.abs(values), floor[:, None])
            expected = np.einsum("nij,nj,nkj->nik", vectors, 1 / values, vectors)
            np.testing.assert_allclose(
                preconditioner._positive_inverse(blocks, floor), expected, atol=1e-9, rtol=1e-9
            )

    def test_a_single_indefinite_block(self):
        """Of one matrix every layout is contiguous: the sweep must still leave the matrix alone."""
        blocks = np.array([[[1.0, 3.0], [3.0, 1.0]]])
        kept = blocks.copy()
        inverse = preconditioner._positive_inverse(blocks, np.full(1, 1e-3))
        np.testing.assert_array_equal(blocks, kept)
        # eigenvalues 4 and -2
        np.testing.assert_allclose(inverse, [[[0.375, -0.125], [-0.125, 0.375]]], atol=1e-14)

    @pytest.mark.parametrize("identity", [True, False])
    def test_parts_of_the_blocks_are_the_blocks(self, identity):
        model, cloud = many(60)
        problem = jko_problem(model, cloud, 0, 0.1, 0.1)
        coupling = Coupling.labels(cloud.weights)
        if not identity:
            order = np.roll(np.arange(60), 1)
            coupling = Coupling(coupling.rows, order, cloud.weights, np.ones(60), False)
        objective = Objective(problem, coupling)
        at = objective(cloud.points)
        whole = objective.blocks(at)
        np.testing.assert_array_equal(objective.blocks(at, slice(17, 31)), whole[17:31])

    def test_high_dimension_needs_no_matrix_per_token(self):
        model, cloud = many(30, heads=2, dim=9)
        objective = Objective(
            jko_problem(model, cloud, 0, 0.1, 0.1), Coupling.labels(cloud.weights)
        )
        at = objective(cloud.points)
        assert at.fields.sums.order == 1
        direction = preconditioner.Preconditioner(objective, at)(at.points, at.gradient)
        stiffness = objective.problem.stiffness[:, None]
        np.testing.assert_allclose(direction, at.gradient / stiffness, atol=1e-15)

    def test_the_preconditioner_does_not_depend_on_the_block(self, monkeypatch):
        model, cloud = many(100)
        objective = Objective(
            jko_problem(model, cloud, 0, 0.1, 0.1), Coupling.labels(cloud.weights)
        )
        at = objective(cloud.points)
        whole = preconditioner.Preconditioner(objective, at)(at.points, at.gradient)
        monkeypatch.setattr(preconditioner, "TOKEN_BLOCK", 7)
        parts = preconditioner.Preconditioner(objective, at)(at.points, at.gradient)
        np.testing.assert_allclose(parts, whole, rtol=1e-13, atol=1e-15)


def test_a_velocity_needs_no_pairs_of_tokens():
    """A pass keeps H (1 + d) numbers a token, twice while they are made, and a few vectors."""
    model, cloud = many(TOKENS)
    tracemalloc.start()
    model.velocity(cloud, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * TOKENS * (4 * (1 + 3) * 2 + 40)
