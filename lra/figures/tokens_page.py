"""Shaded text as one self-contained HTML file: no script, nothing loaded, light and dark."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lra.figures.tokens import Shaded, Tokens

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" \
content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
:root {{
  color-scheme: light dark;
  --back: #fcfcfa; --ink: #1d2126; --soft: #5b6470; --line: #dcdfe3;
  --more: #f0a04b; --less: #7db7f5;
}}
@media (prefers-color-scheme: dark) {{
  :root {{
    --back: #15181c; --ink: #f1f2f3; --soft: #9aa4af; --line: #31373e;
    --more: #96520f; --less: #2b62a0;
  }}
}}
body {{ margin: 0 auto; padding: 1rem clamp(.7rem, 3vw, 2rem) 3rem; max-width: 84rem;
  background: var(--back); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }}
h1 {{ font-size: 1.3rem; margin: .5rem 0 .1rem; }}
h2 {{ font-size: 1.05rem; margin: 0; }}
p {{ margin: .2rem 0; }}
.soft {{ color: var(--soft); font-size: .88rem; }}
main {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr));
  gap: 1.4rem 2.2rem; margin: 1.2rem 0; }}
.text {{ line-height: 1.9; overflow-wrap: anywhere; }}
.text span {{ padding: .14em 0; border-radius: .15em;
  background: color-mix(in srgb, var(--more) var(--s, 0%), transparent); }}
.text span.less {{ background: color-mix(in srgb, var(--less) var(--s), transparent); }}
.text .special {{ font-size: .8em; outline: 1px solid var(--line); padding: .1em .3em; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .5rem 0; }}
th, td {{ padding: .1rem .8rem .1rem 0; text-align: right; border-bottom: 1px solid var(--line); }}
th:first-child {{ text-align: left; font-weight: 400; }}
thead th {{ font-weight: 600; }}
</style>
</head>
<body>
<header><h1>{title}</h1><p class="soft">{what}</p></header>
<main>
{sections}
</main>
<p class="soft">A word's share is the sum over its pieces; shares of a row are 1 in all, outlined
special tokens among them. The strongest tint is the word with the largest share of its own panel
(a special token may have more); blue is negative. Point at a word for its share.</p>
<details><summary>Shares in percent</summary><div class="scroll"><table>
<thead><tr><th>word</th>{heads}</tr></thead>
<tbody>
{table}
</tbody>
</table></div></details>
</body>
</html>
"""


def page(tokens: Tokens, title: str) -> str:
    sections = "\n".join(_section(tokens, row) for row in tokens.rows)
    lines = []
    for i, word in enumerate(tokens.words):
        cells = "".join(f"<td>{100 * row.shares[i]:.1f}</td>" for row in tokens.rows)
        lines.append(f"<tr><th>{escape(word.text)}</th>{cells}</tr>")
    what = f"Row of the first token in the attention map; {tokens.what}"
    return PAGE.format(
        title=escape(title),
        what="<br>".join(map(escape, filter(None, (what, tokens.made)))),
        sections=sections,
        heads="".join(f"<th>{escape(row.label)}</th>" for row in tokens.rows),
        table="\n".join(lines),
    )


def _section(tokens: Tokens, row: Shaded) -> str:
    from lra.figures.tokens import told

    paragraphs: dict[bool, list[str]] = {}
    for i, word in enumerate(tokens.words):
        gap = " " if word.before else ""
        paragraphs.setdefault(word.second, []).append(gap + _span(tokens, row, i))
    text = "\n".join(f'<p class="text">{"".join(p).strip()}</p>' for p in paragraphs.values())
    facts = escape(told(tokens.words, row))
    return f'<section><h2>{escape(row.label)}</h2><p class="soft">{facts}</p>\n{text}</section>'


def _span(tokens: Tokens, row: Shaded, i: int) -> str:
    word, strength = tokens.words[i], row.strength(i)
    kinds = [k for k, on in (("special", word.special), ("less", strength < 0)) if on]
    named = f' class="{" ".join(kinds)}"' if kinds else ""
    share = f"{100 * row.shares[i]:.1f} %"
    return (
        f'<span{named} style="--s:{100 * abs(strength):.0f}%" title="{share}">'
        f"{escape(word.text)}</span>"
    )
