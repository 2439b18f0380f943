"""Put data, style and script into one HTML file that loads nothing and runs only our own script."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from importlib import resources
from string import Template
from typing import Any

FIGURES = (
    "dom.js",
    "colours.js",
    "axes.js",
    "curves.js",
    "series.js",
    "microscope.js",
    "intervals.js",
    "tables.js",
    "tokens.js",
    "episodes.js",
    "imitation.js",
    "measures.js",
    "league.js",
    "time.js",
    "settle.js",
    "chapters.js",
)
"""What draws the figures, in order of dependency."""
STYLES = ("page.css", "controls.css", "figures.css", "reading.css", "media.css")
"""In the order in which later rules win."""
_UNSAFE = {character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def render_page(data: dict[str, Any]) -> str:
    """The whole page. Nothing in `data` becomes markup: it is embedded as JSON, and the script only sets text."""
    script = join_script((*FIGURES, "report.js"))
    style = "\n".join(read_asset(name) for name in STYLES)
    return Template(read_asset("report.html")).substitute(
        script_hash=digest(script), style_hash=digest(style), script=script, style=style, data=escape_json(data)
    )


def join_script(names: Iterable[str]) -> str:
    """Files as one script that leaves no name behind."""
    return "\n".join(["(() => {", '"use strict";', *(read_asset(name) for name in names), "})();"])


def escape_json(data: Any) -> str:
    """JSON that no HTML parser can break out of and every JSON parser reads back unchanged."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A lone surrogate cannot be written as UTF-8; its JSON escape can.
    return (
        "".join(_UNSAFE.get(character) or character for character in text).encode("utf-8", "backslashreplace").decode()
    )


def read_asset(name: str) -> str:
    """The text of a file of the page."""
    return (resources.files("turnwise.report") / "assets" / name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """What a content security policy calls an inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
