"""The browser that looks at the walk's pages."""

from browser_tools import browser_tools

__all__ = ["browser_tools"]
