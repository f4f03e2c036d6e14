"""From a configuration to the objects and arguments of a run."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ValidationError

from ..attention.model import AttentionModel
from ..measures import TokenCloud
from ..runs.movement import step_times
from .errors import ConfigError, describe_errors
from .tables import RunConfig

__all__ = [
    "build_cloud",
    "build_model",
    "example_config",
    "flow_options",
    "load_config",
    "movement_options",
    "parse_config",
]

Built = TypeVar("Built")

#: Calls that the library's messages recommend, as keys of a file.
KEYS = {
    "TokenCloud.normalized divides by the norms": "normalize = true in [cloud] divides by the norms",
    "Heads.symmetrized(matrices) replaces": "symmetrize = true in {heads} replaces",
}

#: Kinks of the weight path closer than this are rough: adaptive integrators would restart at
#: every one of them.
ROUGH_SPACING = 0.1

#: Largest fixed step on rough paths.
ROUGH_STEP = 0.01


def example_config() -> str:
    """A commented configuration: the article's case on the sphere S^2."""
    return files("jko.config").joinpath("example.toml").read_text(encoding="utf-8")


def parse_config(text: str, name: str = "config") -> RunConfig:
    """The configuration written in the TOML ``text``; ``name`` is what errors call it.

    Raises
    ------
    ConfigError
        Naming every table, key and value that is wrong.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(f"{name} is not valid TOML: {problem}") from None
    try:
        return RunConfig.model_validate(data)
    except ValidationError as problem:
        raise ConfigError(describe_errors(problem, data, RunConfig, name)) from None


def load_config(path: str | PathLike[str]) -> RunConfig:
    """Read the configuration file ``path``; see `parse_config`."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"cannot read {file}: {problem}") from None
    return parse_config(text, str(file))


def build_cloud(config: RunConfig, directory: str | PathLike[str] = ".") -> TokenCloud:
    """The initial cloud; file names are relative to ``directory``.

    Raises
    ------
    ConfigError
        If the numbers or the file make no cloud.
    """
    return _built("[cloud]", lambda: config.cloud.build(Path(directory)))


def build_model(
    config: RunConfig, cloud: TokenCloud, directory: str | PathLike[str] = "."
) -> AttentionModel:
    """The model, checked against the dimension of ``cloud`` and the span of the run.

    Raises
    ------
    ConfigError
        If the numbers or files make no model, or one that does not fit.
    """
    table, (start, end) = config.weights, config.run.span
    source = "[weights.heads]" if "heads" in type(table).model_fields else "[weights]"
    path = _built("[weights]", lambda: table.build(Path(directory), cloud.dim, end), source)
    if path(start).dim != cloud.dim:
        raise ConfigError(
            f"[weights] gives heads of dimension {path(start).dim}, [cloud] tokens of "
            f"dimension {cloud.dim}"
        )
    _built("[run] and [weights]", lambda: path(end))
    return _built(
        "[weights]", lambda: AttentionModel(path, sign=table.sign, evaluator=table.evaluator)
    )


def movement_options(config: RunConfig) -> dict[str, Any]:
    """The keyword arguments of `jko.minimizing_movement`."""
    run = config.run
    names = (
        "step", "rtol", "scheme", "cost", "solver", "tolerance", "max_evaluations", "certify"
    )  # fmt: skip
    return {"t_span": run.span, **{name: getattr(run, name) for name in names}}


def flow_options(
    config: RunConfig, model: AttentionModel, times: ArrayLike | None = None
) -> dict[str, Any]:
    """The keyword arguments of `jko.particle_flow`, ``velocity`` apart.

    ``times`` are those of the movement, at which states are kept; by default its fixed steps.

    ``method = "auto"`` takes DOP853 for smooth weight paths.  On rough ones, where an adaptive
    integrator would restart at every kink, it takes RK4 on the path's own grid (divided if
    it is wider than 0.01): between kinks the path is smooth.  On an Ornstein-Uhlenbeck path of
    grid 0.005 (50 tokens, 10 heads, t = 2) that is off by 3e-8, Heun's method by 2e-4, and both
    by 1e-3 with twice the step, which runs over kinks.
    """
    flows, (start, end) = config.flows, config.run.span
    if times is None and config.run.step is not None:
        times = step_times(start, end, config.run.step)
    options: dict[str, Any] = {
        "t_span": (start, end),
        "method": flows.method,
        "rtol": flows.rtol,
        "step": flows.step,
        "t_eval": times,
    }
    if flows.method == "auto":
        spacing = _kink_spacing(model, start, end)
        if spacing >= ROUGH_SPACING:
            return options | {"method": "DOP853"}
        parts = max(1, int(np.ceil(spacing / ROUGH_STEP - 1e-9)))
        return options | {"method": "rk4", "step": spacing / parts}
    return options


def _kink_spacing(model: AttentionModel, start: float, end: float) -> float:
    kinks = np.unique([start, *model.path.breakpoints(start, end), end])
    return float(np.median(np.diff(kinks))) if kinks.size > 2 else np.inf


def _built(table: str, build: Callable[[], Built], source: str = "") -> Built:
    """What ``build`` returns, its errors in the words of the file; ``source`` is the table with the file name."""
    source = source or table
    try:
        return build()
    except FileNotFoundError as problem:
        raise ConfigError(f"{source} file: no such file {str(problem.filename)!r}") from problem
    except (ValueError, TypeError, OSError) as problem:
        text = str(problem)
        for call, key in KEYS.items():
            text = text.replace(call, key.format(heads=source))
        raise ConfigError(f"{table}: {text}") from problem
