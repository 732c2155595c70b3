"""Ed25519 signatures (RFC 8032), to check and not to make: it is slow, and takes no care of secrets."""

import base64
import hashlib
import json

from costs import fold

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P


def point(data):
    """The point that 32 bytes name, or None."""
    number = int.from_bytes(data, "little")
    y, odd = number % 2**255, number >> 255
    if len(data) != 32 or y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    if (x * x - square) % P or (x == 0 and odd):
        return None
    return (P - x if x % 2 != odd else x), y


def add(a, b):
    (x1, y1), (x2, y2) = a, b
    both = D * x1 * x2 * y1 * y2
    x = (x1 * y2 + x2 * y1) * pow(1 + both, -1, P)
    return x % P, (y1 * y2 + x1 * x2) * pow(1 - both, -1, P) % P


def times(number, a):
    total = (0, 1)
    while number:
        if number % 2:
            total = add(total, a)
        a, number = add(a, a), number // 2
    return total


BASE = point((4 * pow(5, -1, P) % P).to_bytes(32, "little"))


def is_signed(text, signature, key_text):
    """Whether the key, as signed notes write it (name+number+base64), signed a text so."""
    name, _, key = key_text.split("+", 2)
    key = base64.b64decode(key)[1:]
    try:
        data = base64.b64decode(signature, validate=True)
    except ValueError:
        return False
    number = hashlib.sha256(name.encode() + b"\n\x01" + key).digest()[:4]
    first, scalar = data[4:36], int.from_bytes(data[36:], "little")
    if len(data) != 68 or data[:4] != number or base64.b64encode(data).decode() != signature:
        return False
    a, r = point(key), point(first)
    if scalar >= ORDER or a is None or r is None:
        return False
    digest = hashlib.sha512(first + key + text.encode()).digest()
    return times(scalar, BASE) == add(r, times(int.from_bytes(digest, "little") % ORDER, a))


def note_signers(note, keys):
    """Those of these verifier keys that signed a note, and its lines. Lines that are no signature do not count."""
    text, _, below = note.rpartition("\n\n")
    words = [line.split(" ") for line in below.split("\n")]
    signed = [tuple(word[1:]) for word in words if len(word) == 3 and word[0] == "\u2014"]
    pairs = [(key, part) for key in keys for name, part in signed if name == key.split("+")[0]]
    return {key for key, part in pairs if is_signed(text + "\n", part, key)}, text.splitlines()


def people(keys):
    """Verifier keys by name: each person has one name and one key."""
    parts = [key.split("+", 2) for key in keys]
    assert len(keys) == len({base64.b64decode(part[2]) for part in parts}), "one key, two signers"
    assert len(keys) == len({fold(part[0]) for part in parts}), "one name, two signers"
    return {fold(key.split("+")[0]): key for key in keys}


def check_decision(entry, body, signature, keys):
    """A decision is signed by the key of its principal."""
    fields = {name: entry[name] for name in ("kind", "scope", "principal")}
    fields |= {"after": entry["previous"], "body": body}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    key = keys.get(fold(entry["principal"]), "nobody+0+")
    assert key.split("+")[0] == entry["principal"] and signature, "not signed by who may"
    assert is_signed(f"dpflow.decision\n{text}\n", signature, key), "another signature"
