"""Certificates of single steps: how many are proven at which step, and what the advice gains.

Convex problems: 150 uniform tokens on S^2 and three heads ``A A^T / 2`` with standard normal A.

    python experiments/certified_steps.py [--quick] [--out DIR]
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import jko
import numpy as np

STEPS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 5.0)


def convex_problem(seed: int) -> tuple[jko.AttentionModel, jko.TokenCloud]:
    rng = np.random.default_rng(seed)
    cloud = jko.TokenCloud.uniform(150, 3, rng)
    a = rng.standard_normal((3, 3, 3))
    return jko.AttentionModel(jko.Heads(a @ a.transpose(0, 2, 1) / 2)), cloud


def measure_step(step: float, seeds: int) -> dict[str, float]:
    results = [jko.proximal_step(*convex_problem(seed), 0.0, step) for seed in range(seeds)]
    gaps = [r.certificate.optimality_gap for r in results]
    proven = [r.certificate.optimality == "proven" for r in results]
    return {
        "step": step,
        "problems": seeds,
        "proven": sum(proven),
        "must_split": sum(r.status.name == "SPLIT" for r in results),
        "undecided": sum(
            not p and r.status.name != "SPLIT" for p, r in zip(proven, results, strict=True)
        ),
        "largest_proven_gap": max((g for g, p in zip(gaps, proven, strict=True) if p), default=0),
        "largest_remaining_gap": max(
            (g for g, p in zip(gaps, proven, strict=True) if not p), default=0
        ),
        "restarts": sum(r.stats.restarts for r in results),
    }


def measure_advice(seeds: int) -> list[dict[str, float]]:
    rows = []
    for seed in range(seeds):
        model, cloud = convex_problem(seed)
        advice = jko.step_advice(model, cloud, 0.0)
        rows.append(
            {
                "seed": seed,
                "largest_head": float(model.heads(0.0).norms.max()),
                "guaranteed": advice.guaranteed,
                "tightened": advice.tightened,
                "gain": advice.gain,
            }
        )
    return rows


def write(path: Path, rows: list[dict[str, float]]) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 seeds, three steps")
    parser.add_argument("--out", type=Path, default=Path("runs/certified_steps"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    seeds = 3 if arguments.quick else 20
    steps = (0.05, 0.2, 1.0) if arguments.quick else STEPS
    table = [measure_step(step, seeds) for step in steps]
    advice = measure_advice(seeds)
    write(arguments.out / "steps.csv", table)
    write(arguments.out / "advice.csv", advice)
    for row in table:
        print("  ".join(f"{key}={value:.3g}" for key, value in row.items()))
    gains = [row["gain"] for row in advice]
    print(f"advice: tightened / guaranteed {min(gains):.1f} .. {max(gains):.1f}")


if __name__ == "__main__":
    main()
