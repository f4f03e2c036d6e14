"""The reference problems: every known answer at its tolerance."""

from __future__ import annotations

import numpy as np
import pytest
from jko import particle_flow, proximal_step, sphere
from jko.problems import REFERENCE_CASES, article_sphere, reference_case

FIELDS = {
    "mobility_0": lambda m, c: m.effective_mobility(c.points, c, 0),
    "gradient_0": lambda m, c: m.gradient(c.points, c, 0),
    "velocity_gradient_0": lambda m, c: m.velocity(c, 0),
    "velocity_softmax_0": lambda m, c: m.velocity(c, 0, "softmax"),
    "energy_0": lambda m, c: m.energy(c, 0),
    "energy_time_derivative_0": lambda m, c: m.energy_time_derivative(c, 0),
    "slope_squared_0": lambda m, c: m.slope_squared(c, 0),
    "defect_rate_0": lambda m, c: m.defect_rate(c, 0),
    "paper_slope_squared_0": lambda m, c: m.metric_speed_squared(c, 0, "softmax"),
}


@pytest.fixture(params=REFERENCE_CASES)
def case(request):
    return reference_case(request.param)


@pytest.mark.parametrize("name", FIELDS)
def test_fields(case, name):
    value = FIELDS[name](case.model, case.cloud)
    np.testing.assert_allclose(value, case.known[name], rtol=0, atol=1e-12)


@pytest.fixture(scope="module")
def flow():
    """Flows of a case at 0, T/2 and T, computed once."""
    done = {}

    def get(case, velocity):
        key = case.name, velocity
        if key not in done:
            times = [0, case.horizon / 2, case.horizon]
            done[key] = particle_flow(
                case.model, case.cloud, (0, case.horizon), velocity, rtol=1e-10, t_eval=times
            )
        return done[key]

    return get


@pytest.mark.parametrize("velocity", ["gradient", "softmax"])
def test_flows(case, velocity, flow):
    curve, known = flow(case, velocity), case.known
    assert curve.success
    np.testing.assert_allclose(curve.points[2], known[f"flow_{velocity}_T"], atol=1e-8)
    assert curve.energy[0] == pytest.approx(known["energy_0"], abs=1e-12)
    assert curve.energy[1] == pytest.approx(known[f"energy_half_{velocity}"], abs=1e-8)
    assert curve.energy[2] == pytest.approx(known[f"energy_{velocity}_T"], abs=1e-8)


def test_integrals_along_the_flows(case, flow):
    known = {key: float(value) for key, value in case.known.items() if key.startswith("int_")}
    gradient, softmax = flow(case, "gradient"), flow(case, "softmax")
    last = {key: value[-1] for key, value in gradient.integrals.items()}
    rate = "energy_time_derivative"
    assert last["slope_squared"] == pytest.approx(known["int_slope_squared"], abs=1e-8)
    assert last["metric_speed_squared"] == pytest.approx(last["slope_squared"], abs=1e-12)
    assert last[rate] == pytest.approx(known["int_energy_time_derivative_gradient"], abs=1e-8)
    assert last["defect"] == 0
    change = gradient.energy[-1] - gradient.energy[0]
    assert change == pytest.approx(last[rate] - last["slope_squared"], abs=1e-8)
    last = {key: value[-1] for key, value in softmax.integrals.items()}
    assert last["defect"] == pytest.approx(known["int_defect_rate_softmax"], abs=1e-8)
    assert last[rate] == pytest.approx(known["int_energy_time_derivative_softmax"], abs=1e-8)
    # energy change = time derivative - (speed + slope) / 2 + defect, exactly
    change = softmax.energy[-1] - softmax.energy[0]
    halves = (last["metric_speed_squared"] + last["slope_squared"]) / 2
    assert change == pytest.approx(last[rate] - halves + last["defect"], abs=1e-8)


def test_proximal_step(case):
    known = case.known
    result = proximal_step(case.model, case.cloud, 0, case.step)
    assert result.objective == pytest.approx(known["jko_objective"], abs=1e-10)
    assert sphere.distance(result.cloud.points, known["jko_points"]).max() < 1e-6
    assert result.distance_squared == pytest.approx(known["jko_distance_squared"], abs=1e-10)
    assert result.distance_squared == pytest.approx(known["jko_plan_cost"], abs=1e-10)
    assert result.status.name == "CONVERGED"
    assert result.certificate.optimality == "proven"
    assert result.certificate.optimality_gap < 1e-12
    assert result.energy_before >= result.objective
    assert result.time == 0
    assert result.energy_time == result.step == case.step


def test_names_are_checked():
    with pytest.raises(ValueError, match=r"name must be one of circle_two_heads, .*, got 'sphere'"):
        reference_case("sphere")


def test_the_article_problem_is_reproducible():
    first, second = article_sphere(20, 2, 0.1, 3), article_sphere(20, 2, 0.1, 3)
    np.testing.assert_array_equal(first.cloud.points, second.cloud.points)
    for t in (0, 0.05, 0.1):
        np.testing.assert_array_equal(first.model.path(t).matrices, second.model.path(t).matrices)
    assert first.model.path.variance == 2
