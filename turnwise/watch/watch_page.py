"""The live page itself: the report's style and figures, with a script that follows the stream."""

from __future__ import annotations

from string import Template

from turnwise import __version__
from turnwise.guard.definition import ONSET
from turnwise.report.page import FIGURES, STYLES, digest, escape_json, join_script, read_asset
from turnwise.report.panels import describe

_SCRIPTS = (*FIGURES, "apply.js", "live_table.js", "live_episodes.js", "links.js", "watch.js")
WORKER = join_script(("apply.js", "worker.js"))
"""What all open pages of a browser share: one stream."""
_STYLES = (*STYLES, "watch.css")


def render_watch() -> tuple[str, str]:
    """The page, and the content policy that it is served with."""
    script, style = join_script(_SCRIPTS), "\n".join(read_asset(name) for name in _STYLES)
    data = {"version": __version__, "definition": ONSET, **describe()}
    page = Template(read_asset("watch.html")).substitute(script=script, style=style, data=escape_json(data))
    policy = (
        f"default-src 'none'; script-src '{digest(script)}'; style-src '{digest(style)}'; connect-src 'self'; "
        "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy
