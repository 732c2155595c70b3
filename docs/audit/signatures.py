"""Ed25519 signatures (RFC 8032), to check and not to make: it is slow, and takes no care of secrets."""

import base64
import hashlib
import json

from costs import fold, link
from shapes import verifier_key

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P


def point(data):
    """The point that 32 bytes name, or None. Of X, Y, Z and T: x = X / Z, y = Y / Z and x y = T / Z."""
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
    x = P - x if x % 2 != odd else x
    return x, y, 1, x * y % P


def add(a, b):
    (x1, y1, z1, t1), (x2, y2, z2, t2) = a, b
    minus, plus = (y1 - x1) * (y2 - x2) % P, (y1 + x1) * (y2 + x2) % P
    both, twice = 2 * D * t1 * t2 % P, 2 * z1 * z2 % P
    e, f, g, h = plus - minus, twice - both, twice + both, plus + minus
    return e * f % P, g * h % P, f * g % P, e * h % P


def times(number, a):
    total = (0, 1, 1, 0)
    while number:
        if number % 2:
            total = add(total, a)
        a, number = add(a, a), number // 2
    return total


def are_equal(a, b):
    return all((a[n] * b[2] - b[n] * a[2]) % P == 0 for n in (0, 1))


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
    number = int.from_bytes(digest, "little") % ORDER
    return are_equal(times(scalar, BASE), add(r, times(number, a)))


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


def compare(audit, names):
    """Hold checkpoints kept elsewhere against the history; verifier keys among the names say whose count.

    What is wrong, the witnesses that scopes demand and none of them is by, a sentence about each, and the hashes of those
    that recoveries took over."""
    missing = {rule["witness"][0] for rule, *_ in audit.granted.values() if "witness" in rule}
    keys, said, taken = missing | set(filter(verifier_key, names)), [], set()
    for file in names:
        if verifier_key(file):
            continue
        try:
            with open(file, encoding="utf-8") as stream:
                signers, lines = note_signers(stream.read(), keys)
            ledger, size = lines[0].removeprefix("dpflow.ledger/"), int(lines[1])
            head = base64.b64decode(lines[2], validate=True).hex()
            spent = [json.loads(line[6:]) for line in lines if line.startswith("spent ")]
            sums = {(at, block): [*map(int, units)] for at, block, *units in spent}
            assert size > 0 and all(len(units) == 3 for units in sums.values())
        except (AssertionError, OSError, ValueError, LookupError, TypeError):
            return f"{file} is no checkpoint", missing, said, taken
        if not signers:
            wrong = (
                f"no key that was named signed {file}: name the verifier key of who did behind it "
                "(the owner's: dpflow ledger key)"
            )
            return wrong, missing, said, taken
        named, now = [ledger, size, head], audit.spent
        is_here = audit.first == link(ledger) and audit.heads[size - 1 : size] == [head]
        for point, then in audit.recovered:
            if not is_here and point and point[:3] == named:
                now = then
                taken.add(head)
        if not is_here and head not in taken:
            return f"the history does not extend {file}", missing, said, taken
        for (scope, block), units in sums.items():
            counted = now.get(scope, {}).get(block, (0, 0, 0))
            if any(a > b for a, b in zip(units, counted)):
                return f"less is spent than {file} says of {scope}", missing, said, taken
        how = f"extended, {len(audit.heads) - size} entries behind it" if is_here else "taken over"
        by = ", ".join(sorted(key.split("+")[0] for key in signers))
        said.append(f"{file}, the checkpoint of entry {size} by {by}: {how}")
        missing = missing - signers
    return "", missing, said, taken
