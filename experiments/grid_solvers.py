"""The step on fixed nodes: two solvers against each other, against the nodes, against tokens.

Writes one CSV file per study and draws the figures.

    python experiments/grid_solvers.py [--quick] [--only STUDY] [--out DIR]
"""

from __future__ import annotations

import argparse
import csv
import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jko
import numpy as np
from jko import sphere
from jko.plotting import save_figure
from jko.plotting.density import plot_density, plot_resolution
from jko.steps.grid import (
    GRID_SOLVERS,
    node_spacing,
    on_nodes,
    reprove,
    resolution,
    solve_on_support,
)
from jko.transport.distance import wasserstein

Row = dict[str, Any]

TWO_HEADS = jko.Heads(np.array([1.5 * np.eye(3), np.diag([2.0, 1.0, 0.5])]))
CIRCLE_HEADS = jko.Heads(np.array([[[2.0, 0.5], [0.5, 1.0]], [[1.0, 0.0], [0.0, 1.5]]]))


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """What is run."""

    nodes: tuple[int, ...] = (100, 200, 400, 1600)
    steps: tuple[float, ...] = (0.5, 5.0, 50.0)
    repeats: int = 3
    pinning_nodes: tuple[int, ...] = (50, 100, 200, 400, 800)
    pinning_steps: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
    tokens: int = 150
    token_seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    reproof_nodes: tuple[int, ...] = (400, 1600)
    curve_tokens: tuple[int, ...] = (50, 100, 200)
    curve_refinements: tuple[int, ...] = (2, 4, 8)
    sphere_tokens: tuple[int, ...] = (100, 200)
    sphere_nodes: tuple[int, ...] = (400, 800, 1600)
    figure_nodes: int = 1600


QUICK = Parameters(
    nodes=(60,),
    steps=(0.5,),
    repeats=1,
    pinning_nodes=(50, 100),
    pinning_steps=(0.05, 0.5),
    tokens=30,
    token_seeds=(0,),
    reproof_nodes=(100,),
    curve_tokens=(25,),
    curve_refinements=(2, 4),
    sphere_tokens=(30,),
    sphere_nodes=(60, 120),
    figure_nodes=150,
)


def tilted(n: int) -> jko.TokenCloud:
    """Density proportional to exp(3 z) on n Fibonacci nodes."""
    nodes = sphere.fibonacci_nodes(n)
    return jko.TokenCloud.normalized(nodes, np.exp(3 * nodes[:, 2]))


def two_bumps(n: int) -> jko.TokenCloud:
    """A density with two bumps on n nodes of the circle."""
    nodes = sphere.circle_nodes(n)
    angle = np.arctan2(nodes[:, 1], nodes[:, 0])
    return jko.TokenCloud.normalized(nodes, np.exp(2 * np.cos(angle) + np.sin(3 * angle)))


def solve_case(solver: str, n: int, step: float, repeats: int) -> list[Row]:
    """A few steps in a row: times, gaps, and the peak memory of this process."""
    import cvxpy  # noqa: F401  # imports are not part of the step
    import ot  # noqa: F401

    model, cloud, rows = jko.AttentionModel(TWO_HEADS), tilted(n), []
    for k in range(1 + repeats):
        begin, busy = time.perf_counter(), time.process_time()
        result = solve_on_support(model, cloud, k * step, step, solver=solver)
        seconds, processor = time.perf_counter() - begin, time.process_time() - busy
        rows.append(
            {
                "solver": solver,
                "nodes": n,
                "step": step,
                "number": k,
                "objective": repr(result.objective),
                "gap": result.certificate.optimality_gap,
                "status": result.status.name,
                "iterations": result.stats.iterations,
                "plan_entries": result.plan.nnz,
                "seconds": round(seconds, 3),
                "processor_seconds": round(processor, 3),
                "peak_GiB": round(
                    resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 3
                ),
            }
        )
        cloud = result.cloud
    return rows


def solvers_study(p: Parameters, out: Path) -> list[Row]:
    """Both solvers on the two-head problem."""
    rows: list[Row] = []
    for n in p.nodes:
        for step in p.steps:
            for solver in GRID_SOLVERS:
                # a process of its own, whose peak memory is that of this case
                case = json.dumps([solver, n, step, p.repeats])
                command = [sys.executable, __file__, "--case", case]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                rows += json.loads(done.stdout)
    return rows


def pinning_study(p: Parameters, out: Path) -> list[Row]:
    """Speed over slope as nodes and steps vary."""
    model = jko.AttentionModel(CIRCLE_HEADS)
    rows, series = [], []
    for n in p.pinning_nodes:
        cloud, found = two_bumps(n), []
        for step in p.pinning_steps:
            result = solve_on_support(model, cloud, 0.0, step, solver="conditional_gradient")
            fineness = resolution(model, cloud, result)
            found.append(fineness)
            rows.append(
                {
                    "nodes": n,
                    "step": step,
                    "cells": fineness.cells,
                    "ratio": fineness.ratio,
                    "status": result.status.name,
                    "objective": repr(result.objective),
                }
            )
        series.append(found)
    labels = [f"n = {n}" for n in p.pinning_nodes]
    save_figure(plot_resolution(series, labels), out / "resolution.png")
    return rows


def reproof_study(p: Parameters, out: Path) -> list[Row]:
    """Token steps with weights, proved again by the convex program."""
    rows = []
    for seed in p.token_seeds:
        rng = np.random.default_rng(seed)
        a = rng.standard_normal((3, 3, 3))
        model = jko.AttentionModel(jko.Heads(a @ a.transpose(0, 2, 1) / 2))
        points = jko.TokenCloud.uniform(p.tokens, 3, rng).points
        cloud = jko.TokenCloud(points, rng.dirichlet(np.ones(p.tokens)))
        for step in (0.1, 0.3):
            result = jko.proximal_step(model, cloud, 0.0, step)
            for n in p.reproof_nodes:
                for solver in GRID_SOLVERS:
                    found = reprove(
                        result, model, cloud, sphere.fibonacci_nodes(n), solver=solver
                    )
                    rows.append(
                        {
                            "seed": seed,
                            "step": step,
                            "nodes": n,
                            "solver": solver,
                            "optimality": result.certificate.optimality,
                            "objective": repr(found.objective),
                            "optimum": repr(found.optimum),
                            "difference": found.difference,
                            "certified_gap": found.certified_gap,
                            "gap": found.gap,
                            "confirmed": found.confirmed,
                        }
                    )
    return rows


def token_curve(model: jko.AttentionModel, cloud: jko.TokenCloud, step: float, count: int):
    for k in range(count):
        cloud = jko.proximal_step(model, cloud, k * step, step, certify="local").cloud
    return cloud


def density_curve(
    model: jko.AttentionModel, cloud: jko.TokenCloud, nodes: np.ndarray, step: float, count: int
):
    density = on_nodes(cloud, nodes)
    for k in range(count):
        density = solve_on_support(
            model, density, k * step, step, solver="conditional_gradient"
        ).cloud
    return density


def curves_study(p: Parameters, out: Path) -> list[Row]:
    """Weak distance at t = 1 between tokens and densities, as both refine."""
    rows = []
    model = jko.AttentionModel(CIRCLE_HEADS)
    for n in p.curve_tokens:
        cloud = two_bumps(n)
        tokens = token_curve(model, cloud, 0.25, 4)
        for factor in p.curve_refinements:
            nodes = sphere.circle_nodes(factor * n)
            density = density_curve(model, cloud, nodes, 0.25, 4)
            rows.append(_curve_row(2, n, nodes, tokens, density))
    model = jko.AttentionModel(TWO_HEADS)
    for n in p.sphere_tokens:
        cloud = tilted(n)
        tokens = token_curve(model, cloud, 1.0, 2)
        for m in p.sphere_nodes:
            nodes = sphere.fibonacci_nodes(m)
            density = density_curve(model, cloud, nodes, 1.0, 2)
            rows.append(_curve_row(3, n, nodes, tokens, density))
    return rows


def _curve_row(
    dim: int, n: int, nodes: np.ndarray, tokens: jko.TokenCloud, density: jko.TokenCloud
) -> Row:
    spacing = node_spacing(nodes)
    distance = wasserstein(tokens, density)
    return {
        "dim": dim,
        "tokens": n,
        "nodes": nodes.shape[0],
        "spacing": spacing,
        "distance": distance,
        "distance_over_spacing": distance / spacing,
    }


def figures_study(p: Parameters, out: Path) -> list[Row]:
    """Densities on the sphere and on the circle; cells and averages."""
    n, rows = p.figure_nodes, []
    for name, model, cloud, step, bandwidth in (
        ("sphere", jko.AttentionModel(TWO_HEADS), tilted(n), 0.5, 4 / np.sqrt(n)),
        ("circle", jko.AttentionModel(CIRCLE_HEADS), two_bumps(n // 4), 0.25, 150 / n),
    ):
        clouds = [cloud]
        for k in range(3):
            result = solve_on_support(
                model, clouds[-1], k * step, step, solver="conditional_gradient"
            )
            clouds.append(result.cloud)
            occupied = float((result.cloud.weights > 0).mean())
            rows.append({"case": name, "number": k, "occupied_nodes": occupied})
        labels = [f"t = {k * step:g}" for k in range(4)]
        save_figure(plot_density(clouds, labels), out / f"density_{name}_cells.png")
        save_figure(plot_density(clouds, labels, bandwidth), out / f"density_{name}.png")
    return rows


STUDIES = {
    "solvers": solvers_study,
    "pinning": pinning_study,
    "reproof": reproof_study,
    "curves": curves_study,
    "figures": figures_study,
}


def save_rows(rows: list[Row], path: Path) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print(f"{path.name}: {len(rows)} rows")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, in seconds")
    parser.add_argument("--only", choices=list(STUDIES), help="one study instead of all")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("runs") / "grid_solvers")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(solve_case(*json.loads(options.case))))
        return
    parameters, out = (QUICK if options.quick else Parameters()), options.out
    out.mkdir(parents=True, exist_ok=True)
    for name, study in STUDIES.items():
        if options.only in (None, name):
            save_rows(study(parameters, out), out / f"{name}.csv")


if __name__ == "__main__":
    main()
