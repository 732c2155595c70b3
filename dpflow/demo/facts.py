"""What the demo saw, saved after every step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class DemoFacts:
    """What the demo saw: the facts behind its table, its report and its tests.

    ``steps`` names what is done; a step that is missing is done by ``--resume``.
    """

    days: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    runs: dict[str, str] = field(default_factory=dict)
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    branches: dict[str, str] = field(default_factory=dict)
    rerun_same: bool = False
    rerun_charged: bool = True
    crash_day: str = ""
    crash_tries: int = 0
    crash_attempts: int = 0
    crash_releases: int = 0
    crash_fired: bool = False
    refusal: str = ""
    verified: str = ""
    champion: str = ""
    naive: dict[str, Any] = field(default_factory=dict)
