"""Charts of the pages as plain geometry, in the units of their SVG view boxes; `charts.html` draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from grampus_uq.stats.arrays import FloatArray

LEFT, RIGHT, TOP, BOTTOM = 44.0, 330.0, 8.0, 206.0
_COLOURS: Final = 8


class Bar(NamedTuple):
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float


def bars(values: Sequence[float], *, width: float, top: float, floor: float) -> list[Bar]:
    """Place one bar a value side by side from x = 0 to `width`, standing on y = `floor`, the highest up to y = `top`.

    Zero, or the lowest value where one is negative, has the least height (1.5), so that every bar is seen.
    """
    cell = width / len(values)
    low, high = min(*values, 0.0), max(*values, 0.0)
    scale = (floor - top) / (high - low) if high > low else 0.0
    heights = [max(1.5, (value - low) * scale) for value in values]
    inner = max(1.0, cell - min(3.0, cell * 0.3))
    corners = [(i * cell, floor - height, inner, height) for i, height in enumerate(heights)]
    return [Bar(*(round(value, 2) for value in corner)) for corner in corners]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One set of points with its label.

    points: shape (n, 2), `joined` by a line or not. radii: of a dot at each point; empty draws none. band: shape
    (m, 2), the corners of a shaded area. thin: further lines of the same colour, drawn faintly. colour: number of the
    colour and dash pattern; colours repeat after 8.
    """

    label: str
    points: FloatArray
    colour: int
    radii: Sequence[float] = ()
    band: FloatArray | None = None
    thin: Sequence[FloatArray] = ()
    dashed: bool = False
    joined: bool = True

    @property
    def style(self) -> str:
        """Its CSS classes."""
        return f"c{self.colour % _COLOURS} d{1 if self.dashed else self.colour // _COLOURS % 4}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over an x axis from `x_from` to `x_to` and a y axis from 0 to 1."""

    caption: str
    x_label: str
    y_label: str
    series: list[Series]
    x_ticks: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0)
    x_from: float = 0.0
    x_to: float = 1.0
    diagonal: bool = False
    y_ticks: Sequence[float] = field(default=(0.0, 0.25, 0.5, 0.75, 1.0), init=False)

    def x(self, value: float) -> float:
        """Place a value on the x axis."""
        return round(LEFT + (RIGHT - LEFT) * (value - self.x_from) / (self.x_to - self.x_from), 1)

    def y(self, value: float) -> float:
        """Place a value on the y axis."""
        return round(BOTTOM - (BOTTOM - TOP) * value, 1)

    def place(self, points: FloatArray) -> str:
        """Return the `points` attribute of a polyline or polygon."""
        return " ".join(f"{self.x(x)},{self.y(y)}" for x, y in points.tolist())
