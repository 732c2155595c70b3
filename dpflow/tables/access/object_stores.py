"""Objects of an S3-compatible store, looked at and read where they are, through fsspec's file system for
it. DuckDB asks that file system; an extension of its own is not needed.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dpflow.error_boundary import contain_errors
from dpflow.errors import DpflowError, InvalidInput, MissingExtra, TableBusy, TableUnreadable
from dpflow.extras import require_extra
from dpflow.tables.access.local_files import LOGS, describe_logged_table, require_plain_names

T = TypeVar("T")

#: Schemes that are tested, by the package that brings their file system; the second one is for tests.
_PACKAGES = {"s3": "s3fs", "memory": "fsspec"}
_URL = re.compile(rf"({'|'.join(_PACKAGES)})://([^/]*)", re.IGNORECASE)
#: What a listing says of an object that no change leaves as it was; S3's is a digest of the content.
_VERSIONS = ("ETag", "created")


def is_object(place: str) -> bool:
    """Whether a place is a URL of a store that can be read where it is."""
    return _URL.match(place) is not None


@dataclass(frozen=True)
class ObjectStore:
    """One store.

    Attributes:
        files: fsspec's file system, without a cache of listings.
    """

    scheme: str
    files: Any

    @classmethod
    def open(cls, places: Sequence[str]) -> ObjectStore:
        """The store of these URLs. Who may read is up to the environment, such as AWS_PROFILE and
        AWS_ENDPOINT_URL.

        Raises:
            InvalidInput: several stores, or a login in a URL.
            MissingExtra: its package is not installed.
        """
        matches = [_URL.match(url) for url in places]
        schemes = {match[1].lower() for match in matches if match is not None}
        if len(schemes) != 1 or None in matches:
            raise InvalidInput(
                "the files are in several places; give files of one store, or of none"
            )
        (scheme,) = schemes
        if any(match is not None and re.search("[@:?]", match[2]) for match in matches):
            raise InvalidInput(
                f"the source names a {scheme}:// place with a login in it; leave it out and give it as the store's "
                f"own tools take it, such as AWS_PROFILE, or copy the files to this machine"
            )
        with require_extra("remote", f"a {scheme}:// source"):
            import fsspec

        try:
            # One session for all of a process's questions: opening one takes longer than asking.
            return cls(scheme, fsspec.filesystem(scheme, use_listings_cache=False))
        except ImportError:
            raise MissingExtra(
                f"a {scheme}:// source needs the package {_PACKAGES[scheme]!r}: pip install {_PACKAGES[scheme]}"
            ) from None

    def expand(self, pattern: str) -> list[str]:
        """The objects that a URL or glob names, sorted. Raises `InvalidInput` for none."""
        objects = self._ask(lambda: self.files.glob(pattern))
        if not objects:
            raise InvalidInput(f"no file matches {pattern!r}; check the folder and the pattern")
        return sorted(map(self.files.unstrip_protocol, objects))

    def find_states(self, paths: Sequence[str]) -> dict[str, tuple[int | str, ...]]:
        """Size and version of each object that is there, by one listing.

        Raises:
            TableBusy: the store cannot be reached.
            TableUnreadable: it refuses to tell, or says no versions.
        """
        folders = [posixpath.dirname(self.files._strip_protocol(path)) for path in paths]
        listed = self._ask(lambda: self.files.find(posixpath.commonpath(folders), detail=True))
        there = {self.files.unstrip_protocol(name): info for name, info in listed.items()}
        return {path: self._state(there[path]) for path in paths if path in there}

    def _state(self, info: dict[str, Any]) -> tuple[int | str, ...]:
        version = next((str(info[name]) for name in _VERSIONS if info.get(name)), None)
        if version is None:
            raise TableUnreadable(
                f"the {self.scheme}:// store says no version of its objects, so a change would not be seen; copy the "
                f"files to this machine"
            )
        return int(info["size"]), version

    def require_plain_objects(self, paths: Sequence[str]) -> None:
        """As `dpflow.tables.access.local_files.require_plain_files`, of objects."""
        require_plain_names(paths)
        folders: set[str] = set()
        for path in paths:
            folder = posixpath.dirname(self.files._strip_protocol(path))
            while folder not in folders and folder.strip("/"):
                folders.add(folder)
                folder = posixpath.dirname(folder)
        for folder in sorted(folders):
            for log, kind in LOGS.items():
                inside = f"{folder}/{log}"
                if self._ask(lambda inside=inside: self.files.glob(inside)):  # type: ignore[misc]
                    raise describe_logged_table(self.files.unstrip_protocol(folder), kind)

    def copy(self, paths: Sequence[str], folder: Path) -> list[Path]:
        """The objects as files of a folder, each below a number of its own.

        Raises `TableBusy` if one changed meanwhile.
        """
        before = self.find_states(paths)
        copies = []
        for number, path in enumerate(paths):
            copies.append(folder / str(number) / posixpath.basename(path))
            copies[-1].parent.mkdir()
            self._ask(lambda path=path: self.files.get_file(path, str(copies[-1])))  # type: ignore[misc]
        if self.find_states(paths) != before:
            raise TableBusy(
                "an object was written while it was copied; load it when it is complete"
            )
        return copies

    def _ask(self, question: Callable[[], T]) -> T:
        def describe_error(error: Exception) -> DpflowError:
            # Its own text may quote the request.
            if isinstance(error, PermissionError | FileNotFoundError):
                return TableUnreadable(
                    f"the {self.scheme}:// store has no such object or bucket for this login; check both"
                )
            return TableBusy(
                f"the {self.scheme}:// store cannot be reached ({type(error).__name__}); try again, and check the "
                f"login and AWS_ENDPOINT_URL if it stays so"
            )

        return contain_errors(question, describe_error)


def find_object_root(patterns: Sequence[str]) -> str:
    """The folder that all of these URLs and globs are in: up to the first sign of a pattern."""
    roots = []
    for pattern in patterns:
        plain = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
        roots.append(plain.rpartition("/")[0])
    scheme, _, _ = roots[0].partition("://")
    return f"{scheme}://{os.path.commonpath([root.partition('://')[2] for root in roots])}"
