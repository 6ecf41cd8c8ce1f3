"""The page of a run that goes on: how far it is, as a bar and as lines. The browser loads it again by itself."""

from __future__ import annotations

from collections.abc import Iterable

from tokenmill.humanize import escape_html

# A browser may fetch and run nothing for this page.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
REFRESH_SECONDS = 5
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; }
progress { width: 100%; height: 1.5rem; } th { text-align: left; padding-right: 1.5rem; font-weight: 600; }
th, td { vertical-align: top; padding-bottom: .2rem; overflow-wrap: anywhere; }
"""


def render_status(directory: str, state: str, fraction: float, lines: Iterable[tuple[str, str]]) -> str:
    """The page of a run in this state. Only the page of a running run is loaded again."""
    name = escape_html(directory.rstrip("/").rpartition("/")[2] or directory)
    refresh = f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">' if state == "running" else ""
    rows = "".join(f"<tr><th>{escape_html(label)}</th><td>{escape_html(value)}</td></tr>" for label, value in lines)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">{refresh}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{fraction:.0%} {name}</title><style>{STYLE}</style></head>\n<body><h1>{name}</h1>"
        f'<p>{escape_html(state)}, {fraction:.1%}</p><progress max="1" value="{fraction:.4f}"></progress>'
        f"<table>{rows}</table></body></html>\n"
    )
