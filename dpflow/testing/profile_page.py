"""One page about audits: each guarantee's privacy profile, as stated and as measured. It loads nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from dpflow.html_page import begin_page
from dpflow.testing.mechanism_audit import MechanismAudit, Profile

_STYLE = """  :root { --stated: #b3261e; --measured: #1f5fa8; }
  @media (prefers-color-scheme: dark) {
    :root { --stated: #ff8a80; --measured: #8ab4f8; }
  }
  svg { width: 100%; height: auto; }
  svg text { fill: var(--text); font: 12px system-ui, sans-serif; }
  .axis { stroke: var(--line); stroke-width: 1; fill: none; }
  .stated, .measured { fill: none; stroke-width: 2.5; }
  .stated { stroke: var(--stated); stroke-dasharray: 7 4; }
  .measured { stroke: var(--measured); }
"""
#: The picture, and its margins at the left and below.
_WIDTH, _HEIGHT, _LEFT, _BELOW = 640, 320, 64, 44
#: Decades of delta that are drawn.
_DECADES = 6


def render_page(audits: Sequence[MechanismAudit]) -> str:
    """The page: every text escaped, nothing loaded from elsewhere."""
    title = "Privacy audit" + (f" of {audits[0].mechanism}" if len(audits) == 1 else "")
    parts = [begin_page(title, width="48rem", style=_STYLE)]
    for audit in audits:
        if len(audits) > 1:
            parts.append(f"<h2>{escape(audit.mechanism)}</h2>\n")
        parts += [_render_facts(audit), _draw_profile(audit)]
    return "".join(parts)


def _render_facts(audit: MechanismAudit) -> str:
    how = "exact output distributions on tiny tables"
    if audit.method == "replayed":
        how = f"{audit.compared} runs, each replayed on the neighbour number by number"
    if audit.method == "drawn":
        how = f"{audit.compared} draws on either neighbour, confidence {audit.confidence:g}"
    power = "no weaker noise that was tried is seen, so this audit says little"
    if audit.weakened is not None:
        power = f"noise of 1/{audit.weakened} of its scale is caught"
        if audit.method == "drawn":
            power += f" with probability {audit.power:.4g} at least"
    facts = (
        ("verdict", audit.verdict),
        ("guarantee", f"epsilon {audit.epsilon:.6g}, delta {audit.delta:.6g}, {audit.neighbours}"),
        (
            "measured",
            f"epsilon at least {audit.measured_epsilon:.6g} at this delta ({audit.share:.1%})",
        ),
        ("method", how),
        ("power", power),
        ("version", audit.version),
        ("parameters", ", ".join(f"{name}: {value}" for name, value in audit.params.items())),
        ("time", f"{audit.seconds:.1f} s"),
    )
    rows = (f"<tr><th>{name}</th><td>{escape(str(value))}</td></tr>\n" for name, value in facts)
    return f"<table>\n{''.join(rows)}</table>\n"


def _draw_profile(audit: MechanismAudit) -> str:
    """Delta, on a logarithmic axis, against epsilon: what is stated from above, measured from below."""
    right = max(x for x, _ in audit.measured)

    def place(x: float, y: float) -> tuple[float, float]:
        decades = max(math.log10(y), -_DECADES) if y > 0 else -_DECADES
        return (
            _LEFT + (_WIDTH - _LEFT - 16) * x / right,
            16 - (_HEIGHT - _BELOW - 16) * decades / _DECADES,
        )

    def draw_curve(name: str, profile: Profile) -> str:
        points = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in profile if x <= right)
        return f'<polyline class="{name}" points="{points}"/>\n'

    low, bottom = place(0, 0)
    marks = [
        f'<text x="{low - 8:.0f}" y="{place(0, 10.0**-power)[1] + 4:.0f}" text-anchor="end">'
        f"{'0' if power == _DECADES else f'1e-{power}' if power else '1'}</text>\n"
        for power in range(0, _DECADES + 1, 2)
    ]
    marks += [
        f'<text x="{place(right * i / 5, 0)[0]:.0f}" y="{bottom + 18:.0f}" text-anchor="middle">'
        f"{right * i / 5:.3g}</text>\n"
        for i in range(6)
    ]
    about = f"Privacy profile of {audit.mechanism}: delta against epsilon, stated and measured"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(about)}">\n'
        f'<path class="axis" d="M{low:.0f} 16 V{bottom:.0f} H{_WIDTH - 16}"/>\n{"".join(marks)}'
        f'<text x="{(low + _WIDTH) / 2:.0f}" y="{_HEIGHT - 6}" text-anchor="middle">epsilon</text>\n'
        f'<text x="14" y="{bottom / 2:.0f}" transform="rotate(-90 14 {bottom / 2:.0f})" '
        f'text-anchor="middle">delta</text>\n'
        f"{draw_curve('stated', audit.stated)}{draw_curve('measured', audit.measured)}"
        f'<path class="stated" d="M{low + 20:.0f} {bottom - 50:.0f} h36"/>'
        f'<text x="{low + 64:.0f}" y="{bottom - 46:.0f}">stated, from above</text>\n'
        f'<path class="measured" d="M{low + 20:.0f} {bottom - 30:.0f} h36"/>'
        f'<text x="{low + 64:.0f}" y="{bottom - 26:.0f}">measured, from below</text>\n</svg>\n'
    )
