"""(b), (c), (e): velocities, dense and harmonic, against plain formulas and against the floor."""

from __future__ import annotations

from collections.abc import Sequence

import jko
import numpy as np
from _measure import Section, Verdict, duration, interleaved, median, ratio
from _problems import bounded, gaussian
from jko.attention import fourier
from jko.attention.threads import run_tasks
from jko.attention.tiles import SERIAL_PRODUCT


def einsum_velocity(
    points: np.ndarray,
    weights: np.ndarray,
    matrices: np.ndarray,
    head_weights: np.ndarray,
    optimize: bool,
) -> np.ndarray:
    """The gradient velocity by its formula, with arrays (H, n, n).

    ``optimize`` lets `np.einsum` hand contractions to BLAS.
    """
    moved = np.einsum("hde,je->hjd", matrices, points, optimize=optimize)
    kernel = np.exp(np.einsum("id,hjd->hij", points, moved, optimize=optimize))
    mobility = np.einsum("hij,j->hi", kernel, weights, optimize=optimize)
    pull = np.einsum("hij,j,hjd->hid", kernel, weights, moved, optimize=optimize)
    gradient = np.einsum("h,hid->id", head_weights, pull)
    gradient -= np.einsum("id,id->i", gradient, points)[:, None] * points
    return -np.einsum("h,hi->i", head_weights, 1 / mobility)[:, None] * gradient


def dense_against_einsum(quick: bool) -> Section:
    n, heads, repetitions = (150, 10, 1) if quick else (1000, 10, 15)
    model, cloud = gaussian(n, heads)
    dense = jko.AttentionModel(model.path, evaluator="dense")
    shares = model.heads(0)
    arguments = (cloud.points, cloud.weights, shares.matrices, shares.weights)
    sides = {
        "einsum": lambda: einsum_velocity(*arguments, optimize=False),
        "einsum, optimised": lambda: einsum_velocity(*arguments, optimize=True),
        "dense": lambda: dense.velocity(cloud, 0),
        "auto": lambda: model.velocity(cloud, 0),
    }
    times = interleaved(sides, repetitions)
    plain = sides["einsum"]()
    rows = [
        [
            name,
            duration(median(times[name])),
            *(f"{ratio(times[other], times[name]):.1f}" for other in list(sides)[:2]),
            f"{np.abs(side() - plain).max() / np.abs(plain).max():.1e}",
        ]
        for name, side in sides.items()
    ]
    factors = {name: ratio(times[name], times["dense"]) for name in list(sides)[:2]}
    return Section(
        title="One velocity against the plain formula",
        text=(
            f"n = {n}, H = {heads}. The formula by `np.einsum` with arrays (H, n, n), as it is "
            "written and with `optimize=True`, which hands the contractions to BLAS; our dense sums; "
            'and what `evaluator="auto"` does.'
        ),
        columns=("side", "time", "einsum / time", "optimised / time", "difference"),
        rows=rows,
        verdicts=[
            Verdict(
                name=f"(b) dense velocity against the formula by {name}",
                target="at least 4 times faster",
                measured=f"{factor:.1f} times",
                met=factor >= 4,
            )
            for name, factor in factors.items()
        ],
    )


def harmonic_against_dense(quick: bool) -> Section:
    sizes = (300, 1000) if quick else (1000, 3000, 10_000, 30_000, 100_000)
    rows, verdicts = [], []
    for heads, target in ((1, 30), (10, 100)):
        for n in sizes:
            model, cloud = bounded(n, heads, evaluator="harmonic")
            dense = jko.AttentionModel(model.path, evaluator="dense")
            values: dict[str, np.ndarray] = {}

            def velocity(name: str, side: jko.AttentionModel) -> None:
                values[name] = side.velocity(cloud, 0)  # noqa: B023  called in this turn

            repetitions = 1 if quick else 5
            sides = {
                "dense": lambda: velocity("dense", dense),  # noqa: B023
                "harmonic": lambda: velocity("harmonic", model),  # noqa: B023
            }
            if n >= 30_000:
                # one dense run takes long enough to be its own warm-up
                times = interleaved({"dense": sides.pop("dense")}, 1, warm=False)
                times |= interleaved(sides, repetitions)
            else:
                times = interleaved(sides, repetitions)
            size = np.linalg.norm(values["dense"], axis=1)
            gap = float(np.abs(values["harmonic"] - values["dense"]).max() / size.max())
            factor = median(times["dense"]) / median(times["harmonic"])
            rows.append(
                [
                    heads,
                    n,
                    duration(median(times["dense"])),
                    duration(median(times["harmonic"])),
                    f"{factor:.1f}",
                    f"{gap:.1e}",
                ]
            )
        verdicts.append(
            Verdict(
                name=f"(c) harmonic against our dense sums, {heads} head{'s'[: heads > 1]}, n = {n}",
                target=f"at least {target} times faster, agreeing to 1e-10",
                measured=f"{factor:.0f} times, {gap:.1e}",
                met=factor >= target and gap <= 1e-10,
            )
        )
    return Section(
        title="Harmonic against dense velocities",
        text=(
            "Gradient velocity, uniform tokens on S², largest |D| = 3, evaluators by name. Ratios are "
            "those of the median times; from 30 000 tokens on the dense side runs once."
        ),
        columns=("heads", "n", "dense", "harmonic", "ratio", "difference"),
        rows=rows,
        verdicts=verdicts,
    )


class _Recorded:
    """The products of a harmonic pass: shapes of the moments and of the series."""

    def __init__(self, model: jko.AttentionModel, cloud: jko.TokenCloud) -> None:
        self.series: list[fourier.Series] = []
        plain = fourier.Series.evaluate

        def evaluate(series: fourier.Series, *args: object, **options: object) -> None:
            self.series.append(series)
            plain(series, *args, **options)

        fourier.Series.evaluate = evaluate
        try:
            model.velocity(cloud, 0)
        finally:
            fourier.Series.evaluate = plain


def products_alone(series: Sequence[fourier.Series], points: np.ndarray, order: int) -> None:
    """The matrix products of a pass, on the features of one block instead of every block's."""
    n = points.shape[0]
    for one in series:
        degree = one.degree + order
        block = max(64, min(fourier.BLOCK, SERIAL_PRODUCT // (degree + 2) ** 2))
        pairs = fourier.features(points[:block].T, degree)

        def first(_: int, pairs: list[tuple[np.ndarray, np.ndarray]] = pairs) -> None:
            for inner, outer in pairs:
                inner @ outer.T

        work = 16.0 * degree * n
        run_tasks(first, range(0, n, block), work)
        outer, rows, columns, inner = np.max([c.shape for c in one.coefficients], axis=0)
        room = min(fourier.PRODUCT_ENTRIES // outer, SERIAL_PRODUCT // inner) // columns
        block = int(max(64, min(fourier.BLOCK, room)))
        height = int(max(1, room // block))
        factors = fourier.features(points[:block].T, one.degree)
        matrices = [
            [fourier._flat(c[:, k : k + height]) for c in one.coefficients]
            for k in range(0, int(rows), height)
        ]

        def second(_: int, matrices=matrices, factors=factors) -> None:
            for flat in matrices:
                for matrix, (i, _o) in zip(flat, factors, strict=True):
                    np.matmul(matrix, i[: matrix.shape[2]])

        run_tasks(second, range(0, n, block), work)


def spherical_products(n: int, degree: int, heads: int) -> tuple[np.ndarray, ...]:
    """Arrays of the two products that a plain expansion in spherical harmonics would need.

    Features (n, (L + 1)^2), right factors of the moments (n, 4) and of the series
    ((L + 1)^2, H + 3); their values do not matter.
    """
    rng = np.random.default_rng(0)
    size = (degree + 1) ** 2
    features = rng.standard_normal((n, size))
    return features, rng.standard_normal((n, 4)), rng.standard_normal((size, heads + 3))


def harmonic_against_its_products(quick: bool) -> Section:
    n, repetitions = (2000, 1) if quick else (100_000, 7)
    rows, factors = [], []
    for heads in (1, 10):
        model, cloud = bounded(n, heads, evaluator="harmonic")
        series = _Recorded(model, cloud).series
        features, masses, table = spherical_products(n, series[0].degree, heads)
        times = interleaved(
            {
                "velocity": lambda: model.velocity(cloud, 0),  # noqa: B023
                "own": lambda: products_alone(series, cloud.points, 1),  # noqa: B023
                "plain": lambda: (features.T @ masses, features @ table),  # noqa: B023
            },
            repetitions,
        )
        factors = [ratio(times["velocity"], times[name]) for name in ("own", "plain")]
        rows.append(
            [
                heads,
                "/".join(str(one.degree) for one in series),
                duration(median(times["velocity"])),
                duration(median(times["own"])),
                f"{factors[0]:.1f}",
                duration(median(times["plain"])),
                f"{factors[1]:.1f}",
            ]
        )
    return Section(
        title="A harmonic velocity against matrix products alone",
        text=(
            f"n = {n}, largest |D| = 3. Two floors. *Own products*: the two matrix products of the "
            "pass, in the same blocks and on as many threads: features times features for the "
            "moments, series coefficients times features at the targets. *Plain products*: what an "
            "expansion in spherical harmonics of the same degree L would multiply, features "
            "(n, (L + 1)²) given, with 4 columns for the moments and H + 3 for the series. Neither "
            "contains features, sums between nodes, logarithms, means or the velocity."
        ),
        columns=("heads", "L", "velocity", "own products", "ratio", "plain products", "ratio"),
        rows=rows,
        verdicts=[
            Verdict(
                name=f"(e) one gradient velocity against {which}, n = {n}, H = 10",
                target="within 5 times",
                measured=f"{factor:.1f} times",
                met=factor <= 5,
            )
            for which, factor in zip(
                ("its own matrix products", "those of spherical harmonics"), factors, strict=True
            )
        ],
    )
