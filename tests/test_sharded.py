"""Tokens on the workers of a local cluster: the same numbers as in one process."""

from __future__ import annotations

import numpy as np
import pytest
from jko import AttentionModel, Heads, TokenCloud, proximal_step, sphere
from jko.attention import sharded
from jko.attention.sharded import ShardedCloud, sharded_fields, sharded_fields_at
from jko.problems import reference_case
from jko.steps import sharded as sharded_steps
from jko.steps.sharded import sharded_step

distributed = pytest.importorskip("distributed")

SAME = 1e-13


@pytest.fixture(scope="module")
def client():
    """Two workers in this process that talk through sockets: everything is serialised."""
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            protocol="tcp",
            dashboard_address=":0",
        ) as cluster,
        distributed.Client(cluster) as session,
    ):
        yield session


def case(n, heads, norm, dim=3, seed=0, weighted=True, spread=0.4):
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((heads, dim, dim))
    matrices = z + z.transpose(0, 2, 1)
    matrices *= norm / np.abs(np.linalg.eigvalsh(matrices)).max(axis=1)[:, None, None]
    points = TokenCloud.clustered(n, rng.standard_normal((3, dim)), spread, rng).points
    weights = rng.dirichlet(np.ones(n)) if weighted else None
    head_weights = rng.dirichlet(np.ones(heads))
    return AttentionModel(Heads(matrices, head_weights)), TokenCloud(points, weights)


def close(value, expected, scale=None):
    scale = np.abs(expected).max() if scale is None else scale
    assert np.abs(np.asarray(value) - expected).max() <= SAME * scale


@pytest.mark.parametrize(
    ("n", "heads", "norm", "dim"), [(901, 4, 3.0, 3), (700, 3, 5.0, 2), (60, 2, 2.0, 5)]
)
def test_the_same_numbers_as_one_process(client, n, heads, norm, dim):
    model, cloud = case(n, heads, norm, dim)
    own = model.own_fields(cloud, 0)
    parts = ShardedCloud.scatter(client, cloud)
    fields = sharded_fields(model, parts, 0)
    close(fields.velocity(), own.gradient_velocity)
    close(fields.velocity("softmax"), own.softmax_velocity)
    for value, name, extra in (
        (fields.energy, "energy", ()),
        (fields.slope_squared, "slope_squared", ()),
        (fields.defect_rate, "defect_rate", ()),
        (fields.metric_speed_squared("softmax"), "metric_speed_squared", ("softmax",)),
    ):
        close(value, getattr(own, name)(cloud.weights, *extra))


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_any_number_of_shards(client, shards):
    model, cloud = case(401, 2, 3.0)
    parts = ShardedCloud.scatter(client, cloud, shards)
    assert len(parts.shards) == shards
    assert parts.n == cloud.n
    assert repr(parts) == f"ShardedCloud(n=401, dim=3, shards={shards})"
    np.testing.assert_array_equal(parts.gather().points, cloud.points)
    np.testing.assert_array_equal(parts.gather().weights, cloud.weights)
    close(sharded_fields(model, parts, 0).velocity(), model.velocity(cloud, 0))


def test_tokens_stay_on_their_workers(client):
    model, cloud = case(400, 2, 3.0)
    parts = ShardedCloud.scatter(client, cloud)
    assert len(set(parts.workers)) == 2
    for _ in range(3):
        parts = sharded_fields(model, parts, 0).moved(0.05)
        cloud = TokenCloud(sphere.exp(cloud.points, 0.05 * model.velocity(cloud, 0)), cloud.weights)
    distributed.wait(parts.shards)
    where = client.who_has(list(parts.shards))
    for shard, worker in zip(parts.shards, parts.workers, strict=True):
        assert list(where[shard.key]) == [worker]
    close(parts.gather().points, cloud.points)


def test_values_that_miss_their_bound_are_summed_over_all_shards(client, monkeypatch):
    """Clustered tokens and one far away, where the mobility is e^-12 of its largest value."""
    rng = np.random.default_rng(3)
    points = TokenCloud.von_mises_fisher(600, [0, 0, 1], 200, rng).points.copy()
    points[[7, 550]] = [[0, 0, -1], [0, 1, 0]]
    cloud = TokenCloud(points)
    model = AttentionModel(Heads([np.diag([0.5, 0.5, 7.0]), np.diag([1.0, 2.0, 0.5])]))
    calls = []
    repaired = sharded._repaired
    monkeypatch.setattr(
        sharded, "_repaired", lambda *args: calls.append(args[3]) or repaired(*args)
    )
    fields = sharded_fields(model, ShardedCloud.scatter(client, cloud), 0)
    assert calls, "the case was meant to need dense sums"
    assert calls[0].tolist() == [True, False]
    expected = AttentionModel(model.path, evaluator="dense").own_fields(cloud, 0)
    # every token in units of its own velocity
    size = np.linalg.norm(expected.gradient_velocity, axis=1, keepdims=True)
    close(fields.velocity() / size, expected.gradient_velocity / size)
    close(fields.energy, expected.energy(cloud.weights))


def test_dense_models_are_summed_densely(client):
    model, cloud = case(90, 2, 3.0)
    dense = AttentionModel(model.path, evaluator="dense")
    fields = sharded_fields(dense, ShardedCloud.scatter(client, cloud), 0)
    close(fields.velocity(), dense.velocity(cloud, 0))


def test_refusals(client):
    model, cloud = case(50, 2, 3.0)
    parts = ShardedCloud.scatter(client, cloud)
    with pytest.raises(ValueError, match="cloud has dimension 3 but the heads have dimension 2"):
        sharded_fields(AttentionModel(Heads([np.eye(2)])), parts, 0)
    with pytest.raises(ValueError, match=r"shards must be at most the number of tokens 50, got 51"):
        ShardedCloud.scatter(client, cloud, 51)
    with pytest.raises(ValueError, match="shards must be at least 1, got 0"):
        ShardedCloud.scatter(client, cloud, 0)
    fields = sharded_fields(model, parts, 0)
    with pytest.raises(ValueError, match="kind must be one of"):
        fields.velocity("plain")
    with pytest.raises(ValueError, match="step must be finite, got nan"):
        fields.moved(np.nan)
    strong = AttentionModel(Heads([np.eye(3), 400 * np.eye(3)]))
    with pytest.raises(ValueError, match=r"heads.matrices\[1\] has norm 400, .* at most 300"):
        sharded_fields(strong, parts, 0)


def test_order_zero_has_no_velocity(client):
    model, cloud = case(50, 2, 3.0)
    fields = sharded_fields(model, ShardedCloud.scatter(client, cloud), 0, order=0)
    close(fields.energy, model.energy(cloud, 0))
    with pytest.raises(ValueError, match="evaluated at order 0"):
        fields.velocity()


def test_fields_at_points_of_this_process(client):
    model, cloud = case(601, 3, 3.0)
    at = sphere.fibonacci_nodes(150)
    parts = ShardedCloud.scatter(client, cloud)
    for evaluator in ("auto", "dense"):
        here = AttentionModel(model.path, evaluator=evaluator)
        fields = sharded_fields_at(here, parts, 0, at, 2)
        own = here.fields(at, cloud, 0, 2)
        close(fields.gradient_velocity, own.gradient_velocity)
        close(fields.first_variation_hessian(), own.first_variation_hessian())


class TestStep:
    @pytest.mark.parametrize(
        ("n", "heads", "norm", "dim", "step"),
        [(500, 4, 2.0, 3, 0.05), (300, 2, 1.5, 2, 0.02), (60, 2, 1.0, 5, 0.1), (40, 2, 1.0, 9, 0.1)],
    )
    def test_the_same_step_as_in_one_process(self, client, n, heads, norm, dim, step):
        model, cloud = case(n, heads, norm, dim)
        sharded_result = sharded_step(model, ShardedCloud.scatter(client, cloud), 0, step)
        result = proximal_step(model, cloud, 0, step, certify="local")
        close(sharded_result.cloud.gather().points, result.cloud.points)
        close(sharded_result.objective, result.objective)
        close(sharded_result.distance_squared, result.distance_squared, result.objective)
        close(sharded_result.energy_before, result.energy_before)
        close(sharded_result.energy, result.energy)
        assert sharded_result.status is result.status
        assert sharded_result.stats.iterations == result.stats.iterations
        assert sharded_result.stats.gradient_evaluations == result.stats.gradient_evaluations
        ours, theirs = sharded_result.certificate, result.certificate
        assert ours.optimality == theirs.optimality == "proven"
        assert ours.gradient_norm <= 1e-10
        assert ours.optimality_gap == pytest.approx(theirs.optimality_gap, rel=1e-2)
        assert (ours.convex, ours.total_tokens) == (theirs.convex, theirs.total_tokens)

    def test_moving_heads_and_the_energy_time(self, client):
        problem = reference_case("sphere_three_heads")
        parts = ShardedCloud.scatter(client, problem.cloud)
        for energy_time in (None, 0.3):
            result = sharded_step(problem.model, parts, 0.1, 0.05, energy_time)
            own = proximal_step(problem.model, problem.cloud, 0.1, 0.05, energy_time=energy_time)
            close(result.cloud.gather().points, own.cloud.points)

    def test_surveyed_constants_prove_more(self, client, monkeypatch):
        model, cloud = case(400, 2, 4.0)
        parts = ShardedCloud.scatter(client, cloud)
        plain = sharded_step(model, parts, 0, 0.05).certificate
        assert plain.optimality == "unchecked"
        assert plain.plan_gap == np.inf
        monkeypatch.setattr(sharded_steps, "SURVEY_TOKENS", 0)
        monkeypatch.setattr("jko.steps.certificate.SURVEY_TOKENS", 0)
        result = sharded_step(model, parts, 0, 0.05)
        own = proximal_step(model, cloud, 0, 0.05, certify="local")
        assert plain.proven_tokens < result.certificate.proven_tokens
        assert result.certificate.proven_tokens == own.certificate.proven_tokens
        assert result.stats.certificate_evaluations == 1

    def test_several_steps_stay_on_the_workers(self, client):
        model, cloud = case(300, 2, 2.0)
        parts = ShardedCloud.scatter(client, cloud)
        for _ in range(2):
            parts = sharded_step(model, parts, 0, 0.05).cloud
            cloud = proximal_step(model, cloud, 0, 0.05).cloud
        distributed.wait(parts.shards)
        where = client.who_has(list(parts.shards))
        for shard, worker in zip(parts.shards, parts.workers, strict=True):
            assert list(where[shard.key]) == [worker]
        close(parts.gather().points, cloud.points)

    def test_running_out_of_evaluations(self, client):
        model, cloud = case(100, 2, 2.0)
        parts = ShardedCloud.scatter(client, cloud)
        result = sharded_step(model, parts, 0, 0.05, max_evaluations=2)
        assert result.status.name == "MAX_EVALUATIONS"
        assert result.objective < result.energy_before

    def test_refusals(self, client):
        model, cloud = case(30, 2, 2.0)
        parts = ShardedCloud.scatter(client, cloud)
        with pytest.raises(ValueError, match="step must be positive, got 0"):
            sharded_step(model, parts, 0, 0)
        with pytest.raises(ValueError, match="max_evaluations must be at least 1"):
            sharded_step(model, parts, 0, 0.1, max_evaluations=0)
        test_particle = TokenCloud(cloud.points, np.r_[0.0, np.full(29, 1 / 29)])
        with pytest.raises(ValueError, match="cloud must have positive weights"):
            sharded_step(model, ShardedCloud.scatter(client, test_particle), 0, 0.1)
