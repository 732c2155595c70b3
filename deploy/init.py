"""Once before the other services, and again after an upgrade or a change of passwords: whatever is
done stays done.

Makes the logins and databases, migrates Airflow's metadata, makes or upgrades the ledger under its
anchor with its roles, takes the owner's signing key out of it, and makes the service's certificate. Run as the service ``init`` of
docker-compose.yml. ``init.py demo`` is the service ``demo``: it loads the demo's private tables and grants their budgets.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import certifi
import psycopg
import sqlalchemy as sa
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from make_secrets import LOGINS, read_secret
from psycopg import sql

from dpflow import Ledger
from dpflow.demo.job import grant_demo_budgets, load_demo_tables
from dpflow.demo.workspace import Workspace
from dpflow.errors import LedgerUnavailable
from dpflow.private_files import require_own_folder, write_private

PLACE = Path(os.environ.get("DPFLOW_PLACE", "/opt/dpflow"))
SECRETS = Path(os.environ.get("DPFLOW_SECRETS", "/run/secrets"))
#: The role of roles.sql that each login has. The demo's gate needs sessions.
ROLES = {"dpflow_service": "dpflow_interactive", "dpflow_page": "dpflow_reader"}


def connect(login: str, database: str | None = None) -> psycopg.Connection:
    """A connection in which every statement is a transaction."""
    url = sa.make_url(read_secret(SECRETS / f"{login}_url"))
    return psycopg.connect(
        # A folder of Unix sockets stands with its port behind the question mark.
        host=url.query.get("host") or url.host,
        port=url.query.get("port") or url.port,
        user=url.username,
        password=url.password,
        dbname=database or url.database,
        autocommit=True,
    )


def make_logins() -> None:
    """Logins with the passwords of the secrets, each with its database; nobody enters another's."""
    with connect("postgres") as connection:
        for login in LOGINS:
            if login == "postgres":
                continue
            name = sql.Identifier(login)
            known = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [login])
            if not known.fetchone():
                connection.execute(sql.SQL("CREATE ROLE {}").format(name))
            # The server is sent what it would store, so that no log of statements has a password.
            password = read_secret(SECRETS / f"{login}_password").encode()
            stored = connection.pgconn.encrypt_password(password, login.encode(), b"scram-sha-256")
            # The ledger's owner makes the roles of those who spend.
            rights = "CREATEROLE" if login == "dpflow_owner" else "NOCREATEROLE"
            connection.execute(
                sql.SQL("ALTER ROLE {} LOGIN NOSUPERUSER NOCREATEDB {} PASSWORD {}").format(
                    name, sql.SQL(rights), sql.Literal(stored.decode())
                )
            )
        for database, owner in (("airflow", "airflow"), ("dpflow", "dpflow_owner")):
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [database])
            if not known.fetchone():
                connection.execute(
                    sql.SQL("CREATE DATABASE {} OWNER {}").format(
                        sql.Identifier(database), sql.Identifier(owner)
                    )
                )
            connection.execute(
                sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(database))
            )
        for login, database in LOGINS.items():
            if login != "postgres":
                connection.execute(
                    sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(
                        sql.Identifier(database), sql.Identifier(login)
                    )
                )


def make_ledger() -> None:
    """The ledger, its owner's, of this version, and what the other logins may do in it."""
    # The owner's login owns the tables and says so.
    place = read_secret(SECRETS / "dpflow_owner_url")
    try:
        Ledger(place, create=True, owner=True)
    except LedgerUnavailable:  # of an earlier schema version, most likely; if not, this fails, too
        Ledger.upgrade(place, principal="owner")
    roles = files("dpflow.ledger.storage").joinpath("roles.sql").read_text(encoding="utf-8")
    with connect("dpflow_owner") as connection:
        connection.execute(roles)
        for login, role in ROLES.items():
            connection.execute(
                sql.SQL("GRANT {} TO {}").format(sql.Identifier(role), sql.Identifier(login))
            )


def move_signing_key() -> None:
    """The key of the owner's checkpoints into a place that tasks do not reach, and a link to it."""
    key = Path(os.environ["DPFLOW_LEDGER_ANCHOR"]) / "sign"
    if key.is_symlink():
        return
    place = Path(os.environ["DPFLOW_OWNER_FOLDER"]) / "sign"
    place.parent.chmod(0o700)
    require_own_folder(place.parent)
    # Flushed to the other storage before it is gone from this one.
    write_private(place, key.read_bytes())
    link = key.with_name("sign.link")
    link.unlink(missing_ok=True)
    link.symlink_to(place)
    link.replace(key)


def make_certificate(folder: Path, trusted: Path) -> None:
    """The service's certificate with its key, for a year and signed by itself, unless both files are there, hold for a
    month and are trusted.

    Args:
        folder: gets ``tls.crt`` and ``tls.key``.
        trusted: gets ``ca.crt``: the usual authorities, and this certificate.
    """
    now, file, authorities = dt.datetime.now(dt.UTC), folder / "tls.crt", trusted / "ca.crt"
    if file.exists() and (folder / "tls.key").exists() and authorities.exists():
        present = file.read_bytes()
        ends = x509.load_pem_x509_certificate(present).not_valid_after_utc
        is_trusted = authorities.read_bytes() == Path(certifi.where()).read_bytes() + present
        if is_trusted and ends - now > dt.timedelta(days=30):
            return
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "dpflow service")])
    names = [x509.DNSName("service"), x509.DNSName("localhost")]
    names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=365))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    write_private(folder / "tls.key", key.private_bytes(encoding, form, plain))
    certificate = made.public_bytes(encoding)
    for place, content in (
        (authorities, Path(certifi.where()).read_bytes() + certificate),
        # The last one: with it all is made.
        (file, certificate),
    ):
        part = place.with_suffix(".part")
        part.write_bytes(content)
        part.replace(place)


def write_users() -> None:
    """The login of Airflow's pages, where its simple auth manager looks for it."""
    file = Path(os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"])
    write_private(file, json.dumps({"admin": read_secret(SECRETS / "admin_password")}).encode())


def load_demo() -> None:
    """The private tables of the demo and their grants, once."""
    workspace = Workspace(Path.cwd())
    ledger = Ledger(read_secret(SECRETS / "dpflow_owner_url"), owner=True)
    if not workspace.private_database.exists():
        load_demo_tables(workspace)
    if "flights" not in {scope.scope for scope in ledger.scopes()}:
        grant_demo_budgets(ledger, workspace)


def main() -> None:
    """Every step, in order; of the demo its own."""
    if sys.argv[1:] == ["demo"]:
        load_demo()
        return
    make_logins()
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True)
    make_ledger()
    move_signing_key()
    make_certificate(PLACE / "tls", PLACE / "ca")
    write_users()


if __name__ == "__main__":
    main()
