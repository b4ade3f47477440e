"""The picture at the top of README.md: a session of `viewtail demo` in a terminal, as an SVG that moves.

`make picture` plays the demo with all four stores and writes docs/images/demo.svg. Nothing in it is drawn by hand:
each frame is what the terminal showed, only pauses are shortened. It needs no font and no address from outside; whoever
wants no motion, or cannot show it, sees the last frame.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from stack.places import CHECKOUT
from tests.support.terminal import Demonstrator, Frame, Line, Session, played
from viewtail.demo.process import environment

PICTURE = CHECKOUT / "docs/images/demo.svg"
COLUMNS, ROWS = 116, 34
_WIDTH, _HEIGHT, _MARGIN, _TOP = 8.0, 18, 16, 40  # of a cell; of the window's frame and bar
_LONGEST_S, _SHORTEST_S, _LAST_S = 2.2, 0.35, 6.0
_COLOURS = {"31": "#ff7b72", "32": "#56d364", "33": "#e3b341", "35": "#d2a8ff", "36": "#79c0ff"}
_SVG = "{http://www.w3.org/2000/svg}"


def session(wait_s: float) -> Session:
    """The demo, played in a terminal of the picture's width; keys are pressed so long after they are asked for."""
    viewtail = Path(sys.executable).with_name("viewtail")
    path = os.pathsep.join((str(viewtail.parent), os.environ["PATH"]))
    return played(
        [str(viewtail), "demo"],
        environment({"PATH": path, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}),
        Demonstrator(wait_s=wait_s),
        columns=COLUMNS,
        within_s=180,
        cwd=str(CHECKOUT),
    )


def drawn(frames: Sequence[Frame]) -> str:
    """The SVG."""
    shots = [*_shots(frames)]
    lines: dict[Line, str] = {}
    groups, total = [], sum(seconds for _, seconds in shots)
    at = 0.0
    styles = []
    for number, (window, seconds) in enumerate(shots):
        uses = "".join(
            f'<use href="#{lines.setdefault(line, f"l{len(lines)}")}" y="{_TOP + row * _HEIGHT}"/>'
            for row, line in enumerate(window)
            if line
        )
        is_last = number == len(shots) - 1
        groups.append(f'<g class="f{" z" if is_last else ""}" id="f{number}">{uses}</g>')
        begin, end = at / total * 100, (at + seconds) / total * 100
        after = "" if is_last else f"{end:.2f}%{{visibility:hidden}}"
        styles.append(f"@keyframes k{number}{{0%{{visibility:hidden}}{begin:.2f}%{{visibility:visible}}{after}}}")
        styles.append(f"#f{number}{{animation-name:k{number}}}")
        at += seconds
    width, height = COLUMNS * _WIDTH + 2 * _MARGIN, ROWS * _HEIGHT + _TOP + _MARGIN
    defs = "\n".join(f'<g id="{name}">{_text(line)}</g>' for line, name in lines.items())
    shown = "\n".join(groups)
    motion = "".join(styles)
    box = f"0 0 {width:.0f} {height}"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img" aria-labelledby="t d">
<title id="t">viewtail demo in a terminal</title>
<desc id="d">A row is changed, and four stores show it within milliseconds. A worker is killed under load, and goes on
where it was. Damaged views are mended. In the end every row of every view equals its table.</desc>
<style>
text{{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#e6edf3;white-space:pre}}
.b{{font-weight:700}}.d{{fill:#9198a1}}{"".join(f".c{code}{{fill:{colour}}}" for code, colour in _COLOURS.items())}
.f{{visibility:hidden}}.z{{visibility:visible}}
@media (prefers-reduced-motion:no-preference){{
.f{{animation-duration:{total:.1f}s;animation-iteration-count:infinite;animation-timing-function:step-end}}
{motion}}}
</style>
<rect width="{width:.0f}" height="{height}" rx="8" fill="#0d1117" stroke="#6e7681"/>
<circle cx="20" cy="18" r="5.5" fill="#ff5f57"/><circle cx="38" cy="18" r="5.5" fill="#febc2e"/>
<circle cx="56" cy="18" r="5.5" fill="#28c840"/>
<defs>
{defs}
</defs>
{shown}
</svg>
"""


def _shots(frames: Sequence[Frame]) -> Iterator[tuple[list[Line], float]]:
    """What the window shows, and for how many seconds: pauses are cut, and what flashes by is left out."""
    pending = 0.0
    for frame, following in zip(frames, [*frames[1:], None], strict=True):
        pending += _LAST_S if following is None else following.at - frame.at
        if pending >= _SHORTEST_S:
            lines = [*frame.lines]
            while lines and not lines[-1]:
                lines.pop()
            yield lines[-ROWS:], pending if following is None else min(pending, _LONGEST_S)
            pending = 0.0


def _text(line: Line) -> str:
    found, column = [], 0
    for style, run in groupby(line, key=lambda cell: cell[1]):
        text = "".join(character for character, _ in run)
        blank = len(text) - len(text.lstrip(" "))
        if words := text.strip(" "):
            x, length = _MARGIN + (column + blank) * _WIDTH, len(words) * _WIDTH
            found.append(f'<text x="{x:g}" textLength="{length:g}"{_class(style)}>{escape(words)}</text>')
        column += len(text)
    return "".join(found)


def _class(style: str) -> str:
    codes = style.split(";")
    names = [*(["b"] if "1" in codes else []), *(["d"] if "2" in codes else [])]
    names += [f"c{code}" for code in codes if code in _COLOURS]
    return f' class="{" ".join(names)}"' if names else ""


def lines_of(svg: str) -> set[str]:
    """The lines of a picture, as `essence` leaves them."""
    groups = ElementTree.fromstring(svg).iterfind(f"{_SVG}defs/{_SVG}g")
    return {essence(" ".join(text.text or "" for text in group)) for group in groups}


def essence(line: str) -> str:
    """A line without what is another one each time: numbers, times, places. Blanks are left out."""
    line = re.sub(r"(kept in|cd) +\S+", r"\1 PLACE", line)
    line = re.sub(r"\d[\d.,:]*( ?(ms|s)\b)?", "0", line.replace("█", ""))
    return re.sub(r"\s+", "", line)


if __name__ == "__main__":
    recorded = session(wait_s=1.5)
    if recorded.code:
        sys.exit("\n".join(recorded.text))
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(drawn(recorded.frames))
    print(f"{PICTURE.relative_to(CHECKOUT)}: {PICTURE.stat().st_size:,} bytes")
