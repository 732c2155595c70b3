"""Plots as files: what ``--plot`` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpflow.errors import InvalidInput


def save_picture(figure: Any, file: Path) -> None:
    """Write a figure of matplotlib in the format that the file's name ends in. Raises `InvalidInput`
    if it has no such format, or no file can be written there.
    """
    try:
        figure.savefig(file, dpi=150)
    except (OSError, ValueError):
        raise InvalidInput(
            f"{file} cannot be drawn; name a picture that ends in .svg or .png, in a folder of yours"
        ) from None
