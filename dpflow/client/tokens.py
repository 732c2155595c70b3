"""Tokens of services: in the environment, or in a file of mode 0600 that ``dpflow login`` writes."""

from __future__ import annotations

import json
import os
from pathlib import Path

from dpflow.errors import InvalidInput
from dpflow.private_files import (
    UntrustedPlace,
    make_private_folder,
    require_own_file,
    write_private,
)
from dpflow.yaml_files import parse_json


def token_file() -> Path:
    """Where tokens are kept, by service: in XDG_CONFIG_HOME, or ``~/.config``."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "dpflow" / "tokens.json"


def find_token(server: str) -> str:
    """The token for a service. DPFLOW_TOKEN is sent to DPFLOW_SERVER alone, so that a ``dpflow.yml`` from
    elsewhere gets nobody's token. Raises `InvalidInput` if there is none.
    """
    is_chosen = os.environ.get("DPFLOW_SERVER", "").rstrip("/") == server
    token = (is_chosen and os.environ.get("DPFLOW_TOKEN")) or _read_tokens().get(server)
    if token is None:
        raise InvalidInput(
            f"no token for {server} is known; run dpflow login {server}, or set DPFLOW_TOKEN together with DPFLOW_SERVER"
        )
    return token


def store_token(server: str, token: str) -> Path:
    """Keep a token for a service; returns the file. Raises `InvalidInput` where that is not safe."""
    tokens, file = _read_tokens(), token_file()
    try:
        make_private_folder(file.parent)
        write_private(file, json.dumps(tokens | {server: token}).encode())
    except UntrustedPlace as error:
        raise InvalidInput(f"no token is written to {file}: {error.strerror}") from None
    except OSError:
        raise InvalidInput(f"{file} cannot be written; give DPFLOW_TOKEN instead") from None
    return file


def _read_tokens() -> dict[str, str]:
    file = token_file()
    try:
        status = file.stat()
        require_own_file(file, status)
        if status.st_mode & 0o077:
            raise InvalidInput(f"{file} can be read by others; run: chmod 600 {file}")
        tokens = parse_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except UntrustedPlace as error:
        raise InvalidInput(f"{file} is not used: {error.strerror}") from None
    except (OSError, ValueError):
        raise InvalidInput(f"{file} cannot be read; remove it, and run dpflow login") from None
    if not isinstance(tokens, dict):
        raise InvalidInput(f"{file} holds no tokens; remove it, and run dpflow login")
    return {str(server): str(token) for server, token in tokens.items()}
