"""Signed notes: the form that other tools verify, and what nobody can change or sign for another."""

from __future__ import annotations

import base64
import hashlib

import pytest
from audit_program import load_program
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dpflow.core.accounting.privacy_filters import Cost
from dpflow.errors import InvalidInput, LedgerCorrupt
from dpflow.ledger.history.checkpoint import Checkpoint, Signer, open_note, parse_public_key

#: A key pair that Go's package note (golang.org/x/mod/sumdb/note) shows.
GO_PRIVATE = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz"
GO_PUBLIC = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"

POINT = Checkpoint(
    "a" * 16,
    7,
    "b" * 64,
    "c" * 64,
    "2026-01-01T00:00:00+00:00",
    (("flights", '{"filter":1}', "one person", 0, 0, 1),),
    (("flights", "", Cost(5, 6, 7)),),
)


def test_keys_are_written_as_go_writes_them():
    """The same public half and the same number of the key from the same private half."""
    signer = Signer.parse(GO_PRIVATE)
    assert (signer.public_text, signer.private_text.strip()) == (GO_PUBLIC, GO_PRIVATE)


def test_a_checkpoint_reads_back_and_is_a_note_by_the_letter():
    """Origin, size and base64 hash come first, and the signature covers all of it."""
    signer = Signer.create("example.org/witness")
    note = signer.sign(POINT.text)
    assert Checkpoint.parse(open_note(note, [signer.public_text])[0]) == POINT
    lines = note.splitlines()
    assert lines[:3] == ["dpflow.ledger/" + "a" * 16, "7", base64.b64encode(b"\xbb" * 32).decode()]
    text, signature = note.rsplit("\n\n", 1)
    name, data = signature.removeprefix("\u2014 ").split()
    number, raw = base64.b64decode(data)[:4], base64.b64decode(data)[4:]
    public = signer.public_key
    assert name == "example.org/witness"
    assert number == hashlib.sha256(name.encode() + b"\n\x01" + public).digest()[:4]
    Ed25519PublicKey.from_public_bytes(public).verify(raw, (text + "\n").encode())


def test_nothing_of_a_note_can_be_changed():
    signer, other = Signer.create("owner"), Signer.create("owner")
    note = signer.sign(POINT.text)
    for changed in (
        note.replace("\n7\n", "\n8\n"),
        note.replace("flights", "flight"),
        note.replace("\u2014 owner", "\u2014 other"),
        POINT.text,
        "",
        other.sign(POINT.text),
    ):
        with pytest.raises(LedgerCorrupt, match="no trusted key"):
            open_note(changed, [signer.public_text])
    # A second signature, of a witness, stands below the first.
    both = note + other.sign(POINT.text).rsplit("\n\n", 1)[1]
    assert open_note(both, [other.public_text])[0] == open_note(both, [signer.public_text])[0]


@pytest.mark.parametrize(
    "name",
    ["", "two words", "a+b", "line\nbreak", "bob\n", "bob\u200b", "bob\u034f", "bob\u202e", "b\u043eb", "\x1b[2K", "x" * 201],
)  # fmt: skip
def test_a_key_has_a_name_that_looks_like_no_other(name):
    """Wherever it is parsed: nobody is asked to tell bob from bob and a blank without width."""
    own = Signer(name, b"\x05" * 32)
    with pytest.raises(InvalidInput, match="one word"):
        Signer.create(name)
    for parse, text in ((Signer.parse, own.private_text), (parse_public_key, own.public_text)):
        with pytest.raises(InvalidInput, match="one word|private key|verifier key"):
            parse(text)


def test_a_key_that_anybody_signs_for_is_nobodys():
    """Points of small order, canonical or not: all eight, of which OpenSSL takes each."""
    with load_program() as modules:
        signatures, shapes = modules["signatures"], modules["shapes"]
        y8 = signatures.point(shapes.Y8.to_bytes(32, "little"))
        inverses = (
            (x, y, pow(z, -1, signatures.P))
            for x, y, z, _ in (signatures.times(n, y8) for n in range(8))
        )
        points = {(x * by % signatures.P, y * by % signatures.P) for x, y, by in inverses}
        assert len(points) == 8 and {y for _, y in points} == shapes.SMALL
        keys = [y | x % 2 << 255 for x, y in points] + [signatures.P + n for n in range(19)]
        for number in keys:
            key = number.to_bytes(32, "little")
            digest = hashlib.sha256(b"eve\n\x01" + key).digest()[:4].hex()
            text = f"eve+{digest}+{base64.b64encode(bytes([1]) + key).decode()}"
            with pytest.raises(InvalidInput, match="anybody could sign"):
                parse_public_key(text)
            assert not shapes.verifier_key(text)
        assert shapes.verifier_key(GO_PUBLIC) and parse_public_key(GO_PUBLIC)


def test_both_programs_read_the_same_lines_of_a_note():
    """Whoever adds lines below a signature changes nothing for either of them, and signs nothing."""
    signer = Signer.create("example.org/nightly")
    note, key = signer.sign(POINT.text), signer.public_text
    line = note.rpartition("\n\n")[2].strip()
    signature = line.rpartition(" ")[2]
    variants = {
        f"{note}\u2014 example.org/nightly ???\n": True,
        f"{note}\u2014 example.org/nightly\n\u2014 \n\u2014\n\n": False,  # the text ends elsewhere
        f"{note}\u2014 example.org/nightly \u00e9\n- x\n\u2014 other AAAA\nx": True,
        note.replace(line, f"{line} extra"): False,
        note.replace(line, line.removeprefix("\u2014 ")): False,
        note.replace(line, f"\u2014  {line[2:]}"): False,
        note.replace(signature, signature[:4] + "\n" + signature[4:]): False,
        note.replace(signature, signature.rstrip("=")): False,
        note.replace(line, line + "\u2028"): False,
        note: True,
    }
    with load_program() as modules:
        for text, holds in variants.items():
            try:
                opened = open_note(text, [key])[1] == "example.org/nightly"
            except LedgerCorrupt:
                opened = False
            assert opened == holds, text
            assert (modules["signatures"].note_signers(text, {key})[0] == {key}) == holds, text


@pytest.mark.parametrize(
    "text", ["", "x", GO_PUBLIC, GO_PRIVATE.replace("c74f20a3", "c74f20a4"), GO_PRIVATE[:-4]]
)
def test_what_is_no_private_key_is_refused(text):
    with pytest.raises(InvalidInput, match="no private key"):
        Signer.parse(text)


@pytest.mark.parametrize(
    "text", ["", "one\ntwo\n", POINT.text.replace("7", "07", 1), POINT.text + "x"]
)
def test_what_is_no_checkpoint_is_refused(text):
    with pytest.raises(InvalidInput, match="no checkpoint"):
        Checkpoint.parse(text)
