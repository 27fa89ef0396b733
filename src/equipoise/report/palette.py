"""One colour a policy family, the same in every plot, in light and dark.

Chosen so that any two of the five named families stay apart (CIE76 distance of 18 or more) for normal sight and under
simulated protanopia, deuteranopia and tritanopia (matrices of Machado, Oliveira and Fernandes 2009, severity 1), on
white and on near-black. Within a family, variants share the colour and differ by dash and by label.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["DASHES", "Palette"]

NAMED = {
    "least_batch": ("#2f78bf", "#8cc0f2"),
    "least_tokens": ("#35a98c", "#35d0a5"),
    "length_split": ("#dd9c22", "#f2b84b"),
    "dualpath": ("#7a1f5c", "#d858ad"),
    "equipoise": ("#c43a22", "#d9482f"),
}
"""Family to its colour on white and on near-black."""

OTHERS = (
    ("#6b7280", "#9aa3af"),
    ("#8a5a2b", "#c99a63"),
    ("#4a5568", "#c3cad4"),
    ("#5f7a1f", "#a9c65a"),
    ("#3f4fa8", "#8f9cf0"),
    ("#a8577e", "#e3a3c1"),
)
"""For all other families, in the order they appear; taken again from the start when they run out."""

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
"""Plotly's names of line styles, in the order they are handed out."""


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of one report.

    Parameters
    ----------
    colours : mapping of str to (str, str)
        Policy name to its colours in light and dark.
    """

    colours: dict[str, tuple[str, str]]

    @classmethod
    def of(cls, names: Iterable[str]) -> Palette:
        """Colours for these policy names."""
        found: dict[str, tuple[str, str]] = {}
        others = 0
        for name in names:
            if name in found:
                continue
            if name in NAMED:
                found[name] = NAMED[name]
            else:
                found[name] = OTHERS[others % len(OTHERS)]
                others += 1
        return cls(found)

    def light(self, name: str) -> str:
        """Colour on white."""
        return self.colours[name][0]

    def token(self, name: str) -> str:
        """Name of the CSS variable that holds the colour; the page puts its value in when it draws."""
        return f"--p-{list(self.colours).index(name)}"

    def css(self, *, dark: bool) -> str:
        """Declarations of all these variables."""
        return "".join(f"--p-{i}:{pair[dark]};" for i, pair in enumerate(self.colours.values()))
