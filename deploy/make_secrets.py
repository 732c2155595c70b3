"""Writes the secrets of docker-compose.yml, a file each, and the first service file: ``python3 deploy/make_secrets.py``.

A password or key that is there stays, so one of your own may be there before, whatever characters
it has. What is made of passwords, such as addresses of databases, is written again: change a
password, run this and then the service ``init``, and the login has it. Only you may enter the
folder. The files in it are readable, because containers mount them for users of their own.

The folder of the service gets its file and declarations from ``deploy/service`` and ``dags/tables``, where they are
missing, with the digests of the tokens that Airflow's connections have.

Only the standard library is imported: it runs before there is an image.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import secrets
import stat
from pathlib import Path
from urllib.parse import quote

#: Each login of the database server with the database it works in.
LOGINS = {
    "postgres": "postgres",  # the superuser, of the service init alone
    "airflow": "airflow",  # owns Airflow's metadata
    "dpflow_owner": "dpflow",  # owns the ledger: grants, verifies
    "dpflow_service": "dpflow",  # charges and settles
    "dpflow_page": "dpflow",  # the budget page: reads
}
#: Airflow's connections to the service, each with the token of one of its principals.
TOKENS = {"dpflow": "airflow_token", "dpflow_gates": "gates_token"}
SERVICE = "https://service:8321"  #: where containers find the service
HERE = Path(__file__).parent
TABLES = ("flights", "flights_holdout")  #: declarations that the first service file names


def write_secrets(
    folder: Path, host: str = "postgres", port: int = 5432, service: str = SERVICE
) -> None:
    """Make what is missing in a folder, and what follows from it.

    Args:
        folder: made if missing, mode 0700.
        host: of the database server, as containers see it; or its folder of Unix sockets.
        port: of the database server.
        service: address of the service, as containers see it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise SystemExit(
            f"{folder} is a link, or belongs to another user; name a folder of your own"
        )
    folder.chmod(0o700)
    keys = {f"{login}_password": secrets.token_urlsafe(24) for login in (*LOGINS, "admin")}
    keys |= {token: secrets.token_urlsafe(32) for token in TOKENS.values()}
    keys |= {name: secrets.token_urlsafe(48) for name in ("jwt_secret", "api_secret_key")}
    keys["fernet_key"] = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    for name, key in keys.items():
        if not (folder / name).exists():
            write_secret(folder / name, key)
    for login, database in LOGINS.items():
        password = quote(read_secret(folder / f"{login}_password"), safe="")
        place = f"{host}:{port}/{database}"
        if host.startswith("/"):  # a folder of Unix sockets
            place = f"/{database}?host={quote(host, safe='')}&port={port}"
        write_secret(folder / f"{login}_url", f"postgresql+psycopg://{login}:{password}@{place}")
    page = {
        "conn_type": "dpflow_ledger",
        "host": host,
        "port": port,
        "login": "dpflow_page",
        "password": read_secret(folder / "dpflow_page_password"),
        "schema": LOGINS["dpflow_page"],
    }
    write_secret(folder / "page_connections.json", json.dumps({"dpflow_reader": page}))
    tasks = {
        name: {
            "conn_type": "dpflow",
            "host": service,
            "password": read_secret(folder / token),
        }
        for name, token in TOKENS.items()
    }
    write_secret(folder / "tasks_connections.json", json.dumps(tasks))


def write_service(folder: Path, secret_files: Path) -> list[str]:
    """The service's file and the declarations of the flights, where they are missing; returns what to change in a file
    that is there and has not the digest of a token.

    Args:
        folder: of the service; made if missing.
        secret_files: where the tokens are.
    """
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    # Containers read them as a user of their own, whatever the umask is.
    for readable in (folder, folder / "tables"):
        readable.chmod(0o755)
    tables = HERE.parent / "dags" / "tables"
    files = {folder / file.name: file for file in (HERE / "service").glob("*.yml")}
    files |= {folder / "tables" / f"{name}.yml": tables / f"{name}.yml" for name in TABLES}
    digests = {
        token: hashlib.sha256(read_secret(secret_files / token).encode()).hexdigest()
        for token in TOKENS.values()
    }
    for target, source in files.items():
        if not target.exists():
            text = source.read_text(encoding="utf-8")
            for token, digest in digests.items():
                text = text.replace(f"SHA256 of {token}", digest)
            write_secret(target, text)
    served = (folder / "service.yml").read_text(encoding="utf-8")
    return [
        f"{folder / 'service.yml'} has another token than {secret_files / token}; write token_sha256: {digest}"
        for token, digest in digests.items()
        if digest not in served
    ]


def read_secret(file: Path) -> str:
    """A secret without the line's end that an editor puts behind it."""
    return file.read_text(encoding="utf-8").rstrip("\r\n")


def write_secret(file: Path, text: str) -> None:
    """Write a new file, readable by all, whole or not at all; what was in its place, also a link, is replaced."""
    part = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    with open(os.open(part, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY), "w") as written:
        os.fchmod(written.fileno(), 0o644)
        written.write(text)
    part.replace(file)


def main() -> None:
    """Write the secrets, and say where they are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("secrets"))
    parser.add_argument(
        "--host", default="postgres", help="the database server, as containers see it"
    )
    parser.add_argument("--port", type=int, default=5432)
    parser.add_argument(
        "--service", type=Path, default=Path("service"), help="the service's folder"
    )
    options = parser.parse_args()
    write_secrets(options.folder, options.host, options.port)
    for change in write_service(options.service, options.folder):
        print(change)
    print(
        f"{options.folder} has the secrets of docker-compose.yml; keep a copy where the anchor's is\n"
        f"{options.service / 'service.yml'} says which tables are served, and to whom"
    )


if __name__ == "__main__":
    main()
