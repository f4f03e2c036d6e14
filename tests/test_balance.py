"""Energy balances, their decomposition for sampled heads, and the metric derivative."""

import numpy as np
import pytest
from jko import (
    AttentionModel,
    Heads,
    TokenCloud,
    energy_balance,
    metric_derivative,
    minimizing_movement,
    particle_flow,
    proximal_step,
    weights,
)
from jko.diagnostics import balance as balance_module
from jko.diagnostics.balance import de_giorgi_integral
from jko.diagnostics.ito import ito_balance
from jko.problems import REFERENCE_CASES, reference_case
from jko.steps.particles import solve_tokens


@pytest.mark.parametrize("name", REFERENCE_CASES)
def test_de_giorgi_integral_of_the_reference_cases(name):
    case = reference_case(name)
    result = proximal_step(case.model, case.cloud, 0, case.step)
    value = de_giorgi_integral(case.model, case.cloud, result)
    assert value == pytest.approx(float(case.known["de_giorgi_integral"]), abs=1e-12)
    assert result.energy_before - result.objective == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("step", [0.02, 0.1, 0.4])
def test_the_discrete_identity_closes_at_any_step(step):
    path = weights.Oscillating(Heads.gaussian(3, 3, 0))
    cloud = TokenCloud.octahedral(12, 0.05, 0)
    curve = minimizing_movement(AttentionModel(path), cloud, (0, 6 * step), step)
    balance = energy_balance(curve)
    assert balance.relative_closure < 1e-10
    assert np.all(balance.terms["defect"] == 0)
    # leaving one half of the dissipation out would show
    assert balance.terms["slope"][-1] > 1e3 * abs(balance.closure[-1])


@pytest.mark.parametrize("name", ["sphere_three_heads", "sphere_weighted", "circle_two_heads"])
def test_the_softmax_residual_is_the_integrated_defect(name):
    case = reference_case(name)
    flow = particle_flow(case.model, case.cloud, (0, case.horizon), "softmax", rtol=1e-11)
    balance = energy_balance(flow)
    known = float(case.known["int_defect_rate_softmax"])
    assert balance.residual[-1] == pytest.approx(known, abs=1e-9)
    assert balance.terms["defect"][-1] == pytest.approx(known, abs=1e-9)
    assert np.abs(balance.closure).max() < 1e-9


def test_the_gradient_flow_has_no_residual():
    case = reference_case("five_dim")
    flow = particle_flow(case.model, case.cloud, (0, 1), rtol=1e-11)
    assert np.abs(energy_balance(flow).residual).max() < 1e-9


def test_second_order_movements_have_a_small_defect():
    case = reference_case("sphere_three_heads")
    ends = []
    for count in (10, 20):
        curve = minimizing_movement(case.model, case.cloud, (0, 1), 1 / count, "midpoint")
        balance = energy_balance(curve)
        assert np.abs(balance.closure).max() < 1e-8
        ends.append(balance.residual[-1])
    assert 3 < ends[0] / ends[1] < 5


def test_a_curve_without_its_model_is_refused():
    case = reference_case("sphere_one_head")
    curve = minimizing_movement(case.model, case.cloud, (0, 0.1), 0.1)
    bare = type(curve)(**{**vars(curve), "model": None})
    with pytest.raises(ValueError, match=r"curve\.model is None"):
        energy_balance(bare)
    with pytest.raises(ValueError, match=r"curve\.model is None"):
        metric_derivative(bare)


@pytest.fixture(scope="module")
def rough_flow():
    rng = np.random.default_rng(1)
    path = weights.OrnsteinUhlenbeck(
        Heads(Heads.gaussian(2, 3, rng).matrices / 2), horizon=1, base_step=0.01, rng=rng
    )
    cloud = TokenCloud.octahedral(12, 0.05, rng)
    return particle_flow(AttentionModel(path), cloud, (0, 1), method="rk4", step=0.01)


class TestIto:
    def test_the_terms_add_up_to_the_explicit_change(self, rough_flow):
        parts = ito_balance(rough_flow)
        total = parts.drift + parts.correction + parts.martingale + parts.remainder
        np.testing.assert_allclose(total, parts.total, atol=1e-12)
        explicit = energy_balance(rough_flow).terms["energy_time_derivative"][-1]
        assert parts.total[-1] == pytest.approx(explicit, abs=0.02 * np.ptp(rough_flow.energy))

    def test_the_correction_explains_the_second_order(self, rough_flow):
        """Without it the remainder would be the correction, an order of magnitude larger."""
        parts = ito_balance(rough_flow)
        assert parts.correction[-1] > 0
        assert abs(parts.remainder[-1]) < 0.25 * parts.correction[-1]

    def test_the_correction_is_the_formula(self, rough_flow):
        parts, path = ito_balance(rough_flow), rough_flow.model.path
        x, a = rough_flow.points[0], rough_flow.weights[0]
        kernel = np.exp(np.einsum("id,hde,je->hij", x, path.matrices[0], x))
        spread = 1 + (x @ x.T) ** 2
        rate = 2 / 8 * np.einsum("h,hij,ij,i,j->", path.weights, kernel, spread, a, a)
        assert parts.correction[1] == pytest.approx(0.01 * rate, rel=1e-10)

    def test_other_paths_are_refused(self):
        case = reference_case("sphere_one_head")
        flow = particle_flow(case.model, case.cloud, (0, 0.1))
        with pytest.raises(ValueError, match="OrnsteinUhlenbeck"):
            ito_balance(flow)


def test_rough_paths_close_with_the_step():
    rng = np.random.default_rng(2)
    path = weights.OrnsteinUhlenbeck(Heads.gaussian(2, 3, rng), horizon=0.5, rng=rng)
    cloud = TokenCloud.octahedral(12, 0.05, rng)
    model = AttentionModel(path)
    closures = []
    for step in (0.01, 0.005, 0.0025):
        flow = particle_flow(model, cloud, (0, 0.5), method="rk4", step=step)
        closures.append(abs(energy_balance(flow).closure[-1]))
    assert closures[2] < 0.1 * closures[0]
    assert closures[0] < 0.05 * np.ptp(flow.energy)


def test_metric_derivative_tends_to_the_slope():
    case = reference_case("sphere_three_heads")
    errors = []
    for count in (40, 80):
        times = np.linspace(0, 1, count + 1)
        flow = particle_flow(case.model, case.cloud, (0, 1), t_eval=times)
        chosen = np.arange(0, count, count // 8)
        speeds = metric_derivative(flow, indices=chosen)
        slopes = [np.sqrt(case.model.slope_squared(flow.cloud(k), times[k])) for k in chosen]
        errors.append(np.abs(speeds / slopes - 1).max())
    assert 1.7 < errors[0] / errors[1] < 2.3


def test_a_step_that_is_no_global_minimum_gets_bounded_work_and_a_word(monkeypatch):
    path = weights.Oscillating(Heads.gaussian(3, rng=1))
    cloud = TokenCloud.octahedral(20, noise=0.05, rng=0)
    curve = minimizing_movement(AttentionModel(path), cloud, (0, 2), step=2)
    assert curve.steps[0].certificate.optimality == "failed"
    solves = []

    def counted(*arguments):
        solves.append(arguments)
        return solve_tokens(*arguments)

    monkeypatch.setattr(balance_module, "solve_tokens", counted)
    balance = energy_balance(curve)  # warnings are errors
    assert len(solves) <= 1 + 21 * (2 * balance_module.PIECES - 1)
    assert (balance.steps, balance.unproven, balance.not_global) == (1, 1, 1)
    assert abs(balance.closure[-1]) < 0.03 * balance.total_variation
    assert balance.quadrature_error > abs(balance.closure[-1]) / 10
    assert "1 of 1 steps are no global minima" in repr(balance)
    assert "smaller steps mend it" in repr(balance)


def test_the_interpolant_shows_that_a_step_is_no_global_minimum():
    # every token is proven in its own problem, and yet a minimiser for a shorter step is better
    path = weights.Oscillating(Heads.gaussian(3, rng=1))
    cloud = TokenCloud.octahedral(20, noise=0.05, rng=0)
    curve = minimizing_movement(AttentionModel(path, sign=-1), cloud, (0, 0.8), step=0.8)
    assert curve.steps[0].certificate.optimality == "proven"
    balance = energy_balance(curve)
    assert (balance.unproven, balance.not_global) == (0, 1)
    assert "1 of 1 steps are no global minima" in repr(balance)
    small = minimizing_movement(AttentionModel(path, sign=-1), cloud, (0, 0.4), step=0.2)
    good = energy_balance(small)
    assert (good.steps, good.unproven, good.not_global) == (2, 0, 0)
    assert good.quadrature_error < 1e-9
    assert "global" not in repr(good)
