"""What `make test-quick` runs."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Rooms whose tests start processes.
WITHOUT_UNIT_TESTS = {"tests/demo", "tests/integration", "tests/dags"}


def test_every_room_is_in_the_list() -> None:
    """Each file is there, and each room has some."""
    listed = [Path(line) for line in (ROOT / "tests" / "quick.txt").read_text().splitlines()]
    assert [path for path in listed if not (ROOT / path).exists()] == []
    tests = [
        file.relative_to(ROOT)
        for folder in ("tests", "plugins", "integrations")
        for file in (ROOT / folder).rglob("test_*.py")
    ]
    assert {"/".join(path.parts[:2]) for path in tests} - {
        "/".join(path.parts[:2]) for path in listed
    } <= WITHOUT_UNIT_TESTS | {"tests/test_bare_programs.py"}
