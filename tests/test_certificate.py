"""Certificates: what is called proven must be true, whatever the heads, the sign and the step."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jko import AttentionModel, Heads, TokenCloud, proximal_step, sphere, step_advice
from jko.steps import certificate as certificate_module
from jko.steps.branch import BranchReport

NODES = {2: sphere.circle_nodes(20_000), 3: sphere.fibonacci_nodes(20_000)}


def nodes_of(dim, seed=0):
    """20,000 nodes; beyond three dimensions random ones, with the axes."""
    if dim in NODES:
        return NODES[dim]
    random = np.random.default_rng(seed).standard_normal((20_000, dim))
    return sphere.normalize(np.vstack([np.eye(dim), -np.eye(dim), random]))


def brute_force_gap(model, cloud, result, nodes):
    """``sum_i a_i gap_i`` with every token's minimum taken over the nodes, from its definition."""
    mobility = model.effective_mobility(cloud.points, cloud, result.time)[:, None]
    t, y = result.energy_time, result.cloud
    at_nodes = model.first_variation(nodes, y, t)
    at_tokens = model.first_variation(y.points, y, t)
    cost = mobility * sphere.distance_matrix(cloud.points, nodes) ** 2
    best = (cost / (2 * result.step) + at_nodes).min(axis=1)
    cost = mobility * sphere.distance_matrix(cloud.points, y.points) ** 2
    share = result.plan.toarray() / cloud.weights[:, None]
    own = (share * (cost / (2 * result.step) + at_tokens)).sum(axis=1)
    return cloud.weights @ np.maximum(own - best, 0), np.abs(own).max()


def random_case(seed, dim=None):
    """A small random problem of either sign; heads of norm up to about eight."""
    rng = np.random.default_rng(seed)
    dim = int(rng.integers(2, 4)) if dim is None else dim
    n, count = int(rng.integers(1, 13)), int(rng.integers(1, 5))
    heads = Heads.gaussian(count, dim, rng)
    size = rng.uniform(0.3, 8) / heads.norms.max()
    token_weights = rng.dirichlet(np.ones(n)) if rng.random() < 0.5 else None
    head_weights = rng.dirichlet(np.ones(count)) if rng.random() < 0.5 else None
    sign = int(rng.choice([1, -1]))
    model = AttentionModel(Heads(size * heads.matrices, head_weights), sign)
    cloud = TokenCloud(TokenCloud.uniform(n, dim, rng).points, token_weights)
    return model, cloud, float(np.exp(rng.uniform(np.log(0.01), np.log(5))))


def check(model, cloud, step):
    """Run a step and refute, by brute force, what its certificate claims."""
    result = proximal_step(model, cloud, 0, step)
    claimed = result.certificate
    found, size = brute_force_gap(model, cloud, result, nodes_of(cloud.dim))
    if claimed.optimality in ("proven", "searched"):
        assert found <= claimed.optimality_gap + 1e-12 * max(1, size)
    if claimed.optimality == "proven":
        assert claimed.proven_tokens == claimed.total_tokens
        assert claimed.optimality_gap <= 1e-12 * max(1, size)
        assert result.status.name in ("CONVERGED", "ROUNDING")
    if claimed.optimality == "failed":
        assert claimed.optimality_gap > 0
    return claimed.optimality, model.sign


class TestNoFalseProofs:
    def test_hundred_random_problems(self):
        seen = Counter(check(*random_case(seed)) for seed in range(100))
        proven = seen["proven", 1] + seen["proven", -1]
        assert min(seen["proven", 1], seen["proven", -1]) > 25
        assert proven >= 85

    def test_with_surveyed_constants(self, monkeypatch):
        """The cells that serve many tokens, made to serve few."""
        monkeypatch.setattr(certificate_module, "SURVEY_TOKENS", 0)
        seen = Counter(check(*random_case(seed)) for seed in range(200, 230))
        assert seen["proven", 1] > 0
        assert seen["proven", -1] > 0

    def test_with_the_local_proof_alone(self, monkeypatch):
        """Proofs that stop after the O(n) argument are true as well."""
        monkeypatch.setattr(
            certificate_module, "full_gap", lambda problems, at, coupling, known: known
        )
        monkeypatch.setattr("jko.steps.particles.full_gap", certificate_module.full_gap)
        seen = Counter()
        for seed in range(300, 340):
            model, cloud, step = random_case(seed)
            seen[check(model, cloud, step / 20)[0]] += 1
        assert seen["proven"] >= 8

    @pytest.mark.parametrize("dim", [4, 10])
    def test_high_dimension(self, dim):
        outcomes = Counter()
        for seed in range(12):
            model, cloud, step = random_case(400 + seed, dim)
            outcomes[check(model, cloud, step / 50)[0]] += 1
            outcomes[check(model, cloud, step)[0]] += 1
        assert outcomes["proven"] >= 4
        assert outcomes["searched"] >= 4


class TestWhatCountsAsAProof:
    def test_a_search_alone_never_does(self, monkeypatch, random_problem):
        """Without the two proofs the best that a certificate says is "searched"."""
        model, cloud = random_problem(0)

        def nothing(problems, at, value, tokens):
            none = np.zeros(tokens.size, dtype=bool)
            return BranchReport(
                gap=np.zeros(tokens.size),
                proven=none,
                candidates=np.repeat(at.points[tokens, None], 3, axis=1),
            )

        def no_local_proof(problems, at, value, bounds):
            return np.zeros(value.size), np.zeros(value.size, dtype=bool)

        assert proximal_step(model, cloud, 0, 0.1).certificate.optimality == "proven"
        monkeypatch.setattr(certificate_module, "branch_and_bound", nothing)
        monkeypatch.setattr(certificate_module, "local_proof", no_local_proof)
        found = proximal_step(model, cloud, 0, 0.1).certificate
        assert found.optimality == "searched"
        assert found.proven_tokens == 0

    @pytest.mark.parametrize("cost", ["midpoint", "geodesic"])
    def test_other_costs_are_searched(self, cost, random_problem):
        model, cloud = random_problem(0, size=0.1)
        assert proximal_step(model, cloud, 0, 1e-3).certificate.optimality == "proven"
        found = proximal_step(model, cloud, 0, 1e-3, cost).certificate
        assert found.optimality == "searched"

    def test_splitting_plans_are_never_proven(self):
        seen = 0
        for seed in range(12):
            rng = np.random.default_rng(seed)
            model = AttentionModel(Heads.gaussian(2, 3, rng), -1)
            cloud = TokenCloud(TokenCloud.uniform(6, 3, rng).points, rng.dirichlet(np.ones(6)))
            result = proximal_step(model, cloud, 0, 1.0)
            if result.plan.nnz > 6:
                seen += 1
                assert result.certificate.optimality in ("searched", "failed")
        assert seen > 0

    def test_high_dimension_rests_on_the_local_proof(self, monkeypatch):
        model, cloud, step = random_case(401, 5)
        small = step / 500
        assert proximal_step(model, cloud, 0, small).certificate.optimality == "proven"

        def no_local_proof(problems, at, value, bounds):
            return np.zeros(value.size), np.zeros(value.size, dtype=bool)

        monkeypatch.setattr(certificate_module, "local_proof", no_local_proof)
        assert proximal_step(model, cloud, 0, small).certificate.optimality == "searched"

    @pytest.mark.parametrize("dim", [2, 3])
    def test_the_radius_condition_is_enforced(self, dim, monkeypatch):
        """However weak the concavity, nothing is proven beyond the radius of convexity."""
        seen = []
        plain = certificate_module.local_proof

        def spy(problems, at, value, bounds):
            flat = replace(bounds, concavity=-1e9)
            gap, proven = plain(problems, at, value, flat)
            low = replace(flat, lower=-1e6, lipschitz=1e6)
            seen.append((proven.all(), plain(problems, at, value, low)[1].any()))
            return gap, proven

        monkeypatch.setattr(certificate_module, "local_proof", spy)
        model, cloud, _ = random_case(3, dim)
        proximal_step(model, cloud, 0, 1e-3, certify="local")
        assert seen[0] == (True, False)

    def test_the_convexity_flag(self):
        psd, cloud = Heads(np.eye(3)), TokenCloud.uniform(5, 3, 0)
        indefinite = Heads([np.eye(3), np.diag([1.0, 1, -0.1])], [0.5, 0.5])
        ignored = Heads(indefinite.matrices, [1, 0])
        zero = Heads(np.zeros((1, 3, 3)))
        cases = [(psd, 1, True), (psd, -1, False), (indefinite, 1, False), (ignored, 1, True)]
        for heads, sign, convex in [*cases, (zero, 1, True), (zero, -1, True)]:
            result = proximal_step(AttentionModel(heads, sign), cloud, 0, 0.1)
            assert result.certificate.convex is convex


class TestConvexProblems:
    @pytest.mark.parametrize("step", [0.05, 0.2])
    def test_the_gap_is_closed(self, step, convex_problem):
        for seed in range(8):
            model, cloud = convex_problem(seed)
            certificate = proximal_step(model, cloud, 0, step).certificate
            assert certificate.optimality == "proven"
            assert certificate.optimality_gap < 1e-12
            assert certificate.convex

    def test_large_steps_end_proven_or_name_the_gap(self, convex_problem):
        for seed, step in ((0, 0.3), (9, 0.5), (2, 1.0), (10, 1.0), (5, 5.0)):
            model, cloud = convex_problem(seed)
            result = proximal_step(model, cloud, 0, step)
            if result.certificate.optimality == "proven":
                assert result.certificate.optimality_gap < 1e-12
            else:
                assert result.status.name == "SPLIT"
                assert 0 < result.certificate.optimality_gap < 1e-3

    def test_the_gap_bounds_the_distance_to_the_minimum(self, convex_problem):
        """Stopped early, a step is at most its gap above the converged one."""
        bounded = 0
        for seed in range(6):
            model, cloud = convex_problem(seed, 20)
            best = proximal_step(model, cloud, 0, 0.1)
            assert best.certificate.optimality == "proven"
            for limit in (3, 4, 5, 6):
                early = proximal_step(model, cloud, 0, 0.1, max_evaluations=limit)
                excess = early.objective - best.objective
                if early.certificate.optimality == "proven":
                    assert excess <= early.certificate.optimality_gap + 1e-14
                    bounded += early.certificate.optimality_gap > 1e-14
        assert bounded > 0


def test_strong_heads_converge():
    """Two heads 2.5 (Z + Z^T)/2, 40 tokens, step 0.1: the plain fixed point diverges here."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        cloud = TokenCloud.uniform(40, 3, rng)
        z = rng.standard_normal((2, 3, 3))
        model = AttentionModel(Heads(2.5 * (z + z.transpose(0, 2, 1)) / 2))
        result = proximal_step(model, cloud, 0, 0.1, tolerance=1e-8)
        assert result.certificate.gradient_norm <= 1e-8
        assert result.objective < result.energy_before
        assert result.status.name == "CONVERGED"


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(2, 5))
def test_steps_below_the_guaranteed_advice_are_proven(seed, dim):
    model, cloud, _ = random_case(seed, dim)
    advice = step_advice(model, cloud, 0.0)
    assert advice.tightened >= advice.guaranteed > 0
    result = proximal_step(model, cloud, 0, 0.999 * advice.guaranteed, certify="local")
    assert result.certificate.optimality == "proven"


def test_advice_for_heads_that_vanish():
    advice = step_advice(AttentionModel(Heads(np.zeros((1, 3, 3)))), TokenCloud.uniform(4, 3, 0), 0)
    assert advice.guaranteed == advice.tightened == np.inf
    assert advice.gain == 1
