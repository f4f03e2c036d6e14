"""Orders and work of all schemes: reference cases, strong heads, rough paths, chosen steps.

Runs everything, saves CSV files, and draws the figures from the saved files.

    python experiments/scheme_orders.py [--quick] [--only NAME] [--out DIR]
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import dataclass
from pathlib import Path

import jko
import numpy as np
from jko.attention.weights import OrnsteinUhlenbeck
from jko.diagnostics.convergence import StudyError, convergence_study
from jko.diagnostics.convergence_table import ConvergenceTable, read_tables, write_tables
from jko.plotting import save_figure
from jko.plotting.convergence import plot_orders
from jko.problems import REFERENCE_CASES, reference_case

SCHEMES = ("jko", "midpoint", "bdf2", "ve2", "richardson-jko", "richardson-midpoint")
VARIANTS = (
    "midpoint,mobility=old",
    "bdf2,mobility=old",
    "ve2,mobility=old",
    "midpoint,mobility=extrapolated",
    "bdf2,mobility=extrapolated",
    "ve2,mobility=extrapolated",
    "bdf2,start=jko",
)
#: Of order four: larger steps and a tighter inner tolerance, or rounding would show.
HIGH_ORDER = ("richardson-midpoint",)
DRAWN = (*SCHEMES, "midpoint,mobility=old")
ORDER_CASES = ("sphere_three_heads", "sphere_weighted", "circle_two_heads", "five_dim")


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """What is run."""

    cases: tuple[str, ...] = ORDER_CASES
    schemes: tuple[str, ...] = (*SCHEMES, *VARIANTS)
    steps: tuple[float, ...] = (1 / 10, 1 / 20, 1 / 40, 1 / 80, 1 / 160)
    high_order_steps: tuple[float, ...] = (1 / 5, 1 / 10, 1 / 20, 1 / 40)
    strengths: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    strong_steps: tuple[float, ...] = (1 / 20, 1 / 40, 1 / 80, 1 / 160)
    rough_steps: tuple[float, ...] = (1 / 5, 1 / 10, 1 / 25, 1 / 50, 1 / 100, 1 / 200)
    rough_schemes: tuple[str, ...] = ("jko", "midpoint", "bdf2", "richardson-midpoint")
    tolerances: tuple[float, ...] = (1e-3, 1e-4, 1e-5)
    adaptive_cases: tuple[str, ...] = REFERENCE_CASES
    adaptive_extremes: bool = True


QUICK = Parameters(
    cases=("sphere_three_heads",),
    schemes=("jko", "midpoint"),
    steps=(1 / 4, 1 / 8),
    strengths=(2.0,),
    strong_steps=(1 / 4, 1 / 8),
    rough_steps=(1 / 5, 1 / 10),
    rough_schemes=("midpoint",),
    tolerances=(1e-2,),
    adaptive_cases=("sphere_one_head",),
    adaptive_extremes=False,
)


def run_orders(parameters: Parameters, out: Path) -> None:
    """The reference cases, one file each."""
    for name in parameters.cases:
        case = reference_case(name)
        tables = []
        for scheme in parameters.schemes:
            high = scheme in HIGH_ORDER
            table = convergence_study(
                case.model,
                case.cloud,
                (0.0, case.horizon),
                parameters.high_order_steps if high else parameters.steps,
                scheme,
                tolerance=1e-12 if high else 1e-10,
            )
            tables.append(report(name, table))
        write_tables(out / f"{name}.csv", tables)


def strong_problem(strength: float, sign: int) -> tuple[jko.AttentionModel, jko.TokenCloud]:
    """Three positive semidefinite heads of the same norm, 40 tokens around the octahedron."""
    rng = np.random.default_rng(4)
    a = rng.standard_normal((3, 3, 3))
    heads = a @ a.transpose(0, 2, 1)
    heads *= strength / np.abs(np.linalg.eigvalsh(heads)).max(axis=1)[:, None, None]
    model = jko.AttentionModel(jko.Heads(heads), sign=sign)
    return model, jko.TokenCloud.octahedral(40, 0.3, rng)


def rough_problem() -> tuple[jko.AttentionModel, jko.TokenCloud]:
    """Three Ornstein-Uhlenbeck heads on a base grid of 1/50, 40 tokens around the octahedron."""
    rng = np.random.default_rng(0)
    cloud = jko.TokenCloud.octahedral(40, 0.05, rng)
    heads = jko.Heads.gaussian(3, 3, rng)
    path = OrnsteinUhlenbeck(heads, horizon=1.0, base_step=0.02, rng=rng)
    return jko.AttentionModel(path), cloud


def strong_name(strength: float, sign: int) -> str:
    return f"strong_{strength:g}_{'repulsive' if sign > 0 else 'attractive'}"


def run_strong(parameters: Parameters, out: Path) -> None:
    """Strong heads of both signs, T = 0.25."""
    for sign in (1, -1):
        for strength in parameters.strengths:
            model, cloud = strong_problem(strength, sign)
            name = strong_name(strength, sign)
            tables = []
            for scheme in ("jko", "midpoint", "bdf2"):
                try:
                    table = convergence_study(
                        model, cloud, (0.0, 0.25), parameters.strong_steps, scheme, certify="none"
                    )
                except StudyError as problem:
                    print(f"{name} {scheme}: {problem}", flush=True)
                    continue
                tables.append(report(name, table))
            write_tables(out / f"{name}.csv", tables)


def run_rough(parameters: Parameters, out: Path) -> None:
    """A sampled path, with steps above and below its base grid."""
    model, cloud = rough_problem()
    tables = [
        report("rough", convergence_study(model, cloud, (0.0, 1.0), parameters.rough_steps, scheme))
        for scheme in parameters.rough_schemes
    ]
    write_tables(out / "rough.csv", tables)


def run_adaptive(parameters: Parameters, out: Path) -> None:
    """Steps chosen from ``rtol``: true error at the end, number of steps, work."""
    problems = {}
    for name in parameters.adaptive_cases:
        case = reference_case(name)
        problems[name] = (case.model, case.cloud, case.horizon)
    if parameters.adaptive_extremes:
        problems["rough"] = (*rough_problem(), 1.0)
        for sign in (1, -1):
            problems[strong_name(8, sign)] = (*strong_problem(8, sign), 0.25)
    rows = []
    for name, (model, cloud, horizon) in problems.items():
        exact = jko.particle_flow(model, cloud, (0.0, horizon), rtol=1e-12).final
        for rtol in parameters.tolerances:
            curve = jko.minimizing_movement(
                model, cloud, (0.0, horizon), rtol=rtol, certify="local"
            )
            steps = np.diff(curve.times)
            rows.append(
                {
                    "problem": name,
                    "rtol": rtol,
                    "error_over_rtol": jko.wasserstein(curve.final, exact) / rtol,
                    "steps": steps.size,
                    "smallest_step": steps.min(),
                    "largest_step": steps.max(),
                    "passes": curve.evaluations,
                    "status": curve.status.name,
                }
            )
            print("  ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    with (out / "adaptive.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def report(name: str, table: ConvergenceTable) -> ConvergenceTable:
    print(f"{name}: {table}")
    if table.steps.size < 2:  # the others ended early
        return table
    low, high = table.order_interval
    print(f"order {table.order:.3f} ({low:.3f} .. {high:.3f}), ", end="")
    print(f"{table.work_to_reach(1e-6):.3g} passes to 1e-6\n", flush=True)
    return table


def draw(out: Path) -> None:
    """The figures, from the saved tables."""
    tables = [t for t in read_tables(out / "sphere_three_heads.csv") if t.scheme in DRAWN]
    title = "sphere_three_heads: 40 tokens on $S^2$, three heads, T = 1"
    save_figure(plot_orders(tables, title), out / "scheme_orders.png")
    title = "Ornstein-Uhlenbeck heads on a base grid of 1/50, T = 1"
    rough = read_tables(out / "rough.csv")
    save_figure(plot_orders(rough, title), out / "scheme_orders_rough.png")


RUNS = {"orders": run_orders, "strong": run_strong, "rough": run_rough, "adaptive": run_adaptive}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two large steps, two schemes")
    parser.add_argument("--only", choices=(*RUNS, "figures"), help="run one part")
    parser.add_argument("--out", type=Path, default=Path("runs/scheme_orders"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, run in RUNS.items():
        if arguments.only in (None, name):
            run(QUICK if arguments.quick else Parameters(), arguments.out)
    if arguments.only in (None, "figures"):
        draw(arguments.out)


if __name__ == "__main__":
    main()
