"""The report of a verification: the theorem card, a moving picture, the figures behind the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

from ..plotting import Illustration
from ..runs.curve import Curve
from .explorer import explorer_head, explorer_html
from .page import Section, badge, cite_section, figure, page, save_drawings, table

__all__ = ["write_verification_report"]


class Row(Protocol):
    """A claim with its verdict."""

    @property
    def key(self) -> str: ...

    @property
    def claim(self) -> str: ...

    @property
    def measured(self) -> str: ...

    @property
    def expected(self) -> str: ...

    @property
    def how_known(self) -> str: ...

    @property
    def holds(self) -> bool: ...

    @property
    def failed(self) -> bool: ...

    @property
    def verdict(self) -> Enum: ...


class TheoremCard(Protocol):
    """What the report needs of a card; `jko.verify.Card` is one."""

    @property
    def rows(self) -> Sequence[Row]: ...

    @property
    def quick(self) -> bool: ...

    @property
    def failed(self) -> bool: ...

    @property
    def summary(self) -> str: ...

    @property
    def versions(self) -> Mapping[str, str]: ...

    def illustrations(self) -> Sequence[Illustration]: ...

    def curves(self) -> Sequence[Curve]: ...

    def write_json(self, path: str | PathLike[str]) -> Path: ...


def write_verification_report(card: TheoremCard, out: str | PathLike[str]) -> Path:
    """Write ``report.html``, ``card.json`` and ``figures/*.png`` into a directory.

    Parameters
    ----------
    card : Card
        From `jko.verify.run_verification`.
    out : path-like
        Made if missing; files of an earlier report are replaced.

    Returns
    -------
    Path
        The page: one file that opens offline.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    card.write_json(out / "card.json")
    drawn = card.illustrations()
    save_drawings(drawn, out / "figures")
    curves = card.curves()
    sections = [Section(key="card", title="Theorem card", body=_card_table(card.rows))]
    if curves:
        sections.append(_explorer_section(curves))
    if drawn:
        body = "\n".join(figure(entry) for entry in drawn)
        sections.append(Section(key="figures", title="Figures", body=body))
    sections.append(cite_section())
    text = page(
        "JKO and multi-head attention: the theory, measured",
        "Minimizing movements in the weighted Wasserstein distance of multi-head attention follow "
        "the gradient flow of the interaction energy. The transformer's own softmax flow is that "
        "gradient flow for one head and not for several; its defect is measured below."
        + (" Quick mode: reduced studies." if card.quick else ""),
        card.summary,
        not card.failed,
        sections,
        dict(card.versions),
        explorer_head() if curves else "",
    )
    path = out / "report.html"
    path.write_text(text, "utf-8")
    return path


def _kind(row: Row) -> str:
    if row.failed:
        return "bad"
    return "good" if row.holds else "note"


def _card_table(rows: Sequence[Row]) -> str:
    cells: list[Sequence[Any]] = [
        (
            row.claim,
            row.measured,
            row.expected,
            badge(str(row.verdict.value), _kind(row)),
            row.how_known,
        )
        for row in rows
    ]
    head = ("Claim", "Measured", "Expected", "Verdict", "How it is known")
    return table(head, cells, "card", raw=(3,))


def _explorer_section(curves: Sequence[Curve]) -> Section:
    body = (
        "<p>Three heads, 40 tokens, three curves from the same start. With the gradient flow as "
        "rings: JKO stays inside them, the softmax flow goes elsewhere, and the colour "
        "<em>defect per token</em> says where it leaves.</p>"
        f"{explorer_html(curves)}"
        "<noscript><p>The moving picture needs JavaScript; the figures below do not.</p></noscript>"
    )
    return Section(key="motion", title="Tokens over time", body=body, printed=False)
