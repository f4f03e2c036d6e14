"""Convergence studies: observed orders of every scheme, and what the tables say of themselves."""

from __future__ import annotations

import multiprocessing
import runpy
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from jko import AttentionModel, Heads, TokenCloud, minimizing_movement, particle_flow
from jko.attention.weights import OrnsteinUhlenbeck, Oscillating
from jko.diagnostics import convergence, reference
from jko.diagnostics.convergence import StudyError, common_times, convergence_study
from jko.diagnostics.convergence_table import (
    ConvergenceTable,
    Gap,
    Verdict,
    read_tables,
    write_tables,
)
from jko.diagnostics.reference import grid_spacing, reference_states
from jko.plotting.convergence import plot_orders
from jko.problems import reference_case

CASES = ("sphere_three_heads", "sphere_weighted", "circle_two_heads", "five_dim")
STEPS = (1 / 10, 1 / 20, 1 / 40)
FINER = (1 / 20, 1 / 40, 1 / 80)


def study(name, scheme, steps=STEPS, **options):
    case = reference_case(name)
    options = {"certify": "none", "tolerance": 1e-8, **options}
    return convergence_study(
        case.model, case.cloud, (0.0, case.horizon), steps, scheme, **options
    )


def synthetic(errors, steps=(0.1, 0.05, 0.025), **changes):
    errors = np.array(errors)
    values = {
        "scheme": "jko",
        "reference": "gradient flow",
        "expected_order": 1,
        "steps": np.array(steps),
        "errors": errors,
        "final_errors": errors,
        "labelled_errors": errors,
        "evaluations": np.array([10.0, 20.0, 40.0]),
        "seconds": np.ones(3),
    }
    return ConvergenceTable(**{**values, **changes})


# observed orders


@pytest.fixture(scope="module")
def tables():
    """Tables of (case, scheme), each computed once."""
    found = {}

    def table(name, scheme, steps=STEPS):
        if (name, scheme, steps) not in found:
            found[name, scheme, steps] = study(name, scheme, steps)
        return found[name, scheme, steps]

    return table


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("scheme", "order", "band", "steps"),
    [
        ("jko", 1, 0.05, STEPS),
        ("midpoint", 2, 0.05, STEPS),
        ("bdf2", 2, 0.1, FINER),
        ("ve2", 2, 0.1, STEPS[:2]),
    ],
)
def test_observed_order(tables, name, scheme, order, band, steps):
    table = tables(name, scheme, steps)
    assert table.messages == ()
    assert table.expected_order == order
    assert table.order == pytest.approx(order, abs=band)
    assert table.pairwise_orders[-1] == pytest.approx(order, abs=band)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("scheme", "part"), [("midpoint", 8), ("bdf2", 4), ("ve2", 8)])
def test_old_mobility_caps_the_order_at_one(name, scheme, part):
    """The pair 1/80, 1/160, on a part of the span; BDF2 first has to forget its start."""
    case = reference_case(name)
    table = convergence_study(
        case.model,
        case.cloud,
        (0.0, case.horizon / part),
        (1 / 80, 1 / 160),
        f"{scheme},mobility=old",
        certify="none",
        tolerance=1e-7,
    )
    assert table.expected_order == 1
    assert table.order == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("scheme", ["midpoint", "bdf2", "ve2"])
def test_extrapolated_mobility_keeps_order_two(scheme):
    table = study("sphere_three_heads", f"{scheme},mobility=extrapolated", (1 / 10, 1 / 20))
    assert table.order == pytest.approx(2, abs=0.05)


def test_richardson_on_jko_has_order_two():
    table = study("sphere_three_heads", "richardson-jko", (1 / 20, 1 / 40))
    assert table.order == pytest.approx(2, abs=0.1)


def test_richardson_on_midpoint_has_order_four():
    """Beyond the third order: the midpoint's error has even powers of the step only."""
    table = study("sphere_three_heads", "richardson-midpoint", (1 / 10, 1 / 20), tolerance=1e-10)
    assert table.expected_order == 4
    assert table.order == pytest.approx(4, abs=0.1)
    assert table.errors[-1] < 2e-7


def test_bdf2_started_by_jko_keeps_order_two_with_larger_errors(tables):
    late = tables("sphere_three_heads", "bdf2,start=jko", FINER)
    assert late.order == pytest.approx(2, abs=0.1)
    assert (late.errors > tables("sphere_three_heads", "bdf2", FINER).errors).all()


def test_midpoint_reaches_a_millionth_with_a_fiftieth_of_the_work(tables):
    """On the measured lines; that of JKO is extrapolated over three decades."""
    work = [tables("sphere_three_heads", s).work_to_reach(1e-6) for s in ("jko", "midpoint")]
    assert work[1] <= work[0] / 50


def test_errors_are_largest_over_the_common_times(tables):
    case = reference_case("sphere_three_heads")
    table = tables("sphere_three_heads", "jko")
    curve = minimizing_movement(
        case.model, case.cloud, (0.0, 1.0), 0.1, certify="none", tolerance=1e-8
    )
    exact = particle_flow(case.model, case.cloud, (0.0, 1.0), rtol=1e-12, t_eval=curve.times[1:])
    distances = [
        np.sqrt(case.cloud.weights @ np.arccos(np.einsum("nd,nd->n", x, y)) ** 2)
        for x, y in zip(curve.points[1:], exact.points, strict=True)
    ]
    assert table.labelled_errors[0] == pytest.approx(max(distances), rel=1e-6)
    assert (table.errors <= table.labelled_errors * (1 + 1e-12)).all()
    assert (table.final_errors <= table.errors).all()
    assert table.evaluations[0] == curve.evaluations


# references


def test_dense_reference_is_as_good_as_one_that_stops():
    """Interpolated states of the direct flow agree with flows that end at those times."""
    case = reference_case("sphere_weighted")
    times = np.array([0.13, 0.4, 0.77])
    dense = particle_flow(case.model, case.cloud, (0.0, 1.0), rtol=1e-12, t_eval=times)
    for k, t in enumerate(times):
        direct = particle_flow(case.model, case.cloud, (0.0, t), rtol=1e-12)
        np.testing.assert_allclose(dense.points[k], direct.points[-1], atol=1e-10)


def test_a_curve_and_a_fine_run_serve_as_references(tables):
    case = reference_case("sphere_three_heads")
    steps = (1 / 5, 1 / 10)
    times = common_times((0.0, 1.0), np.array(steps))
    flow = particle_flow(case.model, case.cloud, (0.0, 1.0), rtol=1e-12, t_eval=[0.0, *times])
    given = study("sphere_three_heads", "midpoint", steps, reference=flow)
    assert given.errors[1] == pytest.approx(
        tables("sphere_three_heads", "midpoint").errors[0], rel=1e-4
    )
    fine = study("sphere_three_heads", "midpoint", steps, reference="fine", fine_factor=8)
    np.testing.assert_allclose(fine.errors, given.errors, rtol=0.05)
    assert given.messages == fine.messages == ()


def test_softmax_reference_is_not_the_limit_for_several_heads():
    table = study("sphere_three_heads", "midpoint", (1 / 10, 1 / 20), reference="softmax")
    assert len(table.messages) == 1
    assert "converge to the gradient flow" in table.messages[0]
    one = study("sphere_one_head", "midpoint", (1 / 10, 1 / 20), reference="softmax")
    assert one.messages == ()
    assert one.order == pytest.approx(2, abs=0.05)


def rough_problem():
    rng = np.random.default_rng(0)
    cloud = TokenCloud.octahedral(20, 0.05, rng)
    path = OrnsteinUhlenbeck(
        Heads.gaussian(2, 3, rng), horizon=0.5, base_step=0.05, rng=np.random.default_rng(1)
    )
    return AttentionModel(path), cloud


def test_rough_paths_show_the_order_below_their_base_step():
    model, cloud = rough_problem()
    span = (0.0, 0.5)
    assert grid_spacing(model.path, span) == pytest.approx(0.05)
    assert grid_spacing(model.path, (0.0, 0.48)) is None
    coarse = convergence_study(model, cloud, span, (0.25, 0.125), "midpoint", certify="none")
    assert coarse.rough
    assert coarse.verdict is Verdict.ROUGH_PATH
    assert any("kinks every 0.05" in message for message in coarse.messages)
    fine = convergence_study(model, cloud, span, (0.05, 0.025), "midpoint", certify="none")
    assert fine.order == pytest.approx(2, abs=0.05)
    assert fine.messages == ()
    assert fine.verdict is Verdict.HOLDS


# what the tables say of themselves


def test_a_loose_inner_tolerance_is_said():
    table = study("circle_two_heads", "midpoint", (1 / 10, 1 / 40), tolerance=1e-2)
    assert any("the inner tolerance pollutes step 0.025" in m for m in table.messages)


def test_a_reference_that_is_not_fine_enough_is_said():
    table = study(
        "circle_two_heads", "midpoint", (1 / 5, 1 / 10), reference="fine", fine_factor=2
    )
    assert table.order > 2.1
    assert any("the reference pollutes the table" in message for message in table.messages)


def test_unconverged_members_are_said_and_broken_ones_raise():
    table = study("circle_two_heads", "midpoint", (1 / 4, 1 / 8), max_evaluations=4)
    assert any("ran out of evaluations" in message for message in table.messages)
    rng = np.random.default_rng(20)
    a = rng.standard_normal((2, 3, 3))
    heads = a @ a.transpose(0, 2, 1)
    heads *= 6 / np.abs(np.linalg.eigvalsh(heads)).max()
    weights = rng.dirichlet(np.ones(8))
    cloud = TokenCloud(TokenCloud.octahedral(8, 0.3, rng).points, weights)
    model = AttentionModel(Heads(heads), sign=-1)
    with pytest.raises(
        StudyError, match=r"no run of richardson-jko reached the end: step 0.4 ended early: at"
    ) as caught:
        convergence_study(
            model, cloud, (0.0, 0.4), (0.4, 0.2), "richardson-jko", certify="none"
        )
    assert [gap.step for gap in caught.value.gaps] == [0.4, 0.2]


def splitting_problem():
    """Clustering tokens whose plan leaves the labels in long steps of BDF2."""
    path = Oscillating(Heads.gaussian(2, 3, 1))
    return AttentionModel(path, sign=-1), TokenCloud.uniform(50, 3, 0)


def test_a_run_that_ends_early_is_a_gap(tmp_path):
    model, cloud = splitting_problem()
    done = []
    table = convergence_study(
        model, cloud, (0.0, 2.0), (0.2, 0.1, 0.05), "bdf2", certify="none", progress=done.append
    )
    assert done == [0.05, 0.1, 0.2]
    np.testing.assert_array_equal(table.steps, [0.1, 0.05])
    assert table.errors.shape == (2,)
    [gap] = table.gaps
    assert gap.step == 0.2
    assert "the labels are not an optimal plan" in gap.reason
    assert table.messages[0].startswith("step 0.2 has no error, its run ended early: at t = ")
    write_tables(tmp_path / "orders.csv", [table])
    [back] = read_tables(tmp_path / "orders.csv")
    assert back.gaps == table.gaps
    np.testing.assert_array_equal(back.errors, table.errors)
    [empty] = read_tables(_written(tmp_path / "empty.csv", replace(synthetic([1, 1, 1]), **NOTHING)))
    assert empty.steps.size == 0
    assert empty.gaps == NOTHING["gaps"]
    assert empty.verdict is Verdict.NO_ORDER


NOTHING = {
    **dict.fromkeys(
        ("steps", "errors", "final_errors", "labelled_errors", "evaluations", "seconds"), np.empty(0)
    ),
    "gaps": (Gap(step=0.1, reason='a step failed, "early"'),),
}


def _written(path, table):
    write_tables(path, [table])
    return path


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [
        ([4e-3, 2e-3, 1e-3], Verdict.HOLDS),
        ([5e-3, 2e-3, 1e-3], Verdict.HOLDS),
        # the fit's interval contains one
        ([4e-3, 2.2e-3, 1e-3], Verdict.UNDECIDED),
        # it does not, but the pairs have not settled
        ([8e-3, 7e-3, 6e-3, 5.5e-3, 2.5e-3], Verdict.UNDECIDED),
        ([1e-2, 1e-2 / 2**0.75, 1e-2 / 2**1.5, 1e-2 / 2**2.25], Verdict.DIFFERS),
        # levels off
        ([4e-3, 2e-3, 1.8e-3], Verdict.DIFFERS),
        ([1e-3, 0.0, 0.0], Verdict.NO_ORDER),
    ],
)
def test_the_verdict_of_a_table(errors, verdict, tmp_path):
    count = len(errors)
    work = np.ones(count)
    table = synthetic(errors, 0.1 / 2 ** np.arange(count), evaluations=work, seconds=work)
    assert table.verdict is verdict
    rough = replace(table, kink_spacing=1e-3)
    assert rough.verdict is Verdict.ROUGH_PATH
    [back] = read_tables(_written(tmp_path / "orders.csv", rough))
    assert back.verdict is Verdict.ROUGH_PATH
    assert replace(table, kink_spacing=1.0).verdict is verdict


def test_studies_can_share_a_reference():
    case = reference_case("circle_two_heads")
    span, steps = (0.0, 1.0), np.array([0.5, 0.25])
    times = common_times(span, steps)
    states = reference_states(case.model, case.cloud, span, times, "gradient")
    shared = convergence_study(case.model, case.cloud, span, steps, reference=states)
    alone = convergence_study(case.model, case.cloud, span, steps)
    np.testing.assert_array_equal(shared.errors, alone.errors)
    assert shared.reference == "gradient flow"
    with pytest.raises(ValueError, match=r"reference must hold states of shape \(4, 30, 2\)"):
        convergence_study(case.model, case.cloud, span, [0.25, 0.125], reference=states)


def test_a_reference_for_steps_above_the_grid_costs_less(monkeypatch):
    model, cloud = rough_problem()
    spent = []

    def counted(*arguments, **settings):
        curve = particle_flow(*arguments, **settings)
        spent.append(curve.evaluations)
        return curve

    monkeypatch.setattr(reference, "particle_flow", counted)
    span, times = (0.0, 0.5), np.array([0.25, 0.5])
    loose = reference_states(model, cloud, span, times, "gradient", smallest_step=0.125)
    assert sum(spent) <= 4 * (10 + 20)
    assert loose.error < 1e-6
    precise = reference_states(model, cloud, span, times, "gradient", smallest_step=0.05)
    assert sum(spent) > 4 * (10 + 20 + 40)
    np.testing.assert_allclose(loose.points, precise.points, atol=1e-6)


def test_tables_know_their_orders():
    steps = np.array([0.1, 0.05, 0.025])
    table = synthetic(3 * steps**1.5)
    assert table.order == pytest.approx(1.5, abs=1e-12)
    np.testing.assert_allclose(table.pairwise_orders, 1.5)
    np.testing.assert_allclose(table.order_interval, 1.5, atol=1e-6)
    assert table.work_to_reach(3 * 0.0125**1.5) == pytest.approx(80, rel=1e-9)
    noisy = synthetic([1e-2, 4e-3, 3e-3])
    low, high = noisy.order_interval
    assert low < noisy.order < high
    assert high - low > 1
    assert "0.1" in str(table)
    assert "1.500" in str(table)


def test_an_order_needs_errors():
    with pytest.raises(ValueError, match="an order needs two errors above rounding"):
        _ = synthetic([1e-16, 0.0, 0.0]).order
    stationary = convergence_study(
        AttentionModel(Heads(np.zeros((3, 3)))), TokenCloud(np.eye(3)), (0.0, 1.0), (0.5, 0.25)
    )
    assert (stationary.errors == 0).all()
    assert stationary.messages == ()


def test_common_times():
    np.testing.assert_allclose(common_times((0.0, 1.0), np.array([0.5, 0.25])), [0.5, 1.0])
    np.testing.assert_allclose(common_times((1.0, 2.0), np.array([0.3, 0.2])), [1.6, 2.0])
    np.testing.assert_allclose(common_times((0.0, 1.0), np.array([0.3, 0.07])), [1.0])
    assert common_times((0.0, 1.0), np.array([0.01, 0.005])).size == convergence.COMPARED


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": [0.1]}, "steps must be at least two different numbers"),
        ({"steps": [0.1, 0.1]}, "steps must be at least two different numbers"),
        ({"steps": [0.1, -0.1]}, "steps must be positive, got -0.1"),
        ({"t_span": (0.0, 0.0)}, "t_span must not be empty"),
        ({"scheme": "euler"}, "scheme must be one of"),
        ({"reference": "exact"}, "reference must be one of 'gradient', 'softmax', 'fine'"),
        ({"tolerance": 0.0}, "tolerance must be positive"),
    ],
)
def test_invalid_arguments(changes, message):
    case = reference_case("circle_two_heads")
    arguments = {"t_span": (0.0, 1.0), "steps": [0.5, 0.25], **changes}
    with pytest.raises(ValueError, match=message):
        convergence_study(case.model, case.cloud, **arguments)


def test_a_reference_with_other_tokens_is_refused():
    case = reference_case("circle_two_heads")
    other = particle_flow(case.model, TokenCloud(case.cloud.points[:5]), (0.0, 1.0), rtol=1e-3)
    with pytest.raises(ValueError, match=r"reference must have tokens of shape \(30, 2\)"):
        convergence_study(case.model, case.cloud, (0.0, 1.0), [0.5, 0.25], reference=other)


# executors, files, figures


def test_any_executor_gives_the_same_table():
    serial = study("circle_two_heads", "midpoint", (1 / 4, 1 / 8))
    with ThreadPoolExecutor(2) as pool:
        threads = study("circle_two_heads", "midpoint", (1 / 4, 1 / 8), executor=pool)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        processes = study("circle_two_heads", "midpoint", (1 / 4, 1 / 8), executor=pool)
    np.testing.assert_allclose(threads.errors, serial.errors, rtol=1e-9)
    np.testing.assert_allclose(processes.errors, serial.errors, rtol=1e-9)


def test_tables_survive_their_file(tmp_path):
    first = synthetic([1e-2, 4e-3, 3e-3], messages=("mind this | and, that",))
    second = synthetic([1e-4, 2.5e-5, 7e-6], scheme="bdf2,mobility=old,start=jko")
    write_tables(tmp_path / "tables.csv", [first, second])
    back = read_tables(tmp_path / "tables.csv")
    for table, copy in zip([first, second], back, strict=True):
        assert vars(copy).keys() == vars(table).keys()
        for name, value in vars(table).items():
            np.testing.assert_array_equal(getattr(copy, name), value)


def test_figure_shows_every_scheme_with_units_and_slopes():
    steps = np.array([0.1, 0.05, 0.025])
    tables = [
        synthetic(0.2 * steps),
        synthetic(0.1 * steps, scheme="midpoint,mobility=old"),
        synthetic(0.1 * steps**2, scheme="midpoint", expected_order=2),
    ]
    figure = plot_orders(tables, "a title")
    left, right = figure.axes
    assert left.get_xlabel() == r"step $\tau$ [time]"
    assert left.get_ylabel() == "largest $W_2$ to the gradient flow [rad]"
    assert right.get_xlabel() == "kernel passes of the run"
    for axes, x in ((left, "steps"), (right, "evaluations")):
        for line, table in zip(axes.get_lines(), tables, strict=True):
            np.testing.assert_array_equal(line.get_xdata(), getattr(table, x))
            np.testing.assert_array_equal(line.get_ydata(), table.errors)
    assert {text.get_text() for text in left.texts} == {"1", "2"}
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["JKO", "midpoint (mobility: old)", "midpoint"]
    with pytest.raises(ValueError, match="at least one table"):
        plot_orders([])


def test_experiment_runs_quickly(tmp_path, monkeypatch, capsys):
    script = Path(__file__).parents[1] / "experiments" / "scheme_orders.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--quick", "--out", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    assert "midpoint against gradient flow" in capsys.readouterr().out
    assert (tmp_path / "scheme_orders.png").stat().st_size > 10_000
    assert len(read_tables(tmp_path / "sphere_three_heads.csv")) == 2


def test_the_work_axis_has_few_plain_numbers():
    table = synthetic([1e-2, 5e-3, 2.5e-3], evaluations=np.array([150.0, 600.0, 4000.0]))
    figure = plot_orders([table])
    figure.canvas.draw()
    axis = figure.axes[1].xaxis
    low, high = figure.axes[1].get_xlim()
    shown = [
        text.get_text()
        for text, place in zip(axis.get_ticklabels(which="both"), axis.get_ticklocs(), strict=False)
        if text.get_text() and low <= place <= high
    ]
    assert shown == ["200", "500", "1,000", "2,000"]
