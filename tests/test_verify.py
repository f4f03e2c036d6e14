"""The theorem card: verdicts follow from the numbers, and every claim is measured."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from jko import AttentionModel, verify
from jko.verify import CLAIMS, Card, Claim, Extent, Laboratory, Verdict, run_verification
from jko.verify.card import short, true_minus
from jko.verify.laboratory import STEP_SIZES
from rich.console import Console

TINY = Extent(
    cases=("circle_two_heads", "sphere_one_head", "sphere_three_heads"),
    problems=6,
    refinements=(10, 20, 40),
    certified_steps=2,
    identity_steps=2,
    pairs=6,
    segments=2,
    head_counts=(1, 2),
    draws=2,
    tokens=24,
)


def claim(holds: bool, expected: bool, key: str = "a") -> Claim:
    return Claim(
        key=key,
        claim="Two < three.",
        measured="2 < 3",
        expected="[true]",
        holds=holds,
        expected_to_hold=expected,
        how_known="arithmetic",
        numbers={"two": 2, "three": np.float64(3)},
    )


@pytest.mark.parametrize(
    ("holds", "expected", "verdict", "failed"),
    [
        (True, True, Verdict.HOLDS, False),
        (False, False, Verdict.FAILS_AS_EXPECTED, False),
        (False, True, Verdict.FAILS, True),
        (True, False, Verdict.HOLDS_UNEXPECTEDLY, True),
    ],
)
def test_a_verdict_compares_what_was_measured_with_what_is_expected(
    holds, expected, verdict, failed
):
    row = claim(holds, expected)
    assert row.verdict is verdict
    assert row.failed is failed
    good = claim(True, True, "b")
    card = Card(rows=(good, row, claim(False, False, "c")), quick=True, seconds=1.0)
    assert card.failed is failed
    assert card.failures == ((row,) if failed else ())
    assert ("1 differ from" in card.summary) is failed


def test_the_card_is_read_by_key_and_written_as_plain_json(tmp_path):
    card = Card(
        rows=(claim(True, True), claim(False, False, "b")),
        quick=False,
        seconds=2.0,
        versions={"jko": "0"},
    )
    assert card["b"].verdict is Verdict.FAILS_AS_EXPECTED
    with pytest.raises(KeyError, match="no claim 'z'"):
        card["z"]
    read = json.loads(card.write_json(tmp_path / "deep" / "card.json").read_text("utf-8"))
    assert read["failed"] is False
    assert read["rows"][0]["numbers"] == {"two": 2.0, "three": 3.0}
    assert [row["verdict"] for row in read["rows"]] == ["HOLDS", "FAILS_AS_EXPECTED"]
    assert card.illustrations() == ()
    assert card.curves() == ()


def test_the_terminal_table_shows_every_cell_literally():
    rows = (claim(True, True), claim(False, True, "b"))
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(Card(rows=rows, quick=True, seconds=1.0).table())
        text = console.export_text()
    assert "[true]" in text
    assert "holds" in text
    assert "FAILS" in text
    assert "1 hold" in text


def test_numbers_in_text_are_short():
    assert [short(1e-8), short(0.0), short(-3.44e-5, 1), short(2.0)] == [
        "1e−8",
        "0",
        "−3.4e−5",
        "2e0",
    ]


@pytest.fixture(scope="module")
def laboratory() -> Laboratory:
    return Laboratory(TINY)


@pytest.mark.parametrize("function", CLAIMS, ids=lambda function: function.__name__)
def test_every_claim_is_as_expected_on_small_studies(function, laboratory):
    row = function(laboratory)
    assert not row.failed, row
    assert row.key == function.__name__
    assert row.claim.endswith(".")
    assert row.measured
    assert row.expected
    assert row.how_known
    assert row.numbers
    assert np.isfinite(list(row.numbers.values())).all()
    json.dumps(row.to_dict())


def test_the_defect_and_the_limits_are_the_known_ones(laboratory):
    case = laboratory.case("sphere_three_heads")
    defect = verify.softmax_many_heads(laboratory).numbers["defect_sphere_three_heads"]
    assert defect == pytest.approx(float(case.known["int_defect_rate_softmax"]), abs=1e-8)
    limits = verify.jko_softmax(laboratory).numbers
    assert limits["limit_sphere_three_heads"] == pytest.approx(0.1228, abs=5e-4)
    assert limits["limit_sphere_weighted"] == pytest.approx(0.1360, abs=5e-4)


def test_studies_are_made_once(laboratory):
    assert laboratory.movement("sphere_one_head", 10) is laboratory.movement("sphere_one_head", 10)
    verify.mobility_bounds(laboratory)
    calls = []
    laboratory.once("new", lambda: calls.append(1))
    laboratory.once("new", lambda: calls.append(1))
    assert calls == [1]


class Swapped(Laboratory):
    """A laboratory in which the two flows are mixed up."""

    def flow(self, name, velocity):
        return super().flow(name, "softmax" if velocity == "gradient" else "gradient")


class Softmax(Laboratory):
    """A laboratory whose softmax flow is really the gradient flow."""

    def flow(self, name, velocity):
        return super().flow(name, "gradient")


def test_a_wrong_flow_turns_the_verdicts():
    small = replace(TINY, cases=("sphere_three_heads",), refinements=(10, 20))
    swapped, softmax = Swapped(small), Softmax(small)
    assert verify.jko_order_three_heads(swapped).verdict is Verdict.FAILS
    assert verify.gradient_balance(swapped).verdict is Verdict.FAILS
    assert verify.jko_softmax_limit(swapped).verdict is Verdict.FAILS
    assert verify.jko_softmax(softmax).verdict is Verdict.HOLDS_UNEXPECTEDLY
    assert verify.softmax_many_heads(softmax).verdict is Verdict.HOLDS_UNEXPECTEDLY
    assert verify.softmax_residual(softmax).verdict is Verdict.FAILS


def test_a_wrong_gradient_is_seen(monkeypatch):
    right = AttentionModel.gradient
    monkeypatch.setattr(
        AttentionModel, "gradient", lambda self, *arguments: 1.01 * right(self, *arguments)
    )
    assert verify.energy_gradient(Laboratory(TINY)).verdict is Verdict.FAILS


def test_a_wrong_mobility_is_seen(monkeypatch):
    from jko.attention.fields import Fields

    right = Fields.log_effective_mobility.func
    monkeypatch.setattr(
        Fields,
        "log_effective_mobility",
        property(lambda self: right(self) + self.heads.norms.max()),
    )
    laboratory = Laboratory(TINY)
    assert verify.mobility_bounds(laboratory).verdict is Verdict.FAILS
    assert verify.harmonic_mean(laboratory).verdict is Verdict.FAILS


class Tampered(Laboratory):
    """A laboratory whose certified steps are moved, or claim too much."""

    def certified(self, name, step):
        curve = super().certified(name, step)
        record = curve.steps[0]
        wrong = replace(
            record,
            objective=record.energy_before + 1e-6,
            distance_squared=1.01 * record.distance_squared,
            certificate=replace(record.certificate, optimality="proven", plan_gap=1e-3),
        )
        points = curve.points.copy()
        points[1] = np.roll(points[1], 1, axis=0)
        return replace(curve, steps=(wrong, *curve.steps[1:]), points=points)


def test_wrong_steps_are_seen():
    tampered = Tampered(replace(TINY, cases=("sphere_one_head",), refinements=(10,)))
    assert verify.descent(tampered).verdict is Verdict.FAILS
    assert verify.optimal_plans(tampered).verdict is Verdict.FAILS
    row = verify.certificates(tampered)
    assert row.verdict is Verdict.FAILS
    assert row.numbers["counterexamples"] > 0


def test_a_balance_that_does_not_close_is_seen(laboratory):
    from jko.verify.claims_steps import identity_balances

    wrong = Laboratory(TINY)
    balances = identity_balances(laboratory)
    broken = {
        step: replace(balance, closure=balance.closure + 1e-6) for step, balance in balances.items()
    }
    wrong.once(identity_balances.__wrapped__, lambda: broken)
    assert set(broken) == set(STEP_SIZES)
    assert verify.discrete_identity(wrong).verdict is Verdict.FAILS


def impossible(laboratory: Laboratory) -> Claim:
    """Nothing can be measured here."""
    raise ArithmeticError("overflow")


def test_a_run_reports_progress_writes_as_it_goes_and_survives_a_failure(tmp_path):
    told = []
    card = run_verification(
        True,
        tmp_path,
        lambda title, done, total: told.append((title, done, total)),
        extent=TINY,
        claims=(verify.mobility_bounds, impossible),
    )
    assert [entry[1:] for entry in told] == [(0, 2), (1, 2), (2, 2)]
    assert told[1][0] == "Nothing can be measured here"
    assert card.failed
    assert card.quick
    assert card["mobility_bounds"].verdict is Verdict.HOLDS
    assert card["impossible"].verdict is Verdict.FAILS
    assert "ArithmeticError: overflow" in card["impossible"].measured
    assert card.seconds > 0
    assert card.versions["jko"]
    assert json.loads((tmp_path / "card.json").read_text("utf-8"))["failed"] is True


def test_the_extents_ask_for_what_the_card_promises():
    for extent in (verify.QUICK, verify.FULL):
        assert extent.refinements == (10, 20, 40, 80, 160)
        assert len(extent.cases) == 5
    assert verify.FULL.identity_steps == 50
    assert verify.FULL.full_limits
    assert verify.FULL.article.paths >= 8
    assert verify.FULL.article.rough_heads == (1, 2, 5, 10, 20, 50, 100)
    assert verify.FULL.article.smooth_horizon == 100
    more_draws = replace(verify.QUICK, draws=verify.FULL.draws)
    assert more_draws.article == verify.QUICK.article
    assert not more_draws.full_limits


def test_numbers_in_the_card_have_true_minus_signs():
    assert true_minus("slope -0.3, 1e-8 (-.5) in [-1, 2]") == "slope −0.3, 1e−8 (−.5) in [−1, 2]"
    plain = "second-order, step-2 scheme, 2026-01-02, multi-head, 3 - 2"
    assert true_minus(plain) == plain
    claim = Claim(
        key="k", claim="c", measured=f"{-1e-9:.1e}", expected="< 1e-8", holds=True, how_known="h"
    )
    assert (claim.measured, claim.expected) == ("−1.0e−09", "< 1e−8")
