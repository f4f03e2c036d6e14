"""Direct particle flows: methods, times, kinks, integrals, early ends."""

from __future__ import annotations

import numpy as np
import pytest
from jko import AttentionModel, Heads, TokenCloud, particle_flow, weights
from jko.problems import reference_case
from jko.runs.curve import CurveStatus
from jko.runs.flow import ADAPTIVE, INTEGRALS


@pytest.fixture
def model():
    return AttentionModel(weights.Oscillating(Heads.gaussian(2, 3, 0)))


@pytest.fixture
def cloud():
    return TokenCloud.uniform(5, 3, 1)


@pytest.mark.parametrize("velocity", ["gradient", "softmax"])
def test_the_curve_solves_the_equation(velocity, model, cloud):
    h = 1e-4
    curve = particle_flow(
        model, cloud, (0, 1), velocity, rtol=1e-12, t_eval=[0.5 - h, 0.5, 0.5 + h]
    )
    slope = (curve.points[2] - curve.points[0]) / (2 * h)
    np.testing.assert_allclose(slope, model.velocity(curve.cloud(1), 0.5, velocity), atol=1e-6)
    assert (curve.kind, curve.scheme) == ("flow", velocity)


@pytest.mark.parametrize(("method", "order"), [("euler", 1), ("heun", 2), ("rk4", 4)])
@pytest.mark.parametrize("velocity", ["gradient", "softmax"])
def test_orders_of_the_fixed_step_methods(method, order, velocity):
    case = reference_case("circle_two_heads")
    errors, steps = [], np.array([1 / 8, 1 / 16, 1 / 32])
    for step in steps:
        curve = particle_flow(case.model, case.cloud, (0, 1), velocity, method, step=step)
        errors.append(np.abs(curve.final.points - case.known[f"flow_{velocity}_T"]).max())
        assert curve.times.size == round(1 / step) + 1
    slope = np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert slope == pytest.approx(order, abs=0.15)


@pytest.mark.parametrize("method", ADAPTIVE)
def test_adaptive_methods_agree(method):
    case = reference_case("circle_two_heads")
    curve = particle_flow(case.model, case.cloud, (0, 0.5), method=method, rtol=1e-7)
    exact = particle_flow(case.model, case.cloud, (0, 0.5), rtol=1e-11)
    np.testing.assert_allclose(curve.final.points, exact.final.points, atol=1e-4)
    assert curve.times[-1] == 0.5


@pytest.mark.parametrize("arguments", [{}, {"method": "LSODA"}, {"method": "rk4", "step": 0.005}])
@pytest.mark.parametrize(
    "times", [[0.3], [0, 0.1, 0.35, 1], [1 / 3, 0.5], [1.0], [0.0], [0.1 + 0.2]]
)
def test_kept_times_are_met_exactly(arguments, times, model, cloud):
    curve = particle_flow(model, cloud, (0, 1), t_eval=times, rtol=1e-9, **arguments)
    assert curve.times.tolist() == times
    assert curve.success
    for k, t in enumerate(times):
        if t == 0:
            np.testing.assert_array_equal(curve.points[k], cloud.points)
            continue
        direct = particle_flow(model, cloud, (0, t), rtol=1e-11)
        np.testing.assert_allclose(curve.points[k], direct.final.points, atol=5e-6)
        assert curve.energy[k] == pytest.approx(model.energy(curve.cloud(k), t), rel=1e-13)


def test_without_kept_times_every_step_is_kept(model, cloud):
    curve = particle_flow(model, cloud, (0, 1), rtol=1e-8)
    assert curve.times[0] == 0
    assert curve.times[-1] == 1
    assert (np.diff(curve.times) > 0).all()
    assert curve.evaluations > curve.times.size
    fixed = particle_flow(model, cloud, (0, 0.35), method="heun", step=0.1)
    np.testing.assert_allclose(fixed.times, [0, 0.1, 0.2, 0.3, 0.35], atol=1e-15)


@pytest.mark.parametrize("arguments", [{}, {"method": "euler", "step": 0.1}])
@pytest.mark.parametrize("kept", [None, [0.4]])
def test_an_empty_span(arguments, kept, model, cloud):
    curve = particle_flow(model, cloud, (0.4, 0.4), t_eval=kept, **arguments)
    assert curve.times.tolist() == [0.4]
    np.testing.assert_array_equal(curve.points[0], cloud.points)
    assert curve.success


class TestKinks:
    """Piecewise linear paths: the integrator restarts at every kink."""

    times = (0.0, 0.31, 0.37, 1.0)

    def path(self):
        return weights.Interpolated(
            self.times, np.stack([Heads.gaussian(2, 3, seed).matrices / 2 for seed in range(4)])
        )

    def test_a_kinked_path_is_as_accurate_as_its_pieces(self, cloud):
        model = AttentionModel(self.path())
        whole = particle_flow(model, cloud, (0, 1), rtol=1e-11)
        state = cloud
        for left, right in zip(self.times[:-1], self.times[1:], strict=True):
            state = particle_flow(model, state, (left, right), rtol=1e-12).final
        np.testing.assert_allclose(whole.final.points, state.points, atol=1e-9)
        assert set(self.times) <= set(whole.times.tolist())

    @pytest.mark.parametrize("method", ADAPTIVE)
    def test_every_method_passes_kinks(self, method, cloud):
        model = AttentionModel(self.path())
        curve = particle_flow(
            model, cloud, (0.1, 1), method=method, rtol=1e-6, t_eval=[0.31, 0.36, 1]
        )
        assert curve.times.tolist() == [0.31, 0.36, 1]
        exact = particle_flow(model, cloud, (0.1, 1), rtol=1e-11)
        np.testing.assert_allclose(curve.final.points, exact.final.points, atol=1e-3)

    def test_the_energy_balance_closes_across_kinks(self, cloud):
        curve = particle_flow(AttentionModel(self.path()), cloud, (0, 1), rtol=1e-11)
        last = {name: values[-1] for name, values in curve.integrals.items()}
        change = curve.energy[-1] - curve.energy[0]
        assert change == pytest.approx(
            last["energy_time_derivative"] - last["slope_squared"], abs=1e-8
        )


class TestIntegrals:
    def test_they_start_at_zero_and_grow(self, model, cloud):
        curve = particle_flow(model, cloud, (0, 1), "softmax", rtol=1e-9)
        assert set(curve.integrals) == set(INTEGRALS)
        for name, values in curve.integrals.items():
            assert values.shape == curve.times.shape
            assert values[0] == 0
            if name != "energy_time_derivative":
                assert (np.diff(values) > 0).all()

    @pytest.mark.parametrize("velocity", ["gradient", "softmax"])
    @pytest.mark.parametrize("sign", [1, -1])
    def test_the_balance_closes(self, velocity, sign, cloud):
        heads = Heads(Heads.gaussian(3, 3, 0).matrices / 2, [0.2, 0.3, 0.5])
        model = AttentionModel(weights.Oscillating(heads), sign)
        weighted = TokenCloud(cloud.points, np.arange(5) / 10)
        curve = particle_flow(model, weighted, (0.2, 1), velocity, rtol=1e-11)
        i = curve.integrals
        change = curve.energy - curve.energy[0]
        halves = (i["metric_speed_squared"] + i["slope_squared"]) / 2
        balance = i["energy_time_derivative"] - halves + i["defect"]
        np.testing.assert_allclose(change, balance, atol=1e-8 * np.abs(curve.energy).max())
        if velocity == "gradient":
            assert not i["defect"].any()


def test_test_particles_are_carried_along(model, cloud):
    points = np.vstack([cloud.points, cloud.points[2]])
    mixed = TokenCloud(points, np.r_[cloud.weights, 0])
    curve = particle_flow(model, mixed, (0, 1), rtol=1e-10)
    plain = particle_flow(model, cloud, (0, 1), rtol=1e-10)
    np.testing.assert_allclose(curve.final.points[:-1], plain.final.points, atol=1e-8)
    np.testing.assert_allclose(curve.final.points[-1], curve.final.points[2], atol=1e-12)


def test_points_stay_on_the_sphere(model, cloud):
    curve = particle_flow(model, cloud, (0, 5), method="euler", step=0.25)
    assert np.abs(np.linalg.norm(curve.points, axis=2) - 1).max() < 1e-15


class Interrupting:
    def __init__(self, at):
        self.at, self.count = at, 0

    def snapshot(self, snapshot):
        pass

    def progress(self, time):
        self.count += 1
        if self.count == self.at:
            raise KeyboardInterrupt


class TestEarlyEnds:
    @pytest.mark.parametrize("arguments", [{}, {"method": "rk4", "step": 0.1}])
    def test_interrupted(self, arguments, model, cloud):
        full = particle_flow(model, cloud, (0, 1), **arguments)
        curve = particle_flow(model, cloud, (0, 1), **arguments, monitor=Interrupting(3))
        assert curve.status is CurveStatus.INTERRUPTED
        assert not curve.success
        np.testing.assert_array_equal(curve.points, full.points[:4])
        np.testing.assert_array_equal(
            curve.integrals["slope_squared"], full.integrals["slope_squared"][:4]
        )

    def test_an_overflow_on_the_way(self, cloud):
        path = weights.FromFunction(lambda t: np.eye(3) * (1 if t < 0.5 else 2000))
        curve = particle_flow(AttentionModel(path), cloud, (0, 1), method="heun", step=0.125)
        assert curve.status is CurveStatus.INTEGRATOR_FAILED
        assert "overflows double precision" in curve.message
        assert 0 < curve.times[-1] < 0.5

    def test_a_solver_that_gives_up(self, model, cloud, monkeypatch):
        class Failing(ADAPTIVE["RK45"]):
            def step(self):
                if self.t > 0.05:
                    self.status = "failed"
                    return "Required step size is less than spacing between numbers."
                return super().step()

        monkeypatch.setitem(ADAPTIVE, "RK45", Failing)
        curve = particle_flow(model, cloud, (0, 1), method="RK45", max_step=0.02)
        assert curve.status is CurveStatus.INTEGRATOR_FAILED
        assert 0.05 < curve.times[-1] < 0.08
        assert "Required step size is less than spacing" in curve.message

    def test_a_span_beyond_the_path(self, cloud):
        path = weights.OrnsteinUhlenbeck(Heads.gaussian(1, 3, 0), horizon=0.25, rng=0)
        with pytest.raises(ValueError, match=r"t must lie in \[0\.0, 0\.25\], the domain"):
            particle_flow(AttentionModel(path), cloud, (0, 0.5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"velocity": "x"}, "velocity must be one of 'gradient', 'softmax', got 'x'"),
        ({"method": "x"}, "method must be one of 'DOP853'"),
        ({"method": "rk4"}, "step must be given for the fixed-step method 'rk4'"),
        ({"step": 0.1}, "step must be None for the adaptive method 'DOP853'"),
        ({"method": "rk4", "step": -0.1}, r"step must be positive, got -0\.1"),
        ({"method": "rk4", "step": np.nan}, "step must be finite, got nan"),
        ({"rtol": 0}, "rtol must be positive, got 0"),
        ({"rtol": np.nan}, "rtol must be finite, got nan"),
        ({"rtol": 1e-15}, "rtol must be at least"),
        ({"atol": -1.0}, "atol must be positive"),
        ({"max_step": -1.0}, "max_step must be positive"),
        ({"max_step": np.nan}, "max_step must be finite"),
        ({"t_eval": []}, "t_eval must be increasing and not empty"),
        ({"t_eval": [0.5, 0.2]}, "t_eval must be increasing"),
        ({"t_eval": [0.5, 0.5]}, "t_eval must be increasing"),
        ({"t_eval": [0.5, 1.5]}, r"t_eval must lie in \[0\.0, 1\.0\], got 0\.5 \.\. 1\.5"),
        ({"t_eval": [-0.5]}, r"t_eval must lie in"),
        ({"t_eval": [np.nan]}, r"t_eval must be finite, got t_eval\[0\] = nan"),
        ({"t_eval": [[0.5]]}, "t_eval must have 1 axes"),
        ({"t_span": (1, 0)}, "t_span must not run backwards"),
        ({"t_span": (0, np.inf)}, r"t_span\[1\] must be finite"),
    ],
)
def test_arguments_are_checked_before_any_work(arguments, message, model, cloud):
    class Nothing:
        def snapshot(self, snapshot):
            raise AssertionError("work was done")

        progress = snapshot

    with pytest.raises(ValueError, match=message):
        particle_flow(model, cloud, **{"t_span": (0, 1), **arguments}, monitor=Nothing())
