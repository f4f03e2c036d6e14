"""Zarr groups that hold curves: opened, and their metadata gathered once they are finished."""

from __future__ import annotations

import warnings
from os import PathLike
from pathlib import Path
from typing import Any

__all__ = ["FORMAT", "Group", "StoreError", "consolidate", "open_group", "scatter"]

Group = Any  # zarr.Group; zarr is imported where it is used

FORMAT = "jko curve 1"


class StoreError(ValueError):
    """A path that holds no curve, or must not be written."""


def open_group(path: str | PathLike[str], mode: Any) -> Group:
    """The group of a curve; an error that lists the curves below where there is none."""
    import zarr

    place = Path(path)
    if not place.exists():
        raise StoreError(f"{place} does not exist")
    try:
        group = zarr.open_group(store=place, mode=mode, zarr_format=3, use_consolidated=False)
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError) as problem:
        raise StoreError(f"{place} holds no curve: {_curves_in(place) or problem}") from problem
    if group.attrs.get("format") != FORMAT:
        told = _curves_in(place) or f"its format is {group.attrs.get('format')!r}, not {FORMAT!r}"
        raise StoreError(f"{place} holds no curve: {told}")
    return group


def _curves_in(place: Path) -> str:
    """A sentence with the curves of a run directory, or of the store in it."""
    found = [
        file.parent
        for pattern in ("*/zarr.json", "*/*/zarr.json")
        for file in sorted(place.glob(pattern))
        if FORMAT in file.read_text("utf-8", errors="replace")
    ]
    return f"load one of those in it, {', '.join(map(str, found))}" if found else ""


def consolidate(path: Path) -> None:
    """Put the metadata of a finished curve, or of a group of them, into one file, where xarray looks first.

    Whoever opens the store for writing later does without it, and the first attribute written drops
    it: it never tells of sizes that have changed since.  See `scatter`.
    """
    import zarr

    with warnings.catch_warnings():
        # zarr says that other readers may not know it; they read the arrays' own metadata
        warnings.filterwarnings("ignore", "Consolidated metadata is currently not part")
        zarr.consolidate_metadata(path, zarr_format=3)


def scatter(path: Path) -> None:
    """Undo `consolidate`, before something in the group is written again."""
    import zarr

    group = zarr.open_group(store=path, mode="r+", zarr_format=3, use_consolidated=False)
    group.attrs.put(group.attrs.asdict())
