"""Minimizing movements: time grids, early ends, and convergence to the gradient flow."""

from __future__ import annotations

import numpy as np
import pytest
from jko import (
    AttentionModel,
    Heads,
    TokenCloud,
    minimizing_movement,
    proximal_step,
    sphere,
    wasserstein,
    weights,
)
from jko.problems import reference_case
from jko.runs.curve import CurveStatus
from jko.steps.result import StepError
from jko.transport.distance import labelled_distance
from jko.transport.plan import PlanError


@pytest.fixture
def model():
    return AttentionModel(weights.Oscillating(Heads.gaussian(2, 3, 0)))


@pytest.fixture
def cloud():
    return TokenCloud.uniform(8, 3, 1)


class Watch:
    """A monitor that notes what it is told, and can interrupt."""

    def __init__(self, interrupt_at=None, where="snapshot"):
        self.snapshots, self.times = [], []
        self.interrupt_at, self.where = interrupt_at, where

    def snapshot(self, snapshot):
        self.snapshots.append(snapshot)
        if self.where == "snapshot" and len(self.snapshots) == self.interrupt_at:
            raise KeyboardInterrupt

    def progress(self, time):
        self.times.append(time)
        if self.where == "progress" and len(self.times) == self.interrupt_at:
            raise KeyboardInterrupt


class TestTimeGrid:
    @pytest.mark.parametrize(
        ("span", "step", "times"),
        [
            ((0, 0.3), 0.1, [0, 0.1, 0.2, 0.3]),
            ((0, 0.35), 0.1, [0, 0.1, 0.2, 0.3, 0.35]),
            ((1.0, 1.25), 10.0, [1.0, 1.25]),
            ((-0.5, 0.5), 0.5, [-0.5, 0, 0.5]),
            ((0.7, 0.7), 0.1, [0.7]),
            ((0, 0.1 + 1e-14), 0.1, [0, 0.1]),
        ],
    )
    def test_times(self, span, step, times, model, cloud):
        curve = minimizing_movement(model, cloud, span, step)
        np.testing.assert_allclose(curve.times, times, rtol=0, atol=1e-12)
        assert curve.times[-1] == span[1]
        assert curve.success
        assert curve.status is CurveStatus.COMPLETE
        assert len(curve.steps) == len(times) - 1
        assert curve.points.shape == (len(times), 8, 3)
        for record, start, end in zip(curve.steps, curve.times[:-1], curve.times[1:], strict=True):
            assert record.time == start
            assert record.energy_time == end
            assert record.step == pytest.approx(end - start, rel=1e-12)

    def test_a_shortened_step_is_the_step_of_that_length(self, model, cloud):
        curve = minimizing_movement(model, cloud, (0, 0.15), 0.1)
        last = proximal_step(model, curve.cloud(1), 0.1, 0.05, energy_time=0.15)
        np.testing.assert_allclose(curve.points[2], last.cloud.points, atol=1e-9)

    @pytest.mark.parametrize(
        ("span", "step", "error", "message"),
        [
            ((0, 1), 0, ValueError, "step must be positive, got 0"),
            ((0, 1), -1, ValueError, "step must be positive, got -1"),
            ((0, 1), np.nan, ValueError, "step must be finite, got nan"),
            ((0, 1), "a", TypeError, "step must be a real number, got 'a'"),
            ((1, 0), 0.1, ValueError, r"t_span must not run backwards, got \(1\.0, 0\.0\)"),
            ((0, np.nan), 0.1, ValueError, r"t_span\[1\] must be finite, got nan"),
            (1.0, 0.1, ValueError, r"t_span must be a pair \(start, end\), got 1\.0"),
            ((0, 1, 2), 0.1, ValueError, "t_span must be a pair"),
        ],
    )
    def test_bad_spans_and_steps(self, span, step, error, message, model, cloud):
        with pytest.raises(error, match=message):
            minimizing_movement(model, cloud, span, step)

    @pytest.mark.parametrize(
        ("name", "value"),
        [("scheme", "euler"), ("cost", "x"), ("certify", "x"), ("tolerance", 0), ("solver", "x")],
    )
    def test_bad_options_are_errors_before_any_step(self, name, value, model, cloud):
        watch = Watch()
        with pytest.raises(ValueError, match=f"{name} must be"):
            minimizing_movement(model, cloud, (0, 1), 0.1, **{name: value}, monitor=watch)
        assert not watch.snapshots


class TestCurve:
    def test_it_is_the_iteration_of_the_step(self, model, cloud):
        curve = minimizing_movement(model, cloud, (0, 0.3), 0.1, cost="midpoint")
        assert (curve.kind, curve.scheme, curve.cost) == ("movement", "jko", "midpoint")
        state = cloud
        np.testing.assert_array_equal(curve.points[0], cloud.points)
        for k, record in enumerate(curve.steps):
            t, end = curve.times[k : k + 2]
            result = proximal_step(model, state, t, end - t, "midpoint", energy_time=end)
            np.testing.assert_allclose(curve.points[k + 1], result.cloud.points, atol=1e-10)
            assert record.objective == pytest.approx(result.objective, rel=1e-12)
            assert curve.energy[k + 1] == pytest.approx(model.energy(result.cloud, end), rel=1e-12)
            assert record.energy_before == pytest.approx(model.energy(state, end), rel=1e-12)
            assert record.objective <= record.energy_before
            state = result.cloud
        assert curve.energy[0] == model.energy(cloud, 0)

    def test_frozen_heads_lower_the_energy_in_every_step(self, cloud):
        for sign in (1, -1):
            model = AttentionModel(Heads.gaussian(3, 3, 2), sign)
            curve = minimizing_movement(model, cloud, (0, 1), 0.2)
            change = np.diff(curve.energy)
            assert change[0] < 0
            # the attractive one collapses on the way, after which nothing is left to gain
            assert (change <= 1e-14 * np.abs(curve.energy[1:])).all()

    def test_it_stays_on_the_sphere_and_keeps_its_weights(self, model):
        cloud = TokenCloud(TokenCloud.uniform(6, 3, 1).points, np.arange(6) / 15)
        curve = minimizing_movement(model, cloud, (0, 2), 0.25)
        assert np.abs(np.linalg.norm(curve.points, axis=2) - 1).max() < 1e-15
        np.testing.assert_array_equal(curve.weights, np.tile(cloud.weights, (9, 1)))

    def test_interpolation_in_time(self, model, cloud):
        curve = minimizing_movement(model, cloud, (0, 0.2), 0.1)
        for k, t in enumerate(curve.times):
            np.testing.assert_array_equal(curve.at(t).points, curve.points[k])
        middle = sphere.midpoint(curve.points[0], curve.points[1])
        np.testing.assert_allclose(curve.at(0.05).points, middle, atol=1e-14)
        np.testing.assert_array_equal(curve.final.points, curve.points[-1])
        with pytest.raises(ValueError, match=r"t must lie in \[0\.0, 0\.2\], got 0\.3"):
            curve.at(0.3)
        assert repr(curve) == (
            "Curve(jko movement, t = 0 .. 0.2, 2 intervals, n = 8, d = 3, complete)"
        )

    def test_the_monitor_sees_every_state_once(self, model, cloud):
        watch = Watch()
        curve = minimizing_movement(model, cloud, (0, 0.3), 0.1, monitor=watch)
        assert [s.time for s in watch.snapshots] == curve.times.tolist()
        np.testing.assert_array_equal([s.points for s in watch.snapshots], curve.points)
        assert watch.times == curve.times[1:].tolist()
        assert watch.snapshots[0].record is None
        assert [s.record for s in watch.snapshots[1:]] == list(curve.steps)


class TestEarlyEnds:
    """What was done is kept, and the reason is said."""

    @pytest.mark.parametrize(
        ("where", "at", "kept"), [("snapshot", 1, 1), ("snapshot", 3, 3), ("progress", 2, 3)]
    )
    def test_an_interrupt_keeps_what_is_done(self, where, at, kept, model, cloud):
        full = minimizing_movement(model, cloud, (0, 0.5), 0.1)
        try:
            watch = Watch(at, where)
            curve = minimizing_movement(model, cloud, (0, 0.5), 0.1, monitor=watch)
        except KeyboardInterrupt:
            pytest.fail("the interrupt escaped")
        assert curve.status is CurveStatus.INTERRUPTED
        assert not curve.success
        assert "interrupted" in curve.message
        np.testing.assert_array_equal(curve.points, full.points[:kept])
        assert len(curve.steps) == kept - 1

    @pytest.mark.parametrize("error", [StepError, PlanError])
    def test_a_failing_step(self, error, model, cloud, monkeypatch):
        from jko.steps import proximal

        plain, calls = proximal.solve_tokens, []

        def failing(*args, **kwargs):
            calls.append(1)
            if len(calls) == 3:
                raise error("the third step fails")
            return plain(*args, **kwargs)

        monkeypatch.setattr(proximal, "solve_tokens", failing)
        curve = minimizing_movement(model, cloud, (0, 0.5), 0.1)
        assert curve.status is CurveStatus.STEP_FAILED
        assert not curve.success
        np.testing.assert_allclose(curve.times, [0, 0.1, 0.2])
        assert curve.message.endswith("the third step fails")

    def test_heads_that_grow_until_the_energy_overflows(self, cloud):
        path = weights.FromFunction(lambda t: np.eye(3) * (1 if t < 0.25 else 2000))
        curve = minimizing_movement(AttentionModel(path), cloud, (0, 0.5), 0.1)
        assert curve.status is CurveStatus.STEP_FAILED
        np.testing.assert_allclose(curve.times, [0, 0.1, 0.2])
        assert "overflows double precision" in curve.message

    def test_steps_that_do_not_converge_are_said(self, model, cloud):
        curve = minimizing_movement(model, cloud, (0, 0.2), 0.1, max_evaluations=2)
        assert curve.status is CurveStatus.UNCONVERGED
        assert not curve.success
        assert "step 0 (the step ran out of evaluations" in curve.message
        assert curve.times[-1] == 0.2

    def test_a_span_beyond_the_path_is_an_error_before_any_step(self, cloud):
        path = weights.OrnsteinUhlenbeck(Heads.gaussian(1, 3, 0), horizon=0.25, rng=0)
        watch = Watch()
        with pytest.raises(ValueError, match=r"t must lie in \[0\.0, 0\.25\], the domain"):
            minimizing_movement(AttentionModel(path), cloud, (0, 0.5), 0.1, monitor=watch)
        assert len(watch.snapshots) <= 1


STEPS = (1 / 10, 1 / 20, 1 / 40, 1 / 80, 1 / 160)


@pytest.fixture(scope="module")
def movements():
    """Final clouds of the movements of a case for a list of steps, computed once."""
    done = {}

    def get(name, steps=STEPS):
        case = reference_case(name)
        for step in steps:
            if (name, step) not in done:
                curve = minimizing_movement(
                    case.model, case.cloud, (0, case.horizon), step, certify="local"
                )
                assert curve.success
                done[name, step] = curve.final
        return case, [done[name, step] for step in steps]

    return get


@pytest.mark.parametrize("name", ["sphere_one_head", "sphere_three_heads"])
def test_order_one_against_the_gradient_flow(name, movements):
    case, finals = movements(name)
    exact, a = case.known["flow_gradient_T"], case.cloud.weights
    errors = [labelled_distance(cloud.points, exact, a) for cloud in finals]
    slope = np.polyfit(np.log(STEPS), np.log(errors), 1)[0]
    assert slope == pytest.approx(1, abs=0.05)
    local = np.log2(np.divide(errors[:-1], errors[1:]))
    np.testing.assert_allclose(local, 1, atol=0.05)
    assert errors[-1] < 1.2e-3
    flow = TokenCloud(exact, a)
    np.testing.assert_allclose([wasserstein(cloud, flow) for cloud in finals], errors, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "limit"), [("sphere_three_heads", 0.1228), ("sphere_weighted", 0.1360)]
)
def test_distance_to_the_softmax_flow_tends_to_that_between_the_flows(name, limit, movements):
    case, finals = movements(name, STEPS[-2:])
    flows = [
        TokenCloud(case.known[f"flow_{v}_T"], case.cloud.weights) for v in ("gradient", "softmax")
    ]
    between = wasserstein(*flows)
    assert between == pytest.approx(limit, abs=5e-5)
    coarse, fine = (wasserstein(cloud, flows[1]) for cloud in finals)
    # first order in the step: one extrapolation leaves the second-order term, measured 1.5e-5
    assert fine == pytest.approx(between, abs=1e-3)
    assert 2 * fine - coarse == pytest.approx(between, abs=5e-5)
