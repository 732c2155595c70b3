"""How a page of ours begins: one file that loads nothing, in light and dark, narrow and wide."""

from __future__ import annotations

from html import escape

_HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
  :root { --text: #1a1a1a; --page: #ffffff; --line: #999999; }
  @media (prefers-color-scheme: dark) {
    :root { --text: #e4e4e4; --page: #15181c; --line: #666666; }
  }
  body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; padding: 0 1rem;
    color: var(--text); background: var(--page); overflow-wrap: anywhere; }
  table { border-collapse: collapse; font-size: .9rem; }
  th, td { text-align: left; padding: .2rem .8rem .2rem 0; vertical-align: top; }
"""


def begin_page(title: str, *, width: str, style: str = "") -> str:
    """The page up to its heading, which is the title, escaped.

    Args:
        title: any text.
        width: of the text at the most, such as ``70rem``.
        style: further rules of its style sheet, as they stand.
    """
    name = escape(title)
    own = f"  body {{ max-width: {width}; }}\n{style}</style>\n"
    return f"{_HEAD}{own}<title>{name}</title>\n<h1>{name}</h1>\n"
