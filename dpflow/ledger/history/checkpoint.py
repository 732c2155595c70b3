"""Checkpoints: a small signed text that says how far the history went and what was spent.

It is a signed note of the C2SP specifications (signed-note, tlog-checkpoint; Ed25519): first the
ledger, the number of entries and the hash of the last one in base64, then lines of our own, then
one signature or more. Kept elsewhere (mailed, committed, in an object store) it proves later that
the ledger was not cut back behind it, even to somebody who has lost the anchor.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

from dpflow.core.accounting.privacy_filters import Cost
from dpflow.errors import InvalidInput, LedgerCorrupt, SignatureRequired
from dpflow.ledger.storage.compact_json import canonical_json

#: What a checkpoint says of a scope, behind its name.
SCOPE_COLUMNS = ("filter", "protects", "blocks", "closed", "approvals")

_ED25519 = b"\x01"  # the algorithm's number in signed notes
_DASH = "\u2014 "
_PRIVATE = "PRIVATE+KEY+"
_ORIGIN = "dpflow.ledger/"
_NAME = re.compile("[!-*,-~]{1,200}")
_PRIME = 2**255 - 19
#: The y of each point of order 1, 2, 4 and 8: signatures of these keys hold whoever makes them.
_Y8 = 2707385501144840649318225287225658788936804267575313519463743609750303402022
_SMALL_ORDER = {0, 1, _PRIME - 1, _Y8, _PRIME - _Y8}


@dataclass(frozen=True)
class Signer:
    """An Ed25519 key pair with a name that says whose it is.

    Attributes:
        name: as `check_key_name` has it.
        seed: the private half.
    """

    name: str
    seed: bytes

    @classmethod
    def create(cls, name: str) -> Signer:
        """A new pair. Raises `InvalidInput` for a name that `check_key_name` refuses."""
        check_key_name(name)
        return cls(name, secrets.token_bytes(32))

    @classmethod
    def parse(cls, text: str) -> Signer:
        """The pair that `private_text` wrote. Raises `InvalidInput`."""
        try:
            name, number, data = text.strip().removeprefix(_PRIVATE).split("+", 2)
            key = base64.b64decode(data, validate=True)
            signer = cls(name, key[1:])
            if not text.startswith(_PRIVATE) or key[:1] != _ED25519 or len(key) != 33:
                raise ValueError
            if signer.number.hex() != number:
                raise ValueError
        except ValueError:
            raise InvalidInput(
                "this file holds no private key of a signed note; make one: dpflow ledger key FILE --name NAME"
            ) from None
        check_key_name(name)
        return signer

    @property
    def public_key(self) -> bytes:
        """The public half."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.seed).public_key().public_bytes_raw()

    @property
    def number(self) -> bytes:
        """Four bytes that tell keys of one name apart."""
        return _key_number(self.name, self.public_key)

    @property
    def private_text(self) -> str:
        """One line for a file that only the signer reads."""
        return f"{_PRIVATE}{self.name}+{self.number.hex()}+{_encode(_ED25519 + self.seed)}\n"

    @property
    def public_text(self) -> str:
        """One line for whoever verifies: a verifier key of signed notes."""
        return f"{self.name}+{self.number.hex()}+{_encode(_ED25519 + self.public_key)}"

    def sign(self, text: str) -> str:
        """A signed note of a text."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        signature = Ed25519PrivateKey.from_private_bytes(self.seed).sign(text.encode())
        return f"{text}\n{_DASH}{self.name} {_encode(self.number + signature)}\n"

    def sign_line(self, text: str) -> str:
        """The signature of a text alone, as `check_line` reads it."""
        return self.sign(text).rpartition(" ")[2].strip()


class DecisionSigner(Protocol):
    """Who signs a decision: a key pair, or a signature that came from elsewhere."""

    @property
    def name(self) -> str:
        """Whose key it is."""

    @property
    def public_text(self) -> str:
        """The verifier key."""

    def sign_line(self, text: str) -> str:
        """The signature of a text."""


@dataclass(frozen=True)
class SentSignature:
    """A person's signature of a decision, made where the private key is. It stands for the key pair.

    Attributes:
        public_text: the verifier key.
        line: what `Signer.sign_line` made there; "" before the text is known.
    """

    public_text: str
    line: str = ""

    @property
    def name(self) -> str:
        """Whose key it is. Raises `InvalidInput` for a verifier key that is none."""
        return parse_public_key(self.public_text)[0]

    def sign_line(self, text: str) -> str:
        """The signature, if it is of this text. Raises `SignatureRequired`, which has the text, if it is not."""
        if not check_line(text, self.name, self.line, [self.public_text]):
            raise SignatureRequired(text)
        return self.line


def decision_text(head: str, kind: str, scope: str, principal: str, body: Mapping[str, Any]) -> str:
    """What an owner signs: a decision, bound to the hash of the entry before it, so that nobody can
    use the signature a second time.
    """
    fields = {"after": head, "kind": kind, "scope": scope, "principal": principal, "body": body}
    return f"dpflow.decision\n{canonical_json(fields)}\n"


def check_line(text: str, name: str, signature: object, keys: Sequence[str]) -> bool:
    """Whether one of these verifier keys, of this name, made a signature of a text."""
    parsed = [parse_public_key(key) for key in keys]
    return any(known == name and _is_signed(text, signature, known, key) for known, key in parsed)


def open_note(note: str, public_texts: Sequence[str]) -> tuple[str, str]:
    """The text of a signed note, and the name of a trusted key that signed it. Lines below the text that are no signature
    of a trusted key are passed over.

    Args:
        public_texts: the verifier keys that are trusted.

    Raises:
        LedgerCorrupt: no trusted key signed this text.
        InvalidInput: a verifier key that is none.
    """
    trusted = [parse_public_key(text) for text in public_texts]
    text, _, signatures = note.rpartition("\n\n")
    for line in signatures.split("\n"):
        dash, name, signature, *more = [*line.split(" "), "", ""]
        if dash + " " == _DASH and more == ["", ""]:
            for known, key in trusted:
                if known == name and _is_signed(f"{text}\n", signature, name, key):
                    return f"{text}\n", name
    raise LedgerCorrupt(
        "no trusted key signed this checkpoint; name the verifier key of whoever did: --key KEY"
    )


def check_key_name(name: str) -> None:
    """Refuse a key's name unless it is one word of 1 to 200 visible ASCII characters without plus signs: no two look alike
    in every font, and none moves a terminal or ends a line. Raises `InvalidInput`.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            "a key's name is one word of ASCII letters, digits and signs except plus, such as example.org/witness; correct it"
        )


def parse_public_key(text: str) -> tuple[str, bytes]:
    """The name and key of a verifier key. Raises `InvalidInput`, also for a key that everybody can sign for."""
    try:
        name, number, data = text.strip().split("+", 2)
        key = base64.b64decode(data, validate=True)
        if _encode(key) != data or key[:1] != _ED25519 or len(key) != 33:
            raise ValueError
        if _key_number(name, key[1:]).hex() != number:
            raise ValueError
    except ValueError:
        raise InvalidInput(
            "a verifier key reads name+number+base64, as dpflow ledger key prints it; correct it"
        ) from None
    check_key_name(name)
    y = int.from_bytes(key[1:], "little") % 2**255
    if y >= _PRIME or y in _SMALL_ORDER:
        raise InvalidInput(
            f"the verifier key of {name} is nobody's: anybody could sign for it; make another"
        )
    return name, key[1:]


def _is_signed(text: str, signature: object, name: str, key: bytes) -> bool:
    """Whether a key made a signature, four bytes that tell the key and 64 of Ed25519 in base64."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        data = base64.b64decode(str(signature), validate=True)
        if _encode(data) != signature or len(data) != 68 or data[:4] != _key_number(name, key):
            return False
        Ed25519PublicKey.from_public_bytes(key).verify(data[4:], text.encode())
    except (ValueError, InvalidSignature):
        return False
    return True


def _key_number(name: str, public_key: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + _ED25519 + public_key).digest()[:4]


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


@dataclass(frozen=True)
class Checkpoint:
    """What a ledger held when somebody signed it.

    Attributes:
        ledger_id: which ledger.
        size: number of the last entry.
        head: its hash, which covers all before it.
        root: the digest of every row that decides, as the last entry has it.
        at: when the last entry was written.
        scopes: name, filter as JSON text, what is protected, whether by blocks, whether closed, how
            many principals must agree to its next grant.
        spent: cost by scope and block.
        unsettled: what was reserved or open: release, its entry, attempts, the attempts that are fenced,
            version, and commitment to the secret state of a session, else None.
        waiting: entries of the proposals that waited.
        checked_after: 0 if every entry was verified; else those up to here were taken from an earlier
            checkpoint.
        recoveries: hashes of the recoveries that the history holds.
        watched: of scopes that demand a witness: name, the entry that it had signed, and the charges
            behind it.
    """

    ledger_id: str
    size: int
    head: str
    root: str
    at: str
    scopes: tuple[tuple[Any, ...], ...]
    spent: tuple[tuple[str, str, Cost], ...]
    unsettled: tuple[tuple[Any, ...], ...] = ()
    waiting: tuple[int, ...] = ()
    checked_after: int = 0
    recoveries: tuple[str, ...] = ()
    watched: tuple[tuple[str, int, int], ...] = ()

    @property
    def rank(self) -> tuple[int, int]:
        """Orders the checkpoints of one ledger: a recovery counts first, as its history may be shorter than what was lost."""
        return len(self.recoveries), self.size

    @property
    def text(self) -> str:
        """The lines that are signed."""
        head = _encode(bytes.fromhex(self.head))
        lines = [f"{_ORIGIN}{self.ledger_id}", str(self.size), head]
        lines += [f"state {self.root}", f"at {self.at}", f"checked after {self.checked_after}"]
        lines += [f"scope {_line(scope)}" for scope in self.scopes]
        lines += [
            f"spent {_line((scope, block, cost.epsilon, cost.delta, cost.renyi))}"
            for scope, block, cost in self.spent
        ]
        lines += [f"unsettled {_line(row)}" for row in self.unsettled]
        lines += [f"waiting {number}" for number in self.waiting]
        lines += [f"recovered {head}" for head in self.recoveries]
        lines += [f"watched {_line(row)}" for row in self.watched]
        return "\n".join(lines) + "\n"

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """What `text` says. Raises `InvalidInput`."""
        try:
            origin, size, head, state, at, checked, *more = text.splitlines()
            scopes = [json.loads(line[6:]) for line in more if line.startswith("scope ")]
            spent = [json.loads(line[6:]) for line in more if line.startswith("spent ")]
            unsettled = [json.loads(line[10:]) for line in more if line.startswith("unsettled ")]
            watched = [json.loads(line[8:]) for line in more if line.startswith("watched ")]
            parsed = cls(
                origin.removeprefix(_ORIGIN),
                int(size),
                base64.b64decode(head, validate=True).hex(),
                state.removeprefix("state "),
                at.removeprefix("at "),
                tuple(
                    (str(a), str(b), str(c), int(d), int(e), int(f)) for a, b, c, d, e, f in scopes
                ),
                tuple((str(a), str(b), Cost(*map(int, units))) for a, b, *units in spent),
                tuple(
                    (str(a), *map(int, numbers), None if z is None else str(z))
                    for a, *numbers, z in unsettled
                ),
                tuple(int(line[8:]) for line in more if line.startswith("waiting ")),
                int(checked.removeprefix("checked after ")),
                tuple(line[10:] for line in more if line.startswith("recovered ")),
                tuple((str(a), int(b), int(c)) for a, b, c in watched),
            )
            if any(len(row) != 6 for row in parsed.unsettled):
                raise ValueError
            if parsed.text != text:
                raise ValueError
        except (ValueError, TypeError, RecursionError):
            raise InvalidInput(
                "this is no checkpoint of a ledger; make one with: dpflow ledger checkpoint"
            ) from None
        return parsed


def parse_note(note: str) -> Checkpoint:
    """What a signed checkpoint says, whoever signed it. Raises `InvalidInput`."""
    return Checkpoint.parse(note.rpartition("\n\n")[0] + "\n")


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint at a witness's place: its number there, the signed note, and what that says."""

    number: int
    note: str
    point: Checkpoint


def select_newest(
    notes: Iterable[tuple[int, str]],
    ledger_id: str,
    find_keys: Callable[[Checkpoint], Set[str]],
    *,
    is_ordered: bool = False,
) -> dict[str, StoredCheckpoint]:
    """The newest checkpoint of a ledger by each verifier key that signed one, in whatever order they were added.

    Who may only add to a place hides none: what is no checkpoint, another ledger's, signed by no trusted key, or a
    checkpoint added once more is passed over.

    Args:
        notes: numbers and texts, the last first.
        find_keys: the keys that are trusted to have signed a checkpoint, given what it says of scopes.
        is_ordered: each extends what was added before it, so no more are read than are needed.
    """
    newest: dict[str, StoredCheckpoint] = {}
    keys_by_rules: dict[tuple[str, ...], Set[str]] = {}
    for number, note in notes:
        lines = note.split("\n")
        rules = tuple(line for line in lines if line.startswith("scope "))
        try:
            # No less than what a signed one comes to: most need no more than this.
            rank = sum(line.startswith("recovered ") for line in lines), int(lines[1])
            known = keys_by_rules.get(rules)
            if known is not None and all(
                key in newest and rank <= newest[key].point.rank for key in known
            ):
                continue
            point = parse_note(note)
        except (InvalidInput, ValueError, IndexError):
            continue
        if point.ledger_id != ledger_id:
            continue
        keys = keys_by_rules[rules] = find_keys(point)
        for key in keys:
            if key not in newest or point.rank > newest[key].point.rank:
                with contextlib.suppress(LedgerCorrupt, InvalidInput):  # another's, or no key
                    open_note(note, [key])
                    newest[key] = StoredCheckpoint(number, note, point)
        if is_ordered and keys <= newest.keys():
            break
    return newest


def _line(values: Sequence[Any]) -> str:
    return json.dumps(values, separators=(",", ":"))
