"""Writes the secrets of docker-compose.yml, a file each: ``python3 deploy/make_secrets.py [FOLDER]``.

A password or key that is there stays, so one of your own may be there before, whatever characters
it has. What is made of passwords, such as addresses of databases, is written again: change a
password, run this and then the service ``init``, and the login has it. Only you may enter the
folder. The files in it are readable, because containers mount them for users of their own.

Only the standard library is imported: it runs before there is an image.
"""

from __future__ import annotations

import argparse
import base64
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
    "dpflow_tasks": "dpflow",  # charges and settles
    "dpflow_page": "dpflow",  # the budget page: reads
}
#: Connections of Airflow: the file of who has them, and whose login it is.
CONNECTIONS = {
    "tasks_connections": ("dpflow_ledger", "dpflow_tasks"),
    "page_connections": ("dpflow_reader", "dpflow_page"),
}
ANCHOR = "/opt/dpflow/anchor"  #: where the ledger's anchor is in the containers that have it


def write_secrets(
    folder: Path, host: str = "postgres", port: int = 5432, anchor: str = ANCHOR
) -> None:
    """Make what is missing in a folder, and what follows from it.

    Args:
        folder: made if missing, mode 0700.
        host: of the database server, as containers see it; or its folder of Unix sockets.
        port: of the database server.
        anchor: directory of the ledger's anchor, as the tasks' container sees it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise SystemExit(
            f"{folder} is a link, or belongs to another user; name a folder of your own"
        )
    folder.chmod(0o700)
    keys = {f"{login}_password": secrets.token_urlsafe(24) for login in (*LOGINS, "admin")}
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
    for name, (connection, login) in CONNECTIONS.items():
        fields = {
            "conn_type": "dpflow_ledger",
            "host": host,
            "port": port,
            "login": login,
            "password": read_secret(folder / f"{login}_password"),
            "schema": LOGINS[login],
        }
        if login == "dpflow_tasks":
            fields["extra"] = json.dumps({"anchor": anchor})
        write_secret(folder / f"{name}.json", json.dumps({connection: fields}))


def read_secret(file: Path) -> str:
    """A secret without the line's end that an editor puts behind it."""
    return file.read_text(encoding="utf-8").rstrip("\r\n")


def write_secret(file: Path, text: str) -> None:
    """Write a new file whole or not at all; what was in its place, also a link, is replaced."""
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
    options = parser.parse_args()
    write_secrets(options.folder, options.host, options.port)
    print(
        f"{options.folder} has the secrets of docker-compose.yml; keep a copy where the anchor's is"
    )


if __name__ == "__main__":
    main()
