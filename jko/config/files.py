"""Files that a configuration names: arrays of heads, and errors that say which file they are about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ..attention.heads import Heads

__all__ = ["make_heads", "naming", "read_arrays"]

Array = NDArray[np.float64]


@contextmanager
def naming(file: str) -> Iterator[None]:
    """Errors within it say which file they are about."""
    try:
        yield
    except (ValueError, TypeError, EOFError, BadZipFile) as problem:
        text = str(problem)
        raise ValueError(text if file in text else f"{file}: {text}") from problem


def make_heads(matrices: Any, weights: Any, symmetrize: bool) -> Heads:
    """Heads of the given matrices, or of their symmetric parts."""
    return Heads.symmetrized(matrices, weights) if symmetrize else Heads(matrices, weights)


def read_arrays(file: Path) -> dict[str, Array]:
    """The arrays of a file of heads; a bare one is that of the matrices."""
    if file.suffix not in (".npz", ".npy"):
        raise ValueError(f"file must end in .npz or .npy, got {str(file)!r}")
    loaded = np.load(file, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return {"matrices": loaded}
    with loaded:
        arrays = {name: loaded[name] for name in loaded.files}
    if "matrices" not in arrays:
        raise ValueError(f"{file} must hold an array 'matrices', got {sorted(arrays)}")
    return arrays
