"""Pictures as SVG text that needs nothing else: no script, no font, no file beside it."""

from xml.sax.saxutils import escape, quoteattr

INK, FAINT, PAPER = "#1f2933", "#9aa5b1", "#ffffff"
COLOURS = ("#2f6fb0", "#d1603d", "#3b8f5c", "#8a5cb0", "#b8872b", "#2a8f98", "#c0507f", "#667788")
"""Told apart on white, also by most who see few colours; after the last come the same again, dashed."""
CHARACTER = 0.58
"""How wide a letter is on average, in heights of the text."""


def colour_of(place: int) -> str:
    """Return the colour of the thing with this number."""
    return COLOURS[place % len(COLOURS)]


def width_of(text: str, size: float = 12.0) -> float:
    """Return how wide a text is, about."""
    return CHARACTER * size * len(text)


def shortened(text: str, width: float, size: float = 12.0) -> str:
    """Return a text that fits into a width, with its end left out where it does not.

    >>> shortened("separable convolution", 60.0)
    'separab…'
    """
    most = max(int(width / (CHARACTER * size)), 2)
    return text if len(text) <= most else f"{text[: most - 1]}…"


class Picture:
    """Shapes on white paper; what is drawn later lies above.

    Attributes:
        width: How wide it has become.
        height: How high.
    """

    def __init__(self) -> None:
        self._elements: list[str] = []
        self.width = self.height = 0.0

    def _reach(self, right: float, bottom: float) -> None:
        self.width, self.height = max(self.width, right), max(self.height, bottom)

    def _add(self, name: str, content: str = "", **attributes: object) -> None:
        named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
        listed = "".join(f" {key}={quoteattr(_number(value))}" for key, value in named.items())
        self._elements.append(f"<{name}{listed}>{content}</{name}>" if content else f"<{name}{listed}/>")

    def text(
        self,
        left: float,
        base: float,
        text: str,
        *,
        size: float = 12.0,
        colour: str = INK,
        anchor: str = "start",
        bold: bool = False,
        within: float | None = None,
        kind: str | None = None,
    ) -> None:
        """Write a text; where it must fit `within` a width, the whole of it is shown when one points at it."""
        shown = text if within is None else shortened(text, within, size)
        whole = f"<title>{escape(text)}</title>" if shown != text else ""
        weight = "600" if bold else None
        self._add(
            "text", escape(shown) + whole, x=left, y=base, font_size=size, fill=colour, text_anchor=anchor,
            font_weight=weight, class_=kind,
        )  # fmt: skip
        start = {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
        self._reach(left + (1 - start) * width_of(shown, size), base + 0.3 * size)

    def box(
        self,
        left: float,
        top: float,
        width: float,
        height: float,
        *,
        fill: str = PAPER,
        edge: str = INK,
        kind: str | None = None,
        title: str | None = None,
        dashed: bool = False,
    ) -> None:
        """Draw a box with round corners; `title` is shown when one points at it."""
        content = "" if title is None else f"<title>{escape(title)}</title>"
        dashes = "4 3" if dashed else None
        self._add(
            "rect", content, x=left, y=top, width=width, height=height, rx=5, fill=fill, stroke=edge,
            stroke_dasharray=dashes, class_=kind,
        )  # fmt: skip
        self._reach(left + width, top + height)

    def curve(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        *,
        colour: str = INK,
        kind: str | None = None,
        dashed: bool = False,
    ) -> None:
        """Draw a line that leaves and arrives level, as wires do."""
        (x, y), (to_x, to_y) = start, end
        bend = max((to_x - x) / 2, 12.0)
        points = f"M {_number(x)} {_number(y)} C {_number(x + bend)} {_number(y)}, "
        points += f"{_number(to_x - bend)} {_number(to_y)}, {_number(to_x)} {_number(to_y)}"
        dashes = "4 3" if dashed else None
        self._add("path", d=points, fill="none", stroke=colour, stroke_width=1.6, stroke_dasharray=dashes, class_=kind)
        self._reach(max(x, to_x), max(y, to_y))

    def detour(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        level: float,
        bend: float,
        *,
        colour: str = INK,
        kind: str | None = None,
        dashed: bool = False,
    ) -> None:
        """Draw a line that goes around what lies between, at another level; it bends within a width at both ends."""
        (x, y), (to_x, to_y) = start, end
        half = bend / 2
        parts = [
            f"M {_number(x)} {_number(y)}",
            f"C {_number(x + half)} {_number(y)}, {_number(x + half)} {_number(level)}, "
            f"{_number(x + bend)} {_number(level)}",
            f"L {_number(to_x - bend)} {_number(level)}",
            f"C {_number(to_x - half)} {_number(level)}, {_number(to_x - half)} {_number(to_y)}, "
            f"{_number(to_x)} {_number(to_y)}",
        ]
        dashes = "4 3" if dashed else None
        points = " ".join(parts)
        self._add("path", d=points, fill="none", stroke=colour, stroke_width=1.6, stroke_dasharray=dashes, class_=kind)
        self._reach(max(x, to_x), max(y, to_y, level))

    def line(
        self,
        points: list[tuple[float, float]],
        *,
        colour: str = INK,
        width: float = 1.6,
        dashed: bool = False,
        kind: str | None = None,
        title: str | None = None,
    ) -> None:
        """Draw a line through points."""
        listed = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        content = "" if title is None else f"<title>{escape(title)}</title>"
        dashes = "5 3" if dashed else None
        self._add(
            "polyline", content, points=listed, fill="none", stroke=colour, stroke_width=width,
            stroke_linejoin="round", stroke_dasharray=dashes, class_=kind,
        )  # fmt: skip
        self._reach(max(x for x, _ in points), max(y for _, y in points))

    def dot(self, x: float, y: float, radius: float, *, fill: str, kind: str | None = None) -> None:
        """Draw a filled circle."""
        self._add("circle", cx=x, cy=y, r=radius, fill=fill, class_=kind)
        self._reach(x + radius, y + radius)

    def finished(self, title: str, margin: float = 16.0) -> str:
        """Return the whole as the text of an SVG file."""
        width, height = _number(self.width + margin), _number(self.height + margin)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" font-family="Helvetica, Arial, sans-serif">'
        )
        paper = f'<rect width="{width}" height="{height}" fill="{PAPER}"/>'
        return "\n".join([head, f"<title>{escape(title)}</title>", paper, *self._elements, "</svg>\n"])


def _number(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
