"""Pictures as SVG text that needs nothing else: no script, no font, no file beside it."""

from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

INK, FAINT, PALE, GRID, PAPER = "#1f2933", "#65717d", "#9aa5b1", "#e3e8ed", "#ffffff"
PALETTE = ("#2f6fb0", "#d1603d", "#3b8f5c", "#8a5cb0", "#b8872b", "#2a8f98", "#c0507f", "#667788")
"""Told apart on white, also by most who see few colors; after the last come the same again, dashed."""
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
TITLE_SIZE, TEXT_SIZE = 15.0, 12.0
CHARACTER = 0.58
"""How wide a letter is on average, in heights of the text."""
MARGIN = 16.0

Point = tuple[float, float]


def color_at(place: int) -> str:
    """Return the color of the thing with this number."""
    return PALETTE[place % len(PALETTE)]


def text_width(text: str, size: float = TEXT_SIZE) -> float:
    """Return how wide a text is, about."""
    return CHARACTER * size * len(text)


def shorten(text: str, width: float, size: float = TEXT_SIZE) -> str:
    """Return a text that fits into a width, with its end left out where it does not.

    >>> shorten("separable convolution", 60.0)
    'separab…'
    """
    most = max(int(width / (CHARACTER * size)), 2)
    return text if len(text) <= most else f"{text[: most - 1]}…"


class Canvas:
    """Shapes on white paper; what is drawn later lies above.

    Every shape takes a `kind`, its class in the SVG, and most a `title`, which is shown when one points at it.

    Args:
        title: What stands above the drawing, and what a screen reader says.
        width: Its width in pixels; 0 is as far as what is drawn reaches, and a margin.
        height: Its height.

    Attributes:
        reach: How far to the right and down anything has been drawn.
    """

    def __init__(self, title: str, width: float = 0.0, height: float = 0.0) -> None:
        self.title, self.reach = title, (0.0, 0.0)
        self._size = (width, height)
        self._elements: list[str] = []
        self.text((MARGIN, 26.0), title, size=TITLE_SIZE, bold=True)

    def text(
        self,
        at: Point,
        text: str,
        *,
        size: float = TEXT_SIZE,
        color: str = INK,
        anchor: str = "start",
        bold: bool = False,
        within: float | None = None,
        turn: float = 0.0,
        halo: bool = False,
        title: str = "",
        kind: str = "",
    ) -> None:
        """Write a line; where it must fit `within` a width, the whole of it is shown when one points at it.

        `turn` is in degrees, around its beginning; a halo keeps lines behind it away.
        """
        (x, y), shown = at, text if within is None else shorten(text, within, size)
        around = {"paint_order": "stroke", "stroke": PAPER, "stroke_width": 4} if halo else {}
        self._add(
            "text", escape(shown), title or (text if shown != text else ""), x=x, y=y, font_size=size, fill=color,
            text_anchor=anchor, font_weight="600" if bold else "", class_=kind,
            transform=f"rotate({_number(turn)} {_number(x)} {_number(y)})" if turn else "", **around,
        )  # fmt: skip
        start = {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
        self._extend((x + (1 - start) * text_width(shown, size), y + 0.3 * size))

    def line(
        self,
        points: Sequence[Point],
        color: str = INK,
        *,
        width: float = 1.0,
        dash: str = "",
        title: str = "",
        kind: str = "",
    ) -> None:
        """Draw straight lines from point to point."""
        self._add(
            "polyline", "", title, points=" ".join(f"{_number(x)},{_number(y)}" for x, y in points), fill="none",
            stroke=color, stroke_width=width, stroke_linejoin="round", stroke_dasharray=dash, class_=kind,
        )  # fmt: skip
        self._extend(*points)

    def wire(
        self,
        start: Point,
        end: Point,
        *,
        level: float | None = None,
        bend: float = 26.0,
        color: str = INK,
        dash: str = "",
        kind: str = "",
    ) -> None:
        """Draw a line that leaves and arrives level; with a `level` of its own it goes around what lies between."""
        if level is None:
            way = _bow(start, end, max((end[0] - start[0]) / 2, 12.0))
        else:
            there, back = (start[0] + bend, level), (end[0] - bend, level)
            way = f"{_bow(start, there, bend / 2)} L {_pair(back)} {_bow(back, end, bend / 2)}"
            self._extend(there, back)
        path = f"M {_pair(start)} {way}"
        self._add("path", d=path, fill="none", stroke=color, stroke_width=1.6, stroke_dasharray=dash, class_=kind)
        self._extend(start, end)

    def box(
        self,
        at: Point,
        width: float,
        height: float,
        *,
        fill: str = PAPER,
        edge: str = INK,
        dash: str = "",
        title: str = "",
        kind: str = "",
    ) -> None:
        """Draw a box with round corners, of which `at` is the upper left one."""
        x, y = at
        self._add(
            "rect", "", title, x=x, y=y, width=width, height=height, rx=5, fill=fill, stroke=edge,
            stroke_dasharray=dash, class_=kind,
        )  # fmt: skip
        self._extend((x + width, y + height))

    def circle(
        self,
        at: Point,
        color: str,
        *,
        radius: float = 4.0,
        filled: bool = True,
        opacity: float = 1.0,
        title: str = "",
        kind: str = "",
    ) -> None:
        """Draw a disc, or a ring."""
        fill = {"fill": color, "fill_opacity": opacity} if filled else {"fill": "none"}
        self._add("circle", "", title, cx=at[0], cy=at[1], r=radius, **fill, stroke=color, class_=kind)
        self._extend((at[0] + radius, at[1] + radius))

    def cross(self, at: Point, color: str, *, radius: float = 4.0, title: str = "") -> None:
        """Draw a cross."""
        (x, y), far = at, radius
        strokes = [((x - far, y - far), (x + far, y + far)), ((x - far, y + far), (x + far, y - far))]
        path = " ".join(f"M {_pair(start)} L {_pair(end)}" for start, end in strokes)
        self._add("path", "", title, d=path, stroke=color, stroke_width=1.5)
        self._extend((x + far, y + far))

    def svg(self) -> str:
        """Return the whole as the text of an SVG file."""
        size = zip(self._size, self.reach, strict=True)
        width, height = (_number(given or reach + MARGIN) for given, reach in size)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" aria-label={quoteattr(self.title)} font-family="{FONT}">'
        )
        paper = f'<rect width="{width}" height="{height}" fill="{PAPER}"/>'
        return "\n".join([head, f"<title>{escape(self.title)}</title>", paper, *self._elements, "</svg>\n"])

    def _add(self, name: str, text: str = "", title: str = "", **attributes: object) -> None:
        """Add an element; attributes that are empty are left out."""
        named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value != ""}
        listed = "".join(f" {key}={quoteattr(_number(value))}" for key, value in named.items())
        inside = text + (f"<title>{escape(title)}</title>" if title else "")
        self._elements.append(f"<{name}{listed}>{inside}</{name}>" if inside else f"<{name}{listed}/>")

    def _extend(self, *points: Point) -> None:
        right, bottom = zip(self.reach, *points, strict=True)
        self.reach = max(right), max(bottom)


def _bow(start: Point, end: Point, reach: float) -> str:
    (x, y), (to_x, to_y) = start, end
    return f"C {_pair((x + reach, y))}, {_pair((to_x - reach, to_y))}, {_pair(end)}"


def _pair(point: Point) -> str:
    return f"{_number(point[0])} {_number(point[1])}"


def _number(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
