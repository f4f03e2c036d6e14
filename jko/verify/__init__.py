"""Verification: every claim of the theory measured, and a card with the verdicts.

One function per claim, `CLAIMS` lists them in the order of the card.  Claims share runs and
studies through a `Laboratory`, which the figures draw from as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from ..report import write_verification_report
from ..report.page import library_versions
from .card import Card, Claim, Verdict
from .claims_article import (
    attractive_clusters,
    integrable_limits,
    integrable_regimes,
    oscillating_bounded_below,
    oscillating_few_heads,
    sampled_heads_integrable,
    slope_exponent,
    softmax_limits,
    speed_exponent,
)
from .claims_distance import dynamic_bounds, frozen_bounds
from .claims_flows import (
    article_defect,
    gradient_balance,
    metric_derivative,
    softmax_many_heads,
    softmax_one_head,
    softmax_residual,
)
from .claims_limits import (
    jko_order_one_head,
    jko_order_three_heads,
    jko_softmax,
    jko_softmax_limit,
)
from .claims_model import energy_gradient, harmonic_mean, mobility_bounds
from .claims_schemes import (
    bdf2_order,
    midpoint_order,
    old_mobility_order,
    richardson_order,
    ve2_order,
)
from .claims_stability import (
    defect_identity,
    gamma_convergence,
    groenwall,
    many_heads,
    mean_field,
    special_cases,
)
from .claims_steps import certificates, descent, discrete_identity, optimal_plans
from .figures import illustrations
from .laboratory import FULL, QUICK, ArticleSize, Extent, Laboratory

__all__ = [
    "CLAIMS",
    "FULL",
    "QUICK",
    "ArticleSize",
    "Card",
    "Claim",
    "Extent",
    "Laboratory",
    "Verdict",
    "run_verification",
    "write_verification_report",
]

ClaimFunction = Callable[[Laboratory], Claim]

CLAIMS: tuple[ClaimFunction, ...] = (
    mobility_bounds,
    harmonic_mean,
    energy_gradient,
    descent,
    optimal_plans,
    certificates,
    discrete_identity,
    jko_order_one_head,
    jko_order_three_heads,
    midpoint_order,
    bdf2_order,
    ve2_order,
    richardson_order,
    old_mobility_order,
    gradient_balance,
    metric_derivative,
    softmax_one_head,
    softmax_many_heads,
    softmax_residual,
    article_defect,
    jko_softmax,
    jko_softmax_limit,
    frozen_bounds,
    dynamic_bounds,
    speed_exponent,
    slope_exponent,
    many_heads,
    oscillating_bounded_below,
    oscillating_few_heads,
    integrable_regimes,
    sampled_heads_integrable,
    integrable_limits,
    softmax_limits,
    attractive_clusters,
    groenwall,
    gamma_convergence,
    mean_field,
    special_cases,
    defect_identity,
)


def run_verification(
    quick: bool = False,
    out: str | PathLike[str] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    *,
    extent: Extent | None = None,
    claims: Sequence[ClaimFunction] = CLAIMS,
) -> Card:
    """Measure every claim.

    Parameters
    ----------
    quick : bool
        Smaller studies: under a minute on two cores.
    out : path-like, optional
        Directory, made if missing, that gets ``card.json`` after every claim: an interrupted
        verification leaves what was measured.  `write_verification_report` adds the rest.
    progress : callable, optional
        Called with what is measured next, how many claims are done, and how many there are.
    extent : Extent, optional
        How much is measured, instead of `QUICK` or `FULL`.
    claims : sequence of callables
        Which claims, by default all.

    Returns
    -------
    Card
        ``card.failed`` says whether something differs from what is expected.
    """
    start = time.perf_counter()
    laboratory = Laboratory(extent or (QUICK if quick else FULL))
    report_progress = progress or _silent
    card = Card(
        rows=(),
        quick=quick,
        seconds=0.0,
        versions=library_versions(),
        evidence=laboratory,
        illustrate=illustrations,
    )
    for done, claim in enumerate(claims):
        report_progress(_title(claim), done, len(claims))
        row = _measure(claim, laboratory)
        card = replace(card, rows=(*card.rows, row), seconds=time.perf_counter() - start)
        if out is not None:
            card.write_json(Path(out) / "card.json")
    report_progress("done", len(claims), len(claims))
    return card


def _silent(title: str, done: int, total: int) -> None:
    """Tell nobody."""


def _title(claim: ClaimFunction) -> str:
    return (claim.__doc__ or claim.__name__).strip().splitlines()[0].rstrip(".")


def _measure(claim: ClaimFunction, laboratory: Laboratory) -> Claim:
    """The claim's row; a measurement that breaks down is a failure, not the end of the card."""
    try:
        return claim(laboratory)
    except (ArithmeticError, RuntimeError, ValueError, MemoryError) as problem:
        return Claim(
            key=claim.__name__,
            claim=f"{_title(claim)}.",
            measured=f"could not be measured: {type(problem).__name__}: {problem}",
            expected="a measurement",
            holds=False,
            how_known="",
        )
