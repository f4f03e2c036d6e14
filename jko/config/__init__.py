"""Run configurations: TOML files, validated in full before any work.

A file has the tables ``[cloud]``, ``[weights]`` (with ``[weights.heads]``), ``[run]``, ``[flows]``,
``[output]`` and ``[converge]``; `example_config` is one with comments.  Unknown keys are errors that name the
nearest known one, and all errors of a file are reported together.
"""

from .errors import ConfigError
from .read import (
    build_cloud,
    build_model,
    example_config,
    flow_options,
    load_config,
    movement_options,
    parse_config,
)
from .tables import RunConfig

__all__ = [
    "ConfigError",
    "RunConfig",
    "build_cloud",
    "build_model",
    "example_config",
    "flow_options",
    "load_config",
    "movement_options",
    "parse_config",
]
