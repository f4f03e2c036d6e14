"""A figure with what a reader must know to read it."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.figure import Figure

__all__ = ["Illustration"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Illustration:
    """A captioned figure.

    Attributes
    ----------
    key : str
        Short name, also the name of its file.
    title : str
    caption : str
        What is drawn, and what to look for.
    figure : Figure or None
        None if it could not be drawn; the caption then says why.
    """

    key: str
    title: str
    caption: str
    figure: Figure | None
