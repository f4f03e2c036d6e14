"""(a) One JKO step against autodiff through `ot.emd2` in PyTorch, to the same objective."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec

import jko
import numpy as np
from _measure import Section, Verdict, duration, interleaved, median, ratio
from _problems import gaussian
from jko.steps import plans
from torch_step import choose_threads, torch_step

TOLERANCE = 1e-10
HEADS = 10
#: Factor of Z + Z^T and step.
CASES = ((0.5, 0.1), (0.5, 0.02), (1.0, 0.1), (1.0, 0.02))
#: Our sides: what is asked of `proximal_step`, beside the tolerance of the first two.
SIDES: dict[str, dict[str, object]] = {
    "same objective, optimal plan": {"certify": "none"},
    "same objective, O(n) proof": {"certify": "local"},
    "default": {},
}
COLUMNS = (
    "heads",
    "step",
    "asked of `proximal_step`",
    "above the minimum",
    "kernel passes",
    "emd calls",
    "optimality",
    "in kernel",
    "in plan",
    "time",
    "torch",
    "ratio",
    "torch, told the minimum",
    "ratio",
)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One of our sides against autodiff: the row of the table and the ratio."""

    row: list[object]
    result: jko.steps.result.StepResult
    factor: float | None


def step_against_autodiff(quick: bool) -> Section:
    n, repetitions = (40, 1) if quick else (200, 25)
    cases = CASES[1:2] if quick else CASES
    rows, verdicts = [], []
    for scale, step in cases:
        compared = _compare(n, scale, step, repetitions)
        rows += [one.row for one in compared.values()]
        plan, proof, default = compared.values()
        if plan.factor is None or not (quick or step == CASES[0][1]):
            continue
        heads = _heads(scale)
        verdicts.append(_verdict(f"step {step:g}, {heads}, same objective, optimal plan", plan, 8))
        if proof.result.certificate.optimality == "proven":
            name = f"step {step:g}, {heads}, same objective, proven"
            verdicts.append(_verdict(name, proof, 8))
        name = f"step {step:g}, {heads}, default: gradient to 1e-10, full certificate"
        verdicts.append(_verdict(name, default, None))
    missing = "" if find_spec("torch") else " PyTorch is not installed: its side was left out."
    text = (
        f"{n} tokens on S², {HEADS} heads. PyTorch's L-BFGS (history 20, strong Wolfe line search, "
        "double precision, one thread or all, whichever is faster). Both sides start from the cloud "
        "alone and stop by their own rules, with the loosest power of ten for their tolerance at "
        f"which the result is within {TOLERANCE:g} of the minimum: `tolerance` (relative gradient "
        "norm) here, `tolerance_change` there. The last columns let PyTorch stop at the first value "
        "that is low enough, which nobody can know. `default` is everything that `proximal_step` "
        "does by default (1e-10 and the full certificate). The transport term makes the objective "
        "nearly quadratic, so both sides need few evaluations, and what is compared is mostly the "
        "price of one: PyTorch's contains an `emd`, ours a proof at the end. Shares of our time: "
        f"kernel passes, and the network simplex (its cost matrix not included).{missing}"
    )
    return Section(
        title="A JKO step against autodiff through `ot.emd2`",
        text=text,
        columns=COLUMNS,
        rows=rows,
        verdicts=verdicts,
    )


def _compare(n: int, scale: float, step: float, repetitions: int) -> dict[str, Comparison]:
    model, cloud = gaussian(n, HEADS, scale=scale)
    minimum = jko.proximal_step(model, cloud, 0, step).objective
    tolerance = _equal_tolerance(model, cloud, step, minimum)
    asked = {
        name: {"tolerance": tolerance, **options} if options else {}
        for name, options in SIDES.items()
    }
    sides: dict[str, Callable[[], object]] = {
        name: lambda options=options: jko.proximal_step(model, cloud, 0, step, **options)
        for name, options in asked.items()
    }
    if find_spec("torch") is not None:
        heads = model.heads(0)
        arrays = (cloud.points, cloud.weights, heads.matrices, heads.weights)
        goal = minimum + TOLERANCE
        change = _equal_change(arrays, step, goal)
        sides["torch"] = lambda: torch_step(*arrays, step, change=change)
        choose_threads(sides["torch"])
        sides["torch, told"] = lambda: torch_step(*arrays, step, goal)
    times = interleaved(sides, repetitions)
    compared = {}
    for name, options in asked.items():
        result = sides[name]()
        split = _split(model, cloud, step, options)
        row = [
            _heads(scale),
            f"{step:g}",
            name,
            f"{result.objective - minimum:.0e}",
            result.stats.gradient_evaluations + result.stats.certificate_evaluations,
            result.stats.plans,
            result.certificate.optimality,
            f"{100 * split['kernel']:.0f} %",
            f"{100 * split['plan']:.0f} %",
            duration(median(times[name])),
        ]
        factors = []
        for other in ("torch", "torch, told"):
            if other not in times:
                row += ["-", "-"]
                continue
            factors.append(ratio(times[other], times[name]))
            row += [duration(median(times[other])), f"{factors[-1]:.1f}"]
        factor = factors[0] if factors else None
        compared[name] = Comparison(row=row, result=result, factor=factor)
    return compared


def _equal_tolerance(
    model: jko.AttentionModel, cloud: jko.TokenCloud, step: float, minimum: float
) -> float:
    """The loosest power of ten at which our objective is within ``TOLERANCE`` of the minimum."""
    for exponent in range(2, 10):
        tolerance = 10.0**-exponent
        result = jko.proximal_step(model, cloud, 0, step, tolerance=tolerance, certify="none")
        if result.objective <= minimum + TOLERANCE:
            return tolerance
    raise RuntimeError("our side does not reach its own objective")


def _equal_change(arrays: tuple[np.ndarray, ...], step: float, goal: float) -> float:
    """The loosest power of ten at which PyTorch's objective is at most ``goal``."""
    for exponent in range(4, 15):
        change = 10.0**-exponent
        if torch_step(*arrays, step, change=change).values.min() <= goal:
            return change
    raise RuntimeError("the other side does not reach the objective")


def _heads(scale: float) -> str:
    return "Z + Zᵀ" if scale == 1 else "(Z + Zᵀ)/2"


def _verdict(name: str, one: Comparison, target: float | None) -> Verdict:
    assert one.factor is not None
    return Verdict(
        name=f"(a) a JKO step against autodiff through emd2: {name}",
        target="" if target is None else f"at least {target:g} times faster",
        measured=f"{one.factor:.1f} times",
        met=None if target is None else one.factor >= target,
    )


def _split(
    model: jko.AttentionModel, cloud: jko.TokenCloud, step: float, options: Mapping[str, object]
) -> dict[str, float]:
    """Shares of a step's time spent in kernel sums and in the transport solver."""
    spent = {"kernel": 0.0, "plan": 0.0}
    kernel = type(model.kernel)
    with _timed(kernel, "sums", spent, "kernel"), _timed(plans, "optimal_plan", spent, "plan"):
        start = time.perf_counter()
        for _ in range(5):
            jko.proximal_step(model, cloud, 0, step, **options)
        total = time.perf_counter() - start
    return {name: value / total for name, value in spent.items()}


@contextmanager
def _timed(owner: object, name: str, spent: dict[str, float], key: str) -> Iterator[None]:
    """Add the time spent in ``owner.name`` to ``spent[key]``."""
    plain = getattr(owner, name)

    def watched(*args: object) -> object:
        start = time.perf_counter()
        try:
            return plain(*args)
        finally:
            spent[key] += time.perf_counter() - start

    setattr(owner, name, watched)
    try:
        yield
    finally:
        setattr(owner, name, plain)
