"""Keys are kept where nobody else could have laid a folder, file or link for them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpflow.errors import InvalidDeclaration, InvalidInput
from dpflow.ledger import Ledger
from dpflow.ledger.history.anchor import Anchor
from dpflow.private_files import UntrustedPlace, make_private_folder, write_private
from dpflow.server.service import load_service


@pytest.fixture
def no_umask() -> Iterator[None]:
    old = os.umask(0)
    yield
    os.umask(old)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_all_is_private_under_any_umask(tmp_path, no_umask):
    """Folders were 0777 under umask 000; parents that are missing are made, too."""
    place = tmp_path / "a" / "b" / "ledger.sqlite"
    Ledger(place, anchor=tmp_path / "c" / "d" / "anchor", create=True)
    for folder in (place.parent, tmp_path / "a", tmp_path / "c", tmp_path / "c" / "d"):
        assert mode(folder) == 0o700
    anchor = tmp_path / "c" / "d" / "anchor"
    assert mode(anchor) == 0o700 and mode(place) == 0o600
    assert {mode(file) for file in anchor.iterdir()} == {0o600}


@pytest.mark.parametrize("name", ["key.new", "wrap", "sign", "notes", "mark"])
@pytest.mark.parametrize("plant", ["file", "link"])
def test_no_key_is_written_into_what_was_there(tmp_path, name, plant):
    """A file that all may read, or a link to another file, waits in the folder."""
    folder, victim = tmp_path / "anchor", tmp_path / "victim"
    folder.mkdir(mode=0o700)
    victim.write_text("precious")
    if plant == "link":
        (folder / name).symlink_to(victim)
    else:
        (folder / name).touch()
        (folder / name).chmod(0o666)
    planted = None if plant == "link" else os.open(folder / name, os.O_RDONLY)
    try:
        Anchor(folder).create()
    except InvalidInput as refusal:
        assert name == "key.new" and "no key of the ledger is kept" in str(refusal)
        assert not (folder / "key").exists()
    else:
        assert {mode(file) for file in folder.iterdir()} == {0o600}
        assert not (folder / name).is_symlink()
    assert victim.read_text() == "precious"
    if planted is not None:
        assert os.read(planted, 99) == b""  # who had it open reads nothing
        os.close(planted)


@pytest.mark.parametrize("bits", [0o770, 0o707])
def test_no_key_is_kept_where_others_write(tmp_path, bits):
    folder = tmp_path / "anchor"
    folder.mkdir()
    folder.chmod(bits)
    with pytest.raises(InvalidInput, match="can be written by"):
        Ledger(tmp_path / "ledger.sqlite", anchor=folder, create=True)
    assert list(folder.iterdir()) == []
    folder.chmod(0o700)
    Ledger(tmp_path / "ledger.sqlite", anchor=folder, create=True)
    folder.chmod(0o707)
    with pytest.raises(InvalidInput, match="can be written by all"):
        Ledger(tmp_path / "ledger.sqlite", anchor=folder)


def test_nor_below_what_another_user_made(tmp_path, monkeypatch):
    """A folder of somebody else, a link that stands for it, and one that all may write into."""
    (tmp_path / "theirs").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    with pytest.raises(UntrustedPlace, match="symbolic link or no folder"):
        make_private_folder(tmp_path / "link")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UntrustedPlace, match="can be written by all"):
        make_private_folder(tmp_path / "open" / "new")
    (tmp_path / "open").chmod(0o1777)
    make_private_folder(tmp_path / "open" / "new")
    monkeypatch.setattr(os, "geteuid", lambda me=os.geteuid(): me + 1)
    for place in ("theirs", "open/new"):
        with pytest.raises(UntrustedPlace, match="belongs to another user"):
            make_private_folder(tmp_path / place)
    with pytest.raises(InvalidInput, match="belongs to another user"):
        Anchor(tmp_path / "theirs").create()
    (tmp_path / "ledger.sqlite").touch()
    with pytest.raises(InvalidInput, match="no ledger is made there"):
        Ledger(tmp_path / "ledger.sqlite", anchor=tmp_path / "anchor", create=True)


@pytest.mark.parametrize("name", ["wrap", "mark"])
def test_what_replaces_a_key_follows_no_link(tmp_path, name):
    """A rotation, and an owner's new mark."""
    ledger = Ledger(tmp_path / "ledger.sqlite", anchor=tmp_path / "anchor", create=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    file, victim = tmp_path / "anchor" / name, tmp_path / "victim"
    victim.write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(victim)
    before = victim.read_bytes()
    if name == "wrap":
        ledger.rotate(principal="owner")
        assert not file.is_symlink()
    else:
        with pytest.raises(InvalidInput, match="is a symbolic link"):
            ledger._anchor.replace_mark(1, "0" * 64)
    assert victim.read_bytes() == before


def test_what_a_killed_writer_left_is_swept(tmp_path):
    """Its part holds a key: the next write removes it, and neither one under way nor anything else."""
    old, young, other = (
        tmp_path / name for name in (".key.00112233aabbccdd", ".key.0011223344556677", ".key.bak")
    )
    for part in (old, young, other):
        part.write_bytes(b"secret")
    for part in (old, other):
        os.utime(part, (0, 0))
    write_private(tmp_path / "key", b"new")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([young.name, other.name, "key"])


def test_a_write_replaces_a_link(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "file").symlink_to(tmp_path / "victim")
    write_private(tmp_path / "file", b"new")
    assert (tmp_path / "victim").read_text() == "precious" and mode(tmp_path / "file") == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "victim"]


def test_a_service_file_that_all_may_change_gives_nobody_a_token(tmp_path):
    file = tmp_path / "service.yml"
    file.write_text("session: s.yml\n")
    file.chmod(0o666)
    with pytest.raises(InvalidDeclaration, match="can be written by all"):
        load_service(file)
