"""Names can be measured in any file, one without a function included."""

from __future__ import annotations

from checks import names


def test_a_file_without_functions_has_figures() -> None:
    """Nothing is divided by its number of names."""
    files = names.source_files(names.ROOT / "dpflow" / "demo" / "__init__.py")
    assert len(files) == 1
    count, figures = names.measure(files)
    assert count.functions == 0 and figures["participle functions, %"] == 0
