"""The champion in a file beside the gate, for those who have no model registry."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from dpflow.core.accounting.amounts import parse_exact
from dpflow.engine.sessions.candidate import Candidate
from dpflow.engine.sessions.holdout_gate import Champion
from dpflow.errors import InvalidInput, NotPublished
from dpflow.yaml_files import parse_json

_Number = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,8}$")]


class _Version(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    candidate: str
    submission: str
    sessions: list[str]
    replaced: _Number | None = None


class _Content(BaseModel):
    """What the file holds: whoever may edit or merge it may also damage it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    champion: _Number | None
    versions: dict[_Number, _Version]

    def has_all_named(self) -> bool:
        """Whether it holds each version that it names, and a champion if any: without one, the next
        candidate would be promoted and compared with nothing.
        """
        replaced = (v.replaced for v in self.versions.values() if v.replaced is not None)
        if self.champion is None:
            return not self.versions
        return {self.champion, *replaced} <= self.versions.keys()


class ChampionFile:
    """A JSON file of versions and of which of them is the champion, as a registry's alias.

    Args:
        file: made with the first champion.
        better_by: by how much a challenger has to be better, in units of the session's metric.
    """

    tracking_uri = None

    def __init__(self, file: Path, better_by: str | int = 0) -> None:
        self._file, self.better_by = file, parse_exact("better_by", better_by)
        if self.better_by < 0:
            raise InvalidInput(f"better_by {better_by} is negative; write 0 or more")
        self._read()

    def find_champion(self) -> Champion | None:
        """The champion's version."""
        content = self._read()
        return _describe(content, content["champion"])

    def find_missing(self) -> str:
        """As `Promotes.find_missing`: the file may have been deleted, or left out of a checkout."""
        if self._file.exists():
            return ""
        return f'{self._file} is missing; restore the file, or to begin anew write {{"champion": null, "versions": {{}}}} into it'

    def find_replaced(self) -> Champion | None:
        """The version that the champion replaced."""
        content = self._read()
        standing = content["versions"].get(content["champion"], {})
        return _describe(content, standing.get("replaced"))

    def was_promoted(self, digest: str, session: str) -> bool:
        """Whether this candidate became champion in this session."""
        versions = self._read()["versions"].values()
        return any(v["candidate"] == digest and session in v["sessions"] for v in versions)

    def promote(
        self, candidate: Candidate, record: Mapping[str, str], seen: Champion | None
    ) -> bool:
        """As `Promotes.promote`: the file is locked from the look to the move."""

        def change(content: dict[str, Any]) -> None:
            versions = content["versions"]
            known = (n for n, v in versions.items() if v["candidate"] == candidate.digest)
            number = next(known, str(1 + max(map(int, versions), default=0)))
            sessions = versions.get(number, {}).get("sessions", [])
            submission = candidate.submission.model_dump_json()
            about = {"candidate": candidate.digest, "submission": submission, **record}
            versions[number] = {**about, "sessions": [*sessions, record["session"]]}
            content["champion"] = number

        return self._change(change, seen)

    def roll_back(self, former: Champion, record: Mapping[str, str], seen: Champion | None) -> bool:
        """Make a former version the champion; the one that falls says in which session."""

        def change(content: dict[str, Any]) -> None:
            content["versions"][content["champion"]]["rolled_back"] = record["session"]
            content["champion"] = former.version

        return self._change(change, seen)

    def _read(self) -> dict[str, Any]:
        try:
            content = parse_json(self._file.read_text(encoding="utf-8"))
            if _Content.model_validate(content).has_all_named():
                return dict(content)
        except FileNotFoundError:
            return {"champion": None, "versions": {}}
        except OSError as error:
            raise NotPublished(
                f"{self._file} cannot be read ({error.strerror}); what the gate said is stored, so submit the same again"
            ) from None
        except ValueError:
            pass
        raise InvalidInput(
            f"{self._file} holds no champion of a gate, or it was damaged; restore it, or name another file"
        )

    def _change(self, change: Callable[[dict[str, Any]], None], seen: Champion | None) -> bool:
        """Change the file whole or not at all, one process at a time; not where another champion stands than was seen."""
        lock, part = (self._file.with_name(f".{self._file.name}.{end}") for end in ("lock", "part"))
        try:
            with lock.open("w") as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                if seen is not None and self.find_missing():
                    raise NotPublished(
                        f"{self._file} was deleted while the gate compared; what the gate said is stored, so restore the file and "
                        f"submit the same again, which costs nothing"
                    )
                content = self._read()
                if _describe(content, content["champion"]) != seen:
                    return False
                change(content)
                with part.open("w", encoding="utf-8") as file:
                    json.dump(content, file, indent=2)
                    file.flush()
                    os.fsync(file.fileno())
                part.replace(self._file)
                return True
        except OSError as error:
            raise NotPublished(
                f"{self._file} cannot be written ({error.strerror}); what the gate said is stored, so submit the same again"
            ) from None


def _describe(content: Mapping[str, Any], number: str | None) -> Champion | None:
    version = content["versions"].get(number)
    return version and Champion(str(number), version["candidate"], version["submission"])
