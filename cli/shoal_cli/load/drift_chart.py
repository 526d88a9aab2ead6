"""The drift plot: figures of a long load over its minutes, one below the other, as an SVG that stands alone.

It follows the reader's choice of light or dark by itself, with a ground of its own: shown as an image on a page, it
cannot know the page's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from shoal_cli.load.drift import Window

_WIDTH, _LEFT, _RIGHT, _TOP, _PANEL, _GAP = 760, 62, 150, 16, 96, 40
_FOOT = 26
_CURVES = 6

_STYLE = """
text{font:12px system-ui,sans-serif;fill:#4c5d6b}.ground{fill:#fff}.title{font-weight:600;fill:#14212b}
.line{stroke:#dde3e8}.curve{fill:none;stroke-width:2}.fault{fill:#b3261e}
.c0{stroke:#0b7285}.c1{stroke:#b45f06}.c2{stroke:#7048a8}.c3{stroke:#197a45}.c4{stroke:#b3261e}.c5{stroke:#4c5d6b}
.t0{fill:#0b7285}.t1{fill:#b45f06}.t2{fill:#7048a8}.t3{fill:#197a45}.t4{fill:#b3261e}.t5{fill:#4c5d6b}
@media(prefers-color-scheme:dark){text{fill:#9fb0bd}.ground{fill:#0c1216}.title{fill:#e6edf2}
.line{stroke:#25313a}.fault{fill:#ff8a80}
.c0{stroke:#4cc2d6}.c1{stroke:#f0a04b}.c2{stroke:#b79cf0}.c3{stroke:#5fd08f}.c4{stroke:#ff8a80}.c5{stroke:#9fb0bd}
.t0{fill:#4cc2d6}.t1{fill:#f0a04b}.t2{fill:#b79cf0}.t3{fill:#5fd08f}.t4{fill:#ff8a80}.t5{fill:#9fb0bd}}
""".replace("\n", "")


@dataclass(frozen=True, slots=True)
class Curve:
    """A value for each window; None where there is none."""

    label: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves of one unit. `failed`: requests that failed in each window, marked on it."""

    title: str
    curves: tuple[Curve, ...]
    failed: tuple[int, ...] = ()

    @property
    def most(self) -> float:
        """The largest value; 1 where there is none above 0."""
        return max((value for curve in self.curves for value in curve.values if value is not None), default=0) or 1.0


def panels(windows: Sequence[Window]) -> Iterator[Panel]:
    """What is drawn: throughput, waits, and the levels that were read."""
    failed = tuple(window.failed for window in windows)
    yield Panel(
        "tokens a second, all users" + (f"; dots: failed requests ({sum(failed)})" if any(failed) else ""),
        (Curve("tokens/s", tuple(window.tokens_per_second for window in windows)),),
        failed,
    )
    for title, spreads in (
        ("time to first token, ms", [window.ttft for window in windows]),
        ("time between tokens, ms", [window.itl for window in windows]),
    ):
        yield Panel(
            title,
            (
                Curve("p50", tuple(each.p50 if each else None for each in spreads)),
                Curve("p99", tuple(each.p99 if each else None for each in spreads)),
            ),
        )
    names = dict.fromkeys(name for window in windows for name in window.memory)
    if names:
        yield Panel(
            "resident memory, MiB",
            tuple(Curve(name, tuple(window.memory.get(name) for window in windows)) for name in names),
        )
    if any(window.kv_blocks is not None for window in windows):
        yield Panel("KV blocks held", (Curve("blocks", tuple(window.kv_blocks for window in windows)),))


def drift_svg(windows: Sequence[Window], title: str) -> str:
    """The whole picture. `windows` not empty."""
    drawn = list(panels(windows))
    height = _TOP + len(drawn) * (_PANEL + _GAP) + _FOOT
    end = windows[-1].start + windows[-1].seconds
    body = "".join(
        _panel(panel, [window.start + window.seconds / 2 for window in windows], end, _TOP + at * (_PANEL + _GAP))
        for at, panel in enumerate(drawn)
    )
    marks = "".join(
        f'<text x="{_x(second, end):.0f}" y="{height - 24}" text-anchor="middle">{second / 60:g}</text>'
        for second in _minutes(end)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title><style>{_STYLE}</style>'
        f'<rect class="ground" width="{_WIDTH}" height="{height}"/>{body}{marks}'
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}" y="{height - 6}" text-anchor="middle">minutes</text></svg>\n'
    )


def _panel(panel: Panel, middles: Sequence[float], end: float, top: float) -> str:
    floor, most = top + 18 + _PANEL, panel.most

    def y(value: float) -> float:
        return floor - value / most * _PANEL * 0.95

    parts = [f'<text class="title" x="{_LEFT}" y="{top + 8:.0f}">{escape(panel.title)}</text>']
    for value in (0.0, most / 2, most):
        parts.append(
            f'<line class="line" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
            f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.3g}</text>'
        )
    for at, curve in enumerate(panel.curves):
        colour = at % _CURVES
        for run in _runs(curve.values):
            way = " ".join(f"{_x(middles[place], end):.1f},{y(value):.1f}" for place, value in run)
            parts.append(f'<polyline class="curve c{colour}" points="{way}"/>')
        parts.append(
            f'<text class="t{colour}" x="{_WIDTH - _RIGHT + 10}" y="{top + 30 + 16 * at:.0f}">{_key(curve)}</text>'
        )
    for middle, failed in zip(middles, panel.failed, strict=False):
        if failed:
            parts.append(
                f'<circle class="fault" cx="{_x(middle, end):.1f}" cy="{floor:.1f}" r="4">'
                f"<title>{failed} failed</title></circle>"
            )
    return "".join(parts)


def _key(curve: Curve) -> str:
    known = [value for value in curve.values if value is not None]
    return escape(f"{curve.label} {known[0]:.3g} → {known[-1]:.3g}" if known else curve.label)


def _runs(values: Sequence[float | None]) -> Iterator[list[tuple[int, float]]]:
    """The values that follow each other without a hole, with their places."""
    run: list[tuple[int, float]] = []
    for place, value in enumerate(values):
        if value is not None:
            run.append((place, value))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _x(second: float, end: float) -> float:
    return _LEFT + second / end * (_WIDTH - _LEFT - _RIGHT)


def _minutes(end: float) -> list[float]:
    """Seven marks: beginning, end, and what lies between in equal steps."""
    return [round(end * part / 6, 3) for part in range(7)]
