"""The figures as one HTML page without scripts: charts over concurrency or over time, and a table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from shoal_cli.load.drift import Soak
from shoal_cli.load.drift_chart import drift_svg
from shoal_cli.load.figures import Point, Spread

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 520, 260, 56, 34
_COLOURS = ("#0b7285", "#d98b1f", "#7048a8", "#197a45", "#b3261e")

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1140px;margin:32px auto;padding:0 20px;color:#14212b;background:#fff}
h1{font-size:22px;margin:0}p{color:#4c5d6b}.charts{display:flex;flex-wrap:wrap;gap:24px;margin:20px 0}
figure{margin:0}svg{max-width:100%}figcaption{font-weight:600;margin-bottom:4px}
svg text{font:12px system-ui,sans-serif;fill:#4c5d6b}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}td,th{padding:6px 10px;text-align:right;
border-bottom:1px solid #dde3e8}th{color:#4c5d6b;font-weight:600}.key{display:inline-block;margin-right:16px}
.key i{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px}
@media(prefers-color-scheme:dark){body{background:#0c1216;color:#e6edf2}p,th,svg text{color:#9fb0bd;fill:#9fb0bd}
td,th{border-color:#25313a}}
"""


def html_page(points: Sequence[Point], model: str, url: str, when: str) -> str:
    """The whole page."""
    lengths = sorted({point.prompt_tokens for point in points})
    keys = "".join(
        f'<span class="key"><i style="background:{_colour(at)}"></i>prompts of {length} tokens</span>'
        for at, length in enumerate(lengths)
    )
    of_length = [[point for point in points if point.prompt_tokens == length] for length in lengths]
    rates = [[(each.concurrency, each.tokens_per_second) for each in line] for line in of_length]
    firsts = [[(each.concurrency, each.ttft.p50) for each in line if each.ttft] for line in of_length]
    charts = _chart("Tokens a second, all users", rates) + _chart("Time to first token, p50, ms", firsts)
    table = _table(HEADS, [row_of(point) for point in points])
    return _document(model, url, when, f'<div>{keys}</div><div class="charts">{charts}</div>{table}')


def soak_page(soak: Soak, model: str, url: str, when: str) -> str:
    """The page of a long load."""
    told = f"{soak.answers} answers, {soak.failed} failed, {soak.lost} of them after they had begun"
    plot = drift_svg(soak.windows, f"{model} over {soak.windows[-1].start + soak.windows[-1].seconds:.0f} s")
    return _document(model, url, when, f"<p>{told}</p><figure>{plot}</figure>{_table(DRIFT_HEADS, drift_rows(soak))}")


DRIFT_HEADS = ("figure", "first third", "last third", "last over first")


def drift_rows(soak: Soak) -> list[tuple[str, ...]]:
    """The table of a long load, for terminal and page."""
    return [
        (name, f"{change.first:.1f}", f"{change.last:.1f}", f"{change.ratio:.3f}")
        for name, change in soak.changes.items()
    ]


def _document(model: str, url: str, when: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(model)}: shoal bench</title><style>{_STYLE}</style><h1>{escape(model)}</h1>"
        f"<p>{escape(url)}, {escape(when)}</p>{body}</html>"
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


HEADS = (
    "users", "prompt", "answers", "failed", "tokens/s", "TTFT p50", "p99", "ITL p50", "p99", "ms a token p50", "p99",
)  # fmt: skip


def row_of(point: Point) -> tuple[str, ...]:
    """One line of the table, for terminal and page."""
    return (
        str(point.concurrency),
        str(point.prompt_tokens),
        str(point.requests),
        str(point.failed),
        f"{point.tokens_per_second:.1f}",
        *_ends(point.ttft),
        *_ends(point.itl),
        *_ends(point.tpot),
    )


def _ends(found: Spread | None) -> tuple[str, str]:
    return ("–", "–") if found is None else (f"{found.p50:.0f}", f"{found.p99:.0f}")


def _colour(at: int) -> str:
    return _COLOURS[at % len(_COLOURS)]


def _chart(title: str, lines: Sequence[Sequence[tuple[int, float]]]) -> str:
    users = sorted({x for line in lines for x, _ in line})
    most = max((y for line in lines for _, y in line), default=0.0) or 1.0

    def x_of(value: int) -> float:
        return _LEFT + (users.index(value) + 0.5) * (_WIDTH - _LEFT) / len(users)

    def y_of(value: float) -> float:
        return (_HEIGHT - _BOTTOM) * (1 - value / most * 0.92)

    parts = [
        f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y_of(most * part):.0f}" y2="{y_of(most * part):.0f}" stroke="#8884"/>'
        f'<text x="{_LEFT - 8}" y="{y_of(most * part) + 4:.0f}" text-anchor="end">{most * part:.0f}</text>'
        for part in (0.0, 0.5, 1.0)
    ]
    parts += [f'<text x="{x_of(x):.0f}" y="{_HEIGHT - 12}" text-anchor="middle">{x}</text>' for x in users]
    for at, line in enumerate(lines):
        way = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{way}" fill="none" stroke="{_colour(at)}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="4" fill="{_colour(at)}"/>' for x, y in line]
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg width="{_WIDTH}" height="{_HEIGHT}" role="img" '
        f'aria-label="{escape(title)} over the number of users">{"".join(parts)}</svg></figure>'
    )
