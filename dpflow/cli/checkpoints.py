"""`dpflow ledger checkpoint`, `key` and `recover`: signed notes, and going on after a loss."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from dpflow.cli.console import (
    JsonOption,
    KeysOption,
    LedgerOption,
    ReasonOption,
    open_ledger,
    read_text,
    show_json,
)
from dpflow.engine.releases.run_identity import current_principal
from dpflow.errors import InvalidInput, LedgerCorrupt
from dpflow.ledger.history.checkpoint import Signer


def sign_checkpoint(
    key: Annotated[
        Path | None,
        typer.Option(help="A witness's private key; the owner's, in the anchor, if left out."),
    ] = None,
    since: Annotated[
        Path | None,
        typer.Option(
            help="An earlier checkpoint of the same signer or the owner: only what came after it is verified."
        ),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="A folder outside, or git+URL, a Git repository: go on from the newest checkpoint there, and add one if there is "
            "anything new.",
        ),
    ] = None,
    ledger: LedgerOption = None,
) -> None:
    """Verify everything, then print a signed note of how far the history goes and what was spent.

    Keep it elsewhere: mail it, commit it, put it into an object store.
    """
    signer = read_signer(key)
    if into is not None:
        if since is not None:
            raise InvalidInput("--into finds the newest checkpoint by itself; leave --since out")
        return _add_checkpoint(into, signer, ledger)
    earlier = None if since is None else read_text(since)
    print(open_ledger(ledger).checkpoint(signer, since=earlier), end="")


def _add_checkpoint(into: str, signer: Signer | None, ledger: str | None) -> None:
    book = open_ledger(ledger)
    added = book.witness(into, signer)
    if added.is_new:
        print(f"entry {added.size}: the history extends what was there; {added.file} was added")
    else:
        print(f"entry {added.size}: nothing was written since {added.file}")
    if book.may_be_written():
        print(
            "note: this user can write the ledger, too, so these checkpoints are evidence against accidents only; run it as a "
            "user who may read the ledger and nobody else may write the place",
            file=sys.stderr,
        )
    if added.problems:
        raise LedgerCorrupt(
            f"{into} holds more than this witness added: {'; '.join(added.problems[:3])}"
            f"{' and more' if added.problems[3:] else ''}. Look at who may write there, and give the witness a new place"
        )


def read_signer(file: Path | None) -> Signer | None:
    """The key pair in a file. Raises `InvalidInput`."""
    return None if file is None else Signer.parse(read_text(file))


def make_key(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Where a person's or witness's new private key goes; none: show the owner's."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Whose key it is, such as ann or example.org/nightly.")
    ] = None,
    ledger: LedgerOption = None,
) -> None:
    """Print the verifier key of the owner, or make a key pair for a person or a witness and print its
    verifier key. Keep the file out of the anchor, which tasks share.
    """
    if file is None:
        print(open_ledger(ledger).signer.public_text)
        return
    signer = Signer.create(name or "")
    try:
        with open(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as stream:
            stream.write(signer.private_text)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be made ({error.strerror}); name a new file") from None
    print(signer.public_text)


def recover(
    reason: ReasonOption,
    lost: Annotated[
        Literal["mark", "database"] | None,
        typer.Option(
            help="mark: the anchor's mark alone; database: entries that cannot come back. Asked for on a terminal."
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="The newest checkpoint, if entries were lost.")
    ] = None,
    key: KeysOption = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on after a loss. A lost mark: the history is accepted as it is. Lost entries: scopes that they may
    have charged are closed until granted again.
    """
    if lost is None and sys.stdin.isatty():
        lost = typer.prompt("What was lost (mark, database)")
    if lost not in ("mark", "database"):
        raise InvalidInput("say what was lost: --lost mark or --lost database")
    book, principal = open_ledger(ledger), current_principal()
    if lost == "mark":
        if checkpoint is not None:
            raise InvalidInput("a checkpoint says what lost entries charged; use --lost database")
        book.reanchor(reason=reason, principal=principal, keys=key or ())
        closed: list[str] = []
    else:
        note = None if checkpoint is None else read_text(checkpoint)
        closed = book.recover(reason=reason, principal=principal, checkpoint=note, keys=key or ())
    if as_json:
        return show_json({"lost": lost, "closed": closed})
    print(f"recovered; closed until granted again: {', '.join(closed) or 'none'}")
