"""Pictures: one look for all of them, as SVG that follows the page into dark mode."""

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

INK = "#262626"
"""Axes and text; in a page it becomes the colour of the text around it."""
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7f7f7f"
"""Okabe and Ito's colours, which remain apart for colour-blind readers; markers differ as well."""
STYLES: dict[str, dict[str, Any]] = {
    "uniform": {"color": BLUE, "marker": "o", "linestyle": "-"},
    "svs": {"color": ORANGE, "marker": "s", "linestyle": "--"},
    "two-batch": {"color": GREEN, "marker": "D", "linestyle": "-."},
}
_RC: dict[Any, Any] = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "svg.fonttype": "path",
}
Draw = Callable[[Any], None]


def figure(draws: Sequence[Draw], size: tuple[float, float] = (4.7, 3.5), columns: int | None = None) -> Any:
    """A figure of matplotlib with the axes side by side, in rows of `columns` where that is given."""
    import matplotlib
    from matplotlib.figure import Figure

    wide = min(len(draws), columns or len(draws))
    high = -(-len(draws) // wide)
    with matplotlib.rc_context(_RC):
        made = Figure(figsize=(size[0] * wide, size[1] * high), layout="constrained")
        axes = made.subplots(high, wide, squeeze=False).ravel()
        for ax, draw in zip(axes, draws, strict=False):
            draw(ax)
        for ax in axes[len(draws) :]:
            ax.remove()
    return made


def render(
    draws: Sequence[Draw], name: str, size: tuple[float, float] = (4.7, 3.5), columns: int | None = None
) -> str:
    """One SVG with the axes side by side; `name` keeps its identifiers apart from those of others."""
    import matplotlib

    with matplotlib.rc_context({**_RC, "svg.hashsalt": name}):
        out = io.StringIO()
        figure(draws, size, columns).savefig(
            out, format="svg", metadata={"Date": None, "Creator": "snapgrad"}
        )
    return out.getvalue()


def as_bytes(figure: Any, kind: str) -> bytes:
    """A figure as `"svg"`, `"png"` or `"pdf"`: the same figure gives the same bytes."""
    import matplotlib

    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    with matplotlib.rc_context({"svg.hashsalt": "snapgrad"}):
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    return buffer.getvalue()


def ticks(ax: Any, values: Any) -> None:
    """Marks exactly these values on the horizontal axis, as plain numbers."""
    values = list(values)
    ax.set_xticks(values, [f"{value:g}" for value in values])
    ax.minorticks_off()


def palette(count: int) -> list[str]:
    """Colours for up to six curves of one family, apart from each other on white and on black."""
    return [INK, BLUE, GREEN, ORANGE, PURPLE, GREY][:count]


def standalone(svg: str) -> str:
    """The same picture on white, for a file of its own."""
    opening = re.search(r"<svg[^>]*>", svg)
    assert opening is not None
    return f'{svg[: opening.end()]}\n<rect width="100%" height="100%" fill="#ffffff"/>{svg[opening.end() :]}'


def inline(svg: str, label: str, prefix: str) -> str:
    """The `<svg>` element alone, with colours that follow the page and a description for screen readers.

    `prefix` goes before its identifiers, which must differ from those of other pictures on the page.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", body)
    body = body.replace(INK, "currentColor")
    for name, colour in (("blue", BLUE), ("orange", ORANGE), ("green", GREEN), ("purple", PURPLE)):
        body = body.replace(colour, f"var(--{name})")
    # Width and height come from the page; the view box keeps the shape.
    opening = re.search(r"<svg[^>]*>", body)
    assert opening is not None
    sized = re.sub(r'\s(width|height)="[^"]*"', "", opening.group())
    described = sized.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    return described + body[opening.end() :].strip()
