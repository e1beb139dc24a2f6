"""A drawing surface that becomes one SVG."""

from collections.abc import Sequence
from html import escape

INK, FAINT, GRID, PAPER = "#1f2933", "#65717d", "#e3e8ed", "#ffffff"
COMPLETE, PRUNED, FAILED, FRONT = "#2f6fb2", "#c98500", "#c0392b", "#0b7a53"
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
TITLE_SIZE, TEXT_SIZE = 15, 12

Point = tuple[float, float]


class Canvas:
    """Collects shapes; the later ones lie on top.

    Args:
        width: Its width in pixels.
        height: Its height.
        title: What stands above the drawing, and what a screen reader says.
    """

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self._shapes: list[str] = []
        self.text((16, 26), title, size=TITLE_SIZE, weight="600")

    def line(self, points: Sequence[Point], color: str, *, width: float = 1, title: str = "", dash: str = "") -> None:
        """Draw straight lines from point to point."""
        way = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self._add(
            f'polyline points="{way}" fill="none" stroke="{color}" stroke-width="{_number(width)}"{dashes}', title
        )

    def circle(
        self, at: Point, color: str, *, radius: float = 4, filled: bool = True, title: str = "", opacity: float = 1
    ) -> None:
        """Draw a disc, or a ring."""
        fill = f'fill="{color}" fill-opacity="{_number(opacity)}"' if filled else 'fill="none"'
        self._add(f'circle cx="{_number(at[0])}" cy="{_number(at[1])}" r="{radius:g}" {fill} stroke="{color}"', title)

    def cross(self, at: Point, color: str, *, radius: float = 4, title: str = "") -> None:
        """Draw a cross."""
        x, y = at
        ends = [(x - radius, y - radius), (x + radius, y + radius), (x - radius, y + radius), (x + radius, y - radius)]
        first, second, third, fourth = (f"{_number(a)} {_number(b)}" for a, b in ends)
        self._add(f'path d="M{first} L{second} M{third} L{fourth}" stroke="{color}" stroke-width="1.5"', title)

    def text(
        self,
        at: Point,
        text: str,
        *,
        anchor: str = "start",
        color: str = INK,
        size: int = TEXT_SIZE,
        weight: str = "400",
        title: str = "",
        turn: float = 0,
        halo: bool = False,
    ) -> None:
        """Write a line; `turn` is in degrees, around its beginning; a halo keeps lines behind it away."""
        x, y = (_number(value) for value in at)
        turned = f' transform="rotate({turn:g} {x} {y})"' if turn else ""
        style = f'fill="{color}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"{turned}'
        if halo:
            style += f' paint-order="stroke" stroke="{PAPER}" stroke-width="4"'
        inside = f"<title>{escape(title)}</title>" if title else ""
        self._shapes.append(f'<text x="{x}" y="{y}" {style}>{inside}{escape(text)}</text>')

    def svg(self) -> str:
        """Return the drawing."""
        width, height = _number(self.width), _number(self.height)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(self.title)}" font-family="{FONT}">',
                f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
                *self._shapes,
                "</svg>\n",
            ]
        )

    def _add(self, shape: str, title: str) -> None:
        name = shape.partition(" ")[0]
        self._shapes.append(f"<{shape}><title>{escape(title)}</title></{name}>" if title else f"<{shape}/>")


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def shortened(text: str, most: int = 18) -> str:
    """Return a text that fits where there is little room.

    >>> shortened("separable convolution", 10)
    'separable…'
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"
