"""Encryption at rest: nothing that was drawn reaches the database in the clear.

Each settled result, and each answer of a session with the state after it, has a key of its own
(AES-256-GCM). The key is stored only wrapped under the anchor's ``wrap`` key, and it is the last
thing that a transaction writes: a database writes pages of a large transaction to its log before
the commit, and what a killed one leaves there is ciphertext without any key. A retry draws under a
new key, so nobody can open what the first try left.

Plaintexts begin with fresh salt. Their digest stands in the history, and without the salt it could
be searched: a count has few values.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import sqlalchemy as sa

from dpflow.errors import LedgerCorrupt
from dpflow.ledger.history import owner_notes
from dpflow.ledger.history.anchor import Anchor
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.statements import Prepared, Transaction, match_columns, prepare_insert

_K = schema.key.c
_INSERT = prepare_insert(schema.key)
_ALL = Prepared(sa.select(schema.key).order_by(_K.release_id, _K.version))
_REWRAP = Prepared(
    schema.key.update()
    .where(match_columns(_K.release_id, _K.version))
    .values(wrapped=sa.bindparam("new_wrapped", type_=sa.Text))
)
#: Hexadecimal digits of salt before the text.
SALT = 32
_NONCE = 12  # bytes, drawn for every message
_quote = json.encoder.encode_basestring_ascii


def add_salt(text: str) -> str:
    """A text behind fresh salt: equal texts have digests that do not show it."""
    return secrets.token_hex(SALT // 2) + text


def strip_salt(text: str) -> str:
    """The JSON object behind its salt, and the note behind that if there is one."""
    return text[text.index("{") :]


@functools.cache
def _load_cipher() -> tuple[Any, type[Exception]]:
    """AES-GCM, and what it raises for another key, place or text; loaded when first used."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM, InvalidTag


def _name_place(place: Sequence[str | int]) -> bytes:
    """As JSON with spaces: a ciphertext opens only where it was made."""
    texts = [_quote(part) if type(part) is str else str(part) for part in place]
    return f"[{', '.join(texts)}]".encode()


def _encrypt(key: bytes, data: bytes, place: Sequence[str | int]) -> str:
    nonce = secrets.token_bytes(_NONCE)
    sealed = _load_cipher()[0](key).encrypt(nonce, data, _name_place(place))
    return base64.b64encode(nonce + sealed).decode()


def _decrypt(key: bytes, text: object, place: Sequence[str | int]) -> bytes:
    """Raises `LedgerCorrupt` for what was not encrypted under this key for this place."""
    cipher, invalid = _load_cipher()
    try:
        data = binascii.a2b_base64(str(text), strict_mode=True)
        return cast(bytes, cipher(key).decrypt(data[:_NONCE], data[_NONCE:], _name_place(place)))
    except (invalid, ValueError):
        raise LedgerCorrupt(
            "a stored result, answer or state is not what this ledger encrypted there; run dpflow ledger verify"
        ) from None


def seal_text(anchor: Anchor, text: str, purpose: str) -> str:
    """Ciphertext that only this ledger's anchor opens, and for this purpose alone."""
    return _encrypt(_purpose_key(anchor, purpose), text.encode(), [purpose])


def open_text(anchor: Anchor, sealed: str, purpose: str) -> str:
    """The text that `seal_text` sealed. Raises `LedgerCorrupt` for anything else."""
    return _decrypt(_purpose_key(anchor, purpose), sealed, [purpose]).decode()


def _purpose_key(anchor: Anchor, purpose: str) -> bytes:
    return bytes.fromhex(anchor.commitment(b"", f"seal {purpose}"))


@dataclass(frozen=True)
class DataKey:
    """The key of one result (version 0), or of one answer and the state after it (its version).
    What it encrypts opens only in its own place.
    """

    release_id: str
    version: int
    _secret: bytes = field(repr=False)

    def encrypt(self, text: str, what: str) -> str:
        """Ciphertext as base64."""
        return _encrypt(self._secret, text.encode(), [self.release_id, self.version, what])

    def decrypt(self, text: object, what: str) -> str:
        """The text. Raises `LedgerCorrupt`."""
        return _decrypt(self._secret, text, [self.release_id, self.version, what]).decode()


class Cipher:
    """What makes, stores and finds the keys of one ledger."""

    def __init__(self, anchor: Anchor) -> None:
        self.anchor = anchor
        self._find_wrap: Callable[[str], bytes] = anchor.wrap_key

    def read_many(self) -> Cipher:
        """A cipher that looks for each wrap key once, for as long as one verification takes."""
        cipher = Cipher(self.anchor)
        cipher._find_wrap = functools.cache(self.anchor.wrap_key)
        return cipher

    def add_note(self, text: str, note: str) -> str:
        """A text behind fresh salt and a note to the owner, sealed to the owner's key: its length is that
        of every note, and whoever reads the text cannot read it.

        Args:
            note: how the draw failed, or "" if it did not.
        """
        sealed = owner_notes.seal_note(note, self.anchor.note_key)
        return secrets.token_hex(SALT // 2) + sealed + text

    def make_key(self, release_id: str, version: int) -> DataKey:
        """A new key, nowhere stored yet."""
        return DataKey(release_id, version, secrets.token_bytes(32))

    def store_keys(self, transaction: Transaction, keys: Iterable[DataKey]) -> None:
        """Store keys: the last thing before the commit. The caller has the turn."""
        rows = [self._wrap_key(key) for key in keys]
        if rows:
            transaction.many(_INSERT, rows)

    def open_key(self, release_id: str, version: int, wrapped: object) -> DataKey:
        """A stored key. Raises `LedgerCorrupt` if there is none, or none of this place."""
        if wrapped is None:
            raise LedgerCorrupt(
                f"the key of release {release_id} is gone, so what is stored cannot be read; "
                f"run dpflow ledger verify, and bring the newest copy back"
            )
        name, _, sealed = str(wrapped).partition(":")
        secret = _decrypt(self._find_wrap(name), sealed, [release_id, version])
        return DataKey(release_id, version, secret)

    def rewrap_keys(self, transaction: Transaction) -> int:
        """Wrap every key under the anchor's newest wrap key; returns how many there are."""
        keys = [self.open_key(*row) for row in transaction.rows(_ALL)]
        for key in keys:
            self.replace_key(transaction, key)
        return len(keys)

    def replace_key(self, transaction: Transaction, key: DataKey) -> None:
        """Store a key in the place of an earlier one."""
        row = self._wrap_key(key)
        transaction.run(_REWRAP, new_wrapped=row.pop("wrapped"), **row)

    def _wrap_key(self, key: DataKey) -> dict[str, object]:
        # Read inside the turn: a rotation may have put another one there meanwhile.
        name, wrap = self.anchor.newest_wrap_key()
        place: list[str | int] = [key.release_id, key.version]
        wrapped = f"{name}:{_encrypt(wrap, key._secret, place)}"
        return {"release_id": key.release_id, "version": key.version, "wrapped": wrapped}
