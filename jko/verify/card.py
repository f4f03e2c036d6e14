"""The theorem card: one row per claim, each with a verdict computed from what was measured."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from ..plotting.illustration import Illustration
    from ..runs.curve import Curve
    from .laboratory import Laboratory

__all__ = ["Card", "Claim", "Verdict", "short"]


#: A hyphen that stands for a minus.
MINUS = re.compile(r"(?<=\de)-(?=\d)|(?<![\w\-−])-(?=\.?\d)")


def short(value: float, digits: int = 0) -> str:
    """Scientific notation for text: ``1e−8``, ``3.4e−5``, ``0`` (a minus does not break lines)."""
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    return f"{mantissa}e{int(exponent)}".replace("-", "−")


def true_minus(text: str) -> str:
    """Hyphens before digits as minus signs: in ``-0.3`` and in ``1e-8``, not within words."""
    return MINUS.sub("−", text)


class Verdict(Enum):
    """What became of a claim; the value is what a reader sees."""

    HOLDS = "holds"
    FAILS_AS_EXPECTED = "fails, as expected"
    FAILS = "FAILS"
    HOLDS_UNEXPECTEDLY = "HOLDS, but should fail"

    @property
    def failed(self) -> bool:
        """Whether the software, or the theory as we understand it, is wrong here."""
        return self in (Verdict.FAILS, Verdict.HOLDS_UNEXPECTEDLY)


#: Colours of the verdicts in a terminal.
TERMINAL_STYLES = {
    Verdict.HOLDS: "green",
    Verdict.FAILS_AS_EXPECTED: "yellow",
    Verdict.FAILS: "bold red",
    Verdict.HOLDS_UNEXPECTEDLY: "bold red",
}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One row of the card.

    Attributes
    ----------
    key : str
        Short name.
    claim : str
        The claim as a sentence.
    measured : str
        What was measured, in words and numbers.
    expected : str
        What the measurement is compared with, tolerances included.
    holds : bool
        Whether the numbers meet the claim.
    expected_to_hold : bool
        False for claims that are known to be wrong, which must then fail.
    how_known : str
        Why the expectation is what it is: theorem, identity, closed form, measured order.
    numbers : mapping of str to float
        The numbers behind ``measured``.
    """

    key: str
    claim: str
    measured: str
    expected: str
    holds: bool
    how_known: str
    expected_to_hold: bool = True
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("claim", "measured", "expected", "how_known"):
            object.__setattr__(self, name, true_minus(getattr(self, name)))

    @property
    def verdict(self) -> Verdict:
        """The measurement against the expectation."""
        if self.holds:
            return Verdict.HOLDS if self.expected_to_hold else Verdict.HOLDS_UNEXPECTEDLY
        return Verdict.FAILS if self.expected_to_hold else Verdict.FAILS_AS_EXPECTED

    @property
    def failed(self) -> bool:
        """Whether the verdict differs from the expectation."""
        return self.verdict.failed

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "key": self.key,
            "claim": self.claim,
            "measured": self.measured,
            "expected": self.expected,
            "verdict": self.verdict.name,
            "expected_to_hold": self.expected_to_hold,
            "how_known": self.how_known,
            "numbers": {name: float(value) for name, value in self.numbers.items()},
        }


@dataclass(frozen=True, kw_only=True)
class Card:
    """The theorem card.

    Attributes
    ----------
    rows : tuple of Claim
    quick : bool
        Whether it was measured in quick mode.
    seconds : float
        Wall time of the measurements.
    versions : mapping of str to str
        Versions of this package and of what it stands on.
    evidence : Laboratory or None
        The runs behind the rows.
    illustrate : callable or None
        Draws figures from the evidence.
    """

    rows: tuple[Claim, ...]
    quick: bool
    seconds: float
    versions: Mapping[str, str] = field(default_factory=dict)
    evidence: Laboratory | None = None
    illustrate: Callable[[Laboratory], Sequence[Illustration]] | None = None

    @property
    def failed(self) -> bool:
        """Whether some claim that should hold fails, or one that should fail holds."""
        return any(row.failed for row in self.rows)

    @property
    def failures(self) -> tuple[Claim, ...]:
        """The rows behind `failed`."""
        return tuple(row for row in self.rows if row.failed)

    def __getitem__(self, key: str) -> Claim:
        """The row of that key."""
        for row in self.rows:
            if row.key == key:
                return row
        raise KeyError(f"no claim {key!r}; the card has {', '.join(r.key for r in self.rows)}")

    @property
    def summary(self) -> str:
        """The verdicts in one sentence."""
        counts = dict.fromkeys(Verdict, 0)
        for row in self.rows:
            counts[row.verdict] += 1
        parts = [f"{counts[Verdict.HOLDS]} hold"]
        parts += [f"{counts[Verdict.FAILS_AS_EXPECTED]} fail as expected"]
        wrong = counts[Verdict.FAILS] + counts[Verdict.HOLDS_UNEXPECTEDLY]
        parts += [f"{wrong} differ from what is expected" if wrong else "none differs"]
        return f"{len(self.rows)} claims: {', '.join(parts)} ({self.seconds:.0f} s)"

    def table(self) -> Table:
        """A rich table for the terminal."""
        from rich.markup import escape
        from rich.table import Table

        table = Table(title="Theorem card", caption=self.summary, show_lines=True, expand=True)
        table.add_column("Claim", ratio=5, overflow="fold")
        table.add_column("Measured", ratio=6, overflow="fold")
        table.add_column("Expected, and how it is known", ratio=5, overflow="fold")
        table.add_column("Verdict", width=9)
        for row in self.rows:
            style = TERMINAL_STYLES[row.verdict]
            expected = f"{escape(row.expected)}\n[dim]{escape(row.how_known)}[/]"
            verdict = f"[{style}]{escape(row.verdict.value)}[/]"
            table.add_row(escape(row.claim), escape(row.measured), expected, verdict)
        return table

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "failed": self.failed,
            "summary": self.summary,
            "quick": self.quick,
            "seconds": self.seconds,
            "versions": dict(self.versions),
            "rows": [row.to_dict() for row in self.rows],
        }

    def write_json(self, path: str | PathLike[str]) -> Path:
        """Write `to_dict` to a file."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n", "utf-8")
        return path

    def illustrations(self) -> Sequence[Illustration]:
        """The figures behind the rows; none without evidence."""
        if self.evidence is None or self.illustrate is None:
            return ()
        return self.illustrate(self.evidence)

    def curves(self) -> Sequence[Curve]:
        """JKO and both flows of one case, for the moving picture; none without evidence."""
        return () if self.evidence is None else self.evidence.showcase()
