"""Where a witness keeps checkpoints: a folder, a branch of a Git repository, or a store of `witness_stores`. They are only
added, in order.
"""

from __future__ import annotations

import errno
import io
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from dpflow.errors import InvalidInput, LedgerCorrupt, LedgerUnavailable, hide_credentials
from dpflow.ledger.audit.witness_stores import (
    MAX_BYTES,
    HttpPlace,
    NumberedPlace,
    ObjectPlace,
    TablePlace,
    WitnessPlace,
    can_write,
    list_numbers,
    name_note,
)
from dpflow.ledger.history.checkpoint import (
    Checkpoint,
    StoredCheckpoint,
    parse_note,
    select_newest,
)
from dpflow.private_files import sweep_left

_GIT = "git+"
_BRANCH = "refs/heads/main"
_PATIENCE = 60  # seconds for a command of Git's
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)


@dataclass(frozen=True)
class Witnessed:
    """A checkpoint that is at a place.

    Attributes:
        file: where it is.
        size: number of the last entry that it covers.
        is_new: false if nothing was written since the one before.
        problems: what else was added to the place: text that this witness did not sign, or an older checkpoint once more.
    """

    file: str
    size: int
    is_new: bool
    problems: tuple[str, ...] = ()


def open_place(name: str) -> WitnessPlace:
    """A folder; ``git+URL`` (``git+/srv/witness.git``, ``git+ssh://host/witness.git``); ``https://HOST/PATH`` of a witness's
    server; ``s3://BUCKET/FOLDER``; or SQLAlchemy's URL of another database. Raises `InvalidInput`.
    """
    if name.startswith(_GIT):
        return GitPlace(name.removeprefix(_GIT))
    scheme, has_scheme, _ = name.partition("://")
    if not has_scheme:
        return FolderPlace(Path(name))
    return {"http": HttpPlace, "https": HttpPlace, "s3": ObjectPlace}.get(scheme, TablePlace)(name)


def read_newest(
    place: WitnessPlace, ledger_id: str, find_keys: Callable[[Checkpoint], Set[str]]
) -> dict[str, StoredCheckpoint]:
    """The newest checkpoint of a ledger at a place; arguments as of `select_newest`, errors as of `WitnessPlace.notes`."""
    return select_newest(place.notes(), ledger_id, find_keys, is_ordered=place.is_ordered)


def add_checkpoint(
    place: WitnessPlace,
    ledger_id: str,
    keys: Set[str],
    sign: Callable[[str | None], str],
    prove: Callable[[Checkpoint, Checkpoint], Iterable[str]],
) -> Witnessed:
    """Sign how far the history goes, behind the newest checkpoint of a place, and add it.

    Args:
        ledger_id: whose checkpoints count.
        keys: verifier keys of who may have signed them.
        sign: makes a checkpoint, given an earlier one that the history must extend, or None.
        prove: the entries between two checkpoints, as `WitnessPlace.add` takes them.

    Raises:
        LedgerUnavailable: the place cannot be read or written.
        LedgerCorrupt: the history does not extend the newest checkpoint there, or does not verify.
    """
    newest: StoredCheckpoint | None = None
    last, ranks = (0, ""), {}
    for number, note in place.notes():
        last = max(last, (number, note))
        found = select_newest([(number, note)], ledger_id, lambda _: keys)
        stored = next(iter(found.values()), None)
        ranks[number] = None if stored is None else stored.point.rank
        if stored is not None and (newest is None or stored.point.rank > newest.point.rank):
            newest = stored
            if place.is_ordered:
                break
    note = sign(None if newest is None else newest.note)
    problems = () if place.is_ordered else _explain_ranks(ranks)
    point = parse_note(note)
    if newest is not None and newest.point.head == point.head:
        return Witnessed(name_note(newest.number), point.size, False, problems)
    entries: Iterable[str] = ()
    with suppress(InvalidInput):  # a place that checks entries holds checkpoints alone
        entries = prove(parse_note(last[1]), point)
    return Witnessed(place.add(last[0] + 1, note, entries), point.size, True, problems)


def _explain_ranks(ranks: Mapping[int, tuple[int, int] | None]) -> tuple[str, ...]:
    """What is wrong with the checkpoints of a place, given the rank of each that the witness signed."""
    problems, highest = [], (0, 0)
    for number, rank in sorted(ranks.items()):
        if rank is None:
            problems.append(f"{name_note(number)} is no checkpoint that this witness signed")
        elif rank <= highest:
            problems.append(f"{name_note(number)} is not newer than what was there before it")
        else:
            highest = rank
    return tuple(problems)


def _write_note(handle: int, note: str) -> None:
    with open(handle, "w", encoding="utf-8") as stream:
        stream.write(note)
        with suppress(OSError):  # a mounted bucket may have no modes
            os.fchmod(stream.fileno(), 0o444)
        stream.flush()
        os.fsync(stream.fileno())


@dataclass(frozen=True)
class FolderPlace(NumberedPlace):
    """A folder, such as a mounted bucket that keeps versions."""

    folder: Path

    def __str__(self) -> str:
        return str(self.folder)

    def _numbers(self) -> list[int]:
        with self._naming_faults():
            return list_numbers(file.name for file in self.folder.iterdir())

    def _read(self, number: int) -> str:
        """A checkpoint; as much of another file as one may hold."""
        with self._naming_faults(), open(self.folder / name_note(number), "rb") as file:
            return file.read(MAX_BYTES).decode(errors="replace")

    def add(self, number: int, note: str, entries: Iterable[str] = ()) -> str:
        """See `WitnessPlace`."""
        super().add(number, note)
        return str(self.folder / name_note(number))

    def _put(self, number: int, note: str, entries: Iterable[str]) -> None:
        """Whole or not at all: it gets its name when it is on the disk."""
        file = self.folder / name_note(number)
        with self._naming_faults():
            sweep_left(self.folder, r"\.draft-.{8}")
            handle, draft = tempfile.mkstemp(dir=self.folder, prefix=".draft-")
            try:
                _write_note(handle, note)
                os.link(draft, file)  # fails where another was first
            except OSError as error:
                # A mounted bucket has no second names; it keeps what was closed, or nothing.
                if error.errno not in _NO_LINKS:
                    raise
                create = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY | os.O_CLOEXEC
                _write_note(os.open(file, create, 0o444), note)
            finally:
                os.unlink(draft)

    def may_be_written(self) -> bool:
        """See `WitnessPlace`."""
        return can_write(self.folder)

    @contextmanager
    def _naming_faults(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LedgerUnavailable(
                f"no checkpoint can be read or kept in {self.folder} ({error.strerror}); name a folder that is there, and that "
                f"the witness may add files to"
            ) from None


@dataclass(frozen=True)
class GitPlace(WitnessPlace):
    """The branch ``main`` of a Git repository, to which commits are pushed that add a file each.

    It is fetched whole on each use. Nothing is pushed by force; have its server refuse that, too
    (``receive.denyNonFastForwards``, ``receive.denyDeletes``).
    """

    url: str = field(repr=False)

    def __str__(self) -> str:
        # A token in it writes the witness, and statements say where it is.
        return hide_credentials(self.url)

    def notes(self) -> Iterator[tuple[int, str]]:
        """See `WitnessPlace`. Each commit of the branch added the next file, and changed no other."""
        with self._fetched() as git:
            yield from self._read_notes(git, range(self._count_added(git), 0, -1))

    def _read_notes(
        self, git: Callable[..., str], numbers: Sequence[int]
    ) -> Iterator[tuple[int, str]]:
        """Checkpoints of these numbers; "" for what is no file, such as a submodule."""
        if numbers:
            names = "".join(f"{_BRANCH}:{name_note(number)}\n" for number in numbers)
            # Of each a line, its bytes, and a line's end; of what is no file the line alone.
            data = git("cat-file", "--batch", text=names).encode(errors="surrogateescape")
            stream = io.BytesIO(data)
            for number in numbers:
                *_, kind, size = stream.readline().split()
                note = stream.read(int(size) + 1)[:-1] if kind == b"blob" else b""
                yield number, note.decode(errors="replace")

    def add(self, number: int, note: str, entries: Iterable[str] = ()) -> str:
        """See `WitnessPlace`."""
        with self._fetched() as git:
            newest = self._read_newest(git)
            if number != (newest[0] if newest else 0) + 1:
                raise LedgerUnavailable(f"another checkpoint was added to {self}; try again")
            parent = ["-p", _BRANCH] if newest else []
            if newest:
                git("read-tree", _BRANCH)
            blob = git("hash-object", "-w", "--stdin", text=note).strip()
            git("update-index", "--add", "--cacheinfo", f"100644,{blob},{name_note(number)}")
            tree = git("write-tree").strip()
            commit = git("commit-tree", tree, *parent, "-m", f"Checkpoint {number}").strip()
            git("push", "--quiet", "--", self.url, f"{commit}:{_BRANCH}")
            return f"{self} {name_note(number)} ({commit[:12]})"

    def may_be_written(self) -> bool:
        """See `WitnessPlace`. A push that changes nothing is tried, as far as the server lets it come."""
        path = Path(self.url)
        if path.is_absolute() and path.exists() and path.stat().st_uid != os.geteuid():
            return any(os.access(path / part, os.W_OK) for part in ("", "refs/heads", "objects"))
        with self._fetched() as git:
            newest = self._read_newest(git)
            try:
                if newest:
                    git(
                        "push",
                        "--dry-run",
                        "--quiet",
                        "--",
                        self.url,
                        f"{_BRANCH}:refs/heads/write-test",
                    )
            except LedgerUnavailable:
                return False
        return True

    def _read_newest(self, git: Callable[..., str]) -> tuple[int, str] | None:
        number = self._count_added(git)
        return next(self._read_notes(git, [number])) if number else None

    def _count_added(self, git: Callable[..., str]) -> int:
        """Number of checkpoints. Raises `LedgerCorrupt`."""
        if not git("for-each-ref", _BRANCH).strip():
            return 0
        log = git(
            "log",
            "--first-parent",
            "-m",
            "--no-renames",
            "--reverse",
            "--format=",
            "--name-status",
            _BRANCH,
        )
        added = [line.split("\t") for line in log.splitlines()]
        for number, change in enumerate(added, 1):
            if change != ["A", name_note(number)]:
                raise LedgerCorrupt(
                    f"the history of {self} did not add {name_note(number)} where it was due: a checkpoint was changed, left out or "
                    f"taken away. Bring the newest copy of the repository back"
                )
        return len(added)

    @contextmanager
    def _fetched(self) -> Iterator[Callable[..., str]]:
        """A copy of the repository, and what runs Git in it."""
        sweep_left(Path(tempfile.gettempdir()), "dpflow-witness-.{8}")
        with tempfile.TemporaryDirectory(prefix="dpflow-witness-") as folder:

            def git(*words: str, text: str | None = None) -> str:
                return self._run(["git", f"--git-dir={folder}", *words], text)

            git("init", "--quiet", "--bare", folder)
            git("fetch", "--quiet", "--no-tags", "--", self.url, "+refs/heads/*:refs/heads/*")
            yield git

    def _run(self, command: list[str], text: str | None) -> str:
        environment = {n: v for n, v in os.environ.items() if not n.startswith("GIT_")}
        who = {"NAME": "dpflow", "EMAIL": "dpflow@localhost"}
        environment |= {
            f"GIT_{role}_{n}": v for role in ("AUTHOR", "COMMITTER") for n, v in who.items()
        }
        environment |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        environment |= {n: os.environ[n] for n in ("GIT_SSH_COMMAND", "GIT_SSH") if n in os.environ}
        try:
            done = subprocess.run(
                command,
                input=None if text is None else text.encode(),
                env=environment,
                capture_output=True,
                timeout=_PATIENCE,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LedgerUnavailable(
                f"Git could not be run for {self} ({type(error).__name__}); install it, or look at the server"
            ) from None
        if done.returncode:
            message = hide_credentials(done.stderr.decode(errors="replace"))
            last = (message.strip().splitlines() or ["no message"])[-1]
            raise LedgerUnavailable(
                f"the witness's repository {self} cannot be read or written (git {command[2]}: {last[:200]}); try again, or "
                f"name one that is there"
            )
        return done.stdout.decode(errors="surrogateescape")
