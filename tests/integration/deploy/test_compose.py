"""docker-compose.yml and Dockerfile, checked without an engine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
AIRFLOW = ("init", "api-server", "scheduler", "dag-processor", "triggerer")


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


def test_every_reference_exists() -> None:
    """Services that are waited for, volumes that are mounted, and variables that must be set."""
    for service in COMPOSE["services"].values():
        assert set(service.get("depends_on", {})) <= COMPOSE["services"].keys()
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            assert (
                (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
            )
    example = set(re.findall(r"^([A-Z_]+)=$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert set(re.findall(r"\$\{([A-Z_]+)", TEXT)) == example
    assert all(":?" in use for use in re.findall(r"\$\{[^}]+\}", TEXT))


def test_all_airflow_services_share_one_environment() -> None:
    """Secret, fernet key and execution address must be the same everywhere, or tasks cannot report."""
    environments = [COMPOSE["services"][name]["environment"] for name in AIRFLOW]
    assert all(environment == environments[0] for environment in environments)
    assert "/execution/" in environments[0]["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"]


def test_ports_are_published_on_loopback_only() -> None:
    """Nothing listens for the outside."""
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)


def test_the_image_uses_our_lock_and_no_root() -> None:
    """The same hashes as the tests, dependencies resolved by nobody else, and a user of its own."""
    text = (ROOT / "Dockerfile").read_text()
    assert (
        "--require-hashes -r requirements.lock" in text and "--no-deps --no-build-isolation" in text
    )
    assert "USER dpflow" in text and "://" not in text
    for source in re.findall(r"^COPY ([\w./ ]+) \./", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in source.split())


def test_the_lock_names_no_host() -> None:
    """Every requirement is pinned with hashes, and nothing says where it comes from."""
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock and "--index" not in lock
    pins = re.findall(r"^[\w.\[\]-]+==\S+", lock, re.MULTILINE)
    assert len(pins) > 150 and lock.count("--hash=sha256:") >= len(pins)
    assert not (ROOT / "uv.lock").exists() and not (ROOT / "pylock.toml").exists()
