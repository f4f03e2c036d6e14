"""Attention matrices of a checkpoint: by name from a file or a mapping, or given as arrays."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import finite_array

__all__ = ["BERT_NAMES", "Checkpoint", "attention_matrices"]

Array = NDArray[np.float64]
Checkpoint = str | PathLike[str] | Mapping[str, ArrayLike]

#: Names of the four attention matrices in BERT and its relatives.
BERT_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "query": "encoder.layer.{layer}.attention.self.query.weight",
        "key": "encoder.layer.{layer}.attention.self.key.weight",
        "value": "encoder.layer.{layer}.attention.self.value.weight",
        "output": "encoder.layer.{layer}.attention.output.dense.weight",
    }
)

NEEDED, OPTIONAL = ("query", "key"), ("value", "output")


def attention_matrices(
    checkpoint: Checkpoint | None, names: Mapping[str, str], given: Mapping[str, Any]
) -> dict[str, Array]:
    """Stacks (L, d, d) or (L, H d_h, d) by role, from a checkpoint or from ``given`` arrays.

    Raises
    ------
    ValueError, TypeError
        Naming the tensors that are missing and what the checkpoint holds instead, or the
        argument whose shape is wrong.
    ImportError
        For a file, where the package safetensors is not installed.
    """
    given = {role: value for role, value in given.items() if value is not None}
    if (checkpoint is None) == (not given):
        raise ValueError(
            "give either checkpoint or the arrays query and key, got "
            + ("both: checkpoint and " + ", ".join(given) if given else "neither")
        )
    if checkpoint is None:
        missing = [role for role in NEEDED if role not in given]
        if missing:
            raise ValueError(f"{missing[0]} must be given along with {', '.join(given)}")
        stacks = {role: finite_array(value, role, 3) for role, value in given.items()}
    else:
        stacks = _named(checkpoint, _checked_names(names))
    if ("value" in stacks) != ("output" in stacks):
        raise ValueError("value and output must come together: only their product acts on tokens")
    return stacks


def _checked_names(names: Mapping[str, str]) -> Mapping[str, str]:
    missing = [role for role in NEEDED if role not in names]
    unknown = [role for role in names if role not in NEEDED + OPTIONAL]
    if missing or unknown:
        raise ValueError(
            "names must have the keys query and key, and may have value and output, got "
            f"{sorted(names)}"
        )
    for role, pattern in names.items():
        if pattern.count("{layer}") != 1:
            raise ValueError(f"names[{role!r}] must hold '{{layer}}' once, got {pattern!r}")
    return names


def _named(checkpoint: Checkpoint, names: Mapping[str, str]) -> dict[str, Array]:
    if isinstance(checkpoint, Mapping):
        return _stacks(checkpoint, list(checkpoint), names)
    if not isinstance(checkpoint, str | PathLike):
        raise TypeError(
            "checkpoint must be a path to a safetensors file or a mapping of names to arrays, "
            f"got {type(checkpoint).__name__}"
        )
    path = Path(checkpoint)
    path = path / "model.safetensors" if path.is_dir() else path
    if not path.exists():
        raise FileNotFoundError(f"checkpoint {str(path)!r} does not exist")
    try:
        safetensors = import_module("safetensors")
    except ImportError:
        raise ImportError(
            "reading a checkpoint file needs the package safetensors: "
            "pip install 'jko[transformer]'"
        ) from None
    with safetensors.safe_open(str(path), framework="numpy") as file:
        return _stacks(_File(file), list(file.keys()), names)


class _File:
    """The tensors of an open safetensors file, read when asked for."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __getitem__(self, name: str) -> Any:
        try:
            return self.file.get_tensor(name)
        except TypeError as problem:
            raise TypeError(
                f"{name} is stored in a type numpy does not have ({problem}); convert it to float32"
            ) from None


def _stacks(
    tensors: Mapping[str, ArrayLike] | _File, available: list[str], names: Mapping[str, str]
) -> dict[str, Array]:
    layers = {role: _layers(available, pattern) for role, pattern in names.items()}
    # BERT's own names are a guess, and their optional half may be absent
    dropped = OPTIONAL if names is BERT_NAMES and not any(layers.get(r) for r in OPTIONAL) else ()
    roles = [role for role in names if role not in dropped]
    found = sorted(set().union(*(layers[role] for role in roles)))
    first, last = (found[0], found[-1]) if found else (0, 0)
    wanted = {
        role: [names[role].replace("{layer}", str(n)) for n in range(first, last + 1)]
        for role in roles
    }
    held = set(available)
    missing = [name for list_ in wanted.values() for name in list_ if name not in held]
    if missing:
        near = get_close_matches(missing[0], available, n=3, cutoff=0.3)
        raise ValueError(
            f"checkpoint lacks {', '.join(missing[:4])}{' ...' if len(missing) > 4 else ''}; "
            f"the closest of its {len(available)} names: {', '.join(near) or 'none'}. "
            "names= says how its tensors are called"
        )
    return {role: _stack(tensors, wanted[role]) for role in roles}


def _layers(available: list[str], pattern: str) -> set[int]:
    before, after = (re.escape(part) for part in pattern.split("{layer}"))
    matches = (re.fullmatch(f"{before}(\\d+){after}", name) for name in available)
    return {int(match[1]) for match in matches if match}


def _stack(tensors: Mapping[str, ArrayLike] | _File, names: list[str]) -> Array:
    layers = [finite_array(tensors[name], name, 2) for name in names]
    for name, layer in zip(names, layers, strict=True):
        if layer.shape != layers[0].shape:
            raise ValueError(
                f"{name} has shape {layer.shape}, but {names[0]} has {layers[0].shape}: "
                "all layers must be alike"
            )
    return np.array(layers)
