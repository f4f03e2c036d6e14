"""The straightforward JKO step: autodiff through `ot.emd2` in PyTorch, minimised by L-BFGS."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Objective values of a minimisation and the seconds after which they were known."""

    seconds: np.ndarray
    values: np.ndarray

    def until(self, objective: float) -> tuple[float, int] | None:
        """Seconds and evaluations until the first value of at most ``objective``."""
        reached = np.flatnonzero(self.values <= objective)
        if reached.size == 0:
            return None
        return float(self.seconds[reached[0]]), int(reached[0]) + 1


class ReachedError(Exception):
    """The objective is low enough: nothing needs to be computed any more."""


def choose_threads(run: Callable[[], object]) -> int:
    """Let PyTorch use one thread or all of its default ones, whichever runs faster."""
    import torch

    times = {}
    for threads in sorted({1, torch.get_num_threads()}, reverse=True):
        torch.set_num_threads(threads)
        run()
        trials = []
        for _ in range(3):
            start = time.perf_counter()
            run()
            trials.append(time.perf_counter() - start)
        times[threads] = sorted(trials)[1]
    best = min(times, key=times.__getitem__)
    torch.set_num_threads(best)
    return best


def torch_step(
    points: np.ndarray,
    weights: np.ndarray,
    matrices: np.ndarray,
    head_weights: np.ndarray,
    step: float,
    objective: float = -np.inf,
    change: float = 0.0,
) -> Trace:
    """Minimise ``W^2 / (2 tau) + E`` over positions until the value is at most ``objective``.

    Or until L-BFGS stops by itself because values or positions change by less than ``change``.

    Positions are normalised inside the objective; the ground cost is the effective mobility at
    the start times the squared great-circle distance.
    """
    import ot
    import torch

    start = time.perf_counter()
    x, a, heads, shares = (
        torch.tensor(array, dtype=torch.float64)
        for array in (points, weights, matrices, head_weights)
    )
    beta = 1 / (shares @ (1 / (torch.exp(x @ heads @ x.T) @ a)))
    y = x.clone().requires_grad_(True)
    optimiser = torch.optim.LBFGS(
        [y],
        max_iter=1000,
        max_eval=2000,
        history_size=20,
        tolerance_grad=0.0,
        tolerance_change=change,
        line_search_fn="strong_wolfe",
    )
    seconds, values = [], []

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        u = y / y.norm(dim=1, keepdim=True)
        chord = torch.cdist(x, u, compute_mode="donot_use_mm_for_euclid_dist")
        cost = beta[:, None] * (2 * torch.asin(torch.clamp(chord / 2, max=1))) ** 2
        transport = ot.emd2(a, a, cost) / (2 * step)
        kernel = torch.exp(u @ heads @ u.T)
        value = transport + 0.5 * shares @ ((kernel @ a) @ a)
        values.append(value.item())
        seconds.append(time.perf_counter() - start)
        if values[-1] <= objective:
            raise ReachedError
        value.backward()
        return value

    with suppress(ReachedError):
        optimiser.step(closure)
    return Trace(seconds=np.array(seconds), values=np.array(values))
