"""Notes that only the holder of the owner's signing key opens, sealed by whoever spends.

HPKE of RFC 9180 (X25519, HKDF-SHA256, AES-256-GCM). The private half follows from the signing key, so
there is no further secret to keep. The public half lies with the anchor's keys.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hmac
from typing import TYPE_CHECKING, Any

from dpflow.errors import LedgerCorrupt

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

#: Bytes of a note, and characters of its ciphertext: the same for every note, the empty one too.
NOTE, SEALED_NOTE = 234, 376
_PURPOSE = b"dpflow note to the owner"


def public_key(signing_key: bytes) -> bytes:
    """The key that seals notes to the holder of a signing key."""
    return _private_key(signing_key).public_key().public_bytes_raw()


def seal_note(note: str, public_half: bytes) -> str:
    """A note as `SEALED_NOTE` characters of base64. Longer ones than `NOTE` bytes are cut."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    plain = note.encode("ascii", "replace")[:NOTE].ljust(NOTE)
    key = X25519PublicKey.from_public_bytes(public_half)
    return base64.b64encode(_suite().encrypt(plain, key, _PURPOSE)).decode()


def open_note(sealed: str, signing_key: bytes) -> str:
    """The note; "" for none. Raises `LedgerCorrupt` if it was sealed to another key."""
    from cryptography.exceptions import InvalidTag

    try:
        data = binascii.a2b_base64(sealed, strict_mode=True)
        return str(_suite().decrypt(data, _private_key(signing_key), _PURPOSE).decode()).rstrip()
    except (InvalidTag, ValueError):
        raise LedgerCorrupt("this note is not sealed to this ledger's owner") from None


def _private_key(signing_key: bytes) -> X25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(hmac.digest(signing_key, _PURPOSE, "sha256"))


@functools.cache
def _suite() -> Any:
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

    return Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
