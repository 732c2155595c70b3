"""deploy/kubernetes: what each pod holds, and its commands with its environments as processes of this machine."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from airflow_settings import find_wrong_settings
from compose_services import load_script
from own_certificate import write_certificate
from service_world import RELEASE, TOKENS, asker, task
from sql_world import DECLARATION

from dpflow import Ledger
from dpflow.client.remote import RemoteClient
from dpflow.demo.airflow_environment import find_free_port
from dpflow.errors import ServiceUnavailable
from dpflow.server.app import STOP_SECONDS

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "kubernetes"
MANIFESTS = [
    document
    for file in sorted(FOLDER.glob("*.yml"))
    for document in yaml.safe_load_all(file.read_text())
]
#: The pods by their container's name.
PODS: dict[str, dict[str, Any]] = {
    pod["containers"][0]["name"]: pod
    for pod in (
        one["spec"]["template"]["spec"] if one["kind"] == "StatefulSet" else one["spec"]
        for one in MANIFESTS
        if one["kind"] != "Service"
    )
}
(STATEFUL,) = (one for one in MANIFESTS if one["kind"] == "StatefulSet")
(SERVICE,) = (one for one in MANIFESTS if one["kind"] == "Service")
TASK = """
import json, sys
from dpflow.airflow.connection import ServiceHook
client = ServiceHook().get_conn()
print(json.dumps([[table["table"] for table in client.tables()], client.settle("tasks/release", json.load(sys.stdin))]))
"""


def names(pod: str, kind: str) -> set[str]:
    """ConfigMaps, Secrets or claims that a pod holds, by volume or variable."""
    key = {"configMap": "name", "secret": "secretName", "persistentVolumeClaim": "claimName"}[kind]
    found = {volume[kind][key] for volume in PODS[pod]["volumes"] if kind in volume}
    if kind == "secret":
        variables = [v["valueFrom"] for v in PODS[pod]["containers"][0]["env"] if "valueFrom" in v]
        found |= {variable["secretKeyRef"]["name"] for variable in variables}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.yml")), ids=lambda file: file.stem)
def test_kubernetes_schema_accepts_them(file: Path, tmp_path: Path) -> None:
    """Strictly: a field that Kubernetes does not have is an error, as the negative control shows."""

    def validate(manifest: Path) -> int:
        uv = [str(Path(sys.executable).with_name("uv")), "run", "--quiet", "--no-project"]
        command = [*uv, "--with", "kubernetes-validate==1.37.0", "kubernetes-validate", "--strict"]
        return subprocess.run([*command, str(manifest)], cwd=tmp_path, check=False).returncode

    wrong = tmp_path / "wrong.yml"
    wrong.write_text(file.read_text().replace("runAsNonRoot", "runAsNobody"))
    assert validate(file) == 0 and validate(wrong) != 0


def test_a_task_holds_no_row_key_or_ledger() -> None:
    """It has its token, the certificate that it trusts, and DAG files."""
    assert names("base", "secret") == {"dpflow-connection"}
    assert names("base", "configMap") == {"dpflow-ca"}
    assert names("base", "persistentVolumeClaim") == {"airflow-dags"}
    assert names("service", "secret") == {"dpflow-ledger", "dpflow-tls"}
    assert names("owner", "secret") == {"dpflow-owner"}
    claims = {claim["metadata"]["name"] for claim in STATEFUL["spec"]["volumeClaimTemplates"]}
    assert claims == {"rows", "anchor"}
    assert names("owner", "persistentVolumeClaim") == {f"{claim}-dpflow-0" for claim in claims}
    environment = json.dumps(PODS["base"]["containers"][0]["env"])
    assert "LEDGER" not in environment and "SQL_ALCHEMY" not in environment
    variables = PODS["base"]["containers"][0]["env"]
    assert find_wrong_settings({one["name"]: one.get("value", "") for one in variables}) == []


def test_references_and_selectors_meet() -> None:
    """Each mount has a volume, the Service finds the pod and its port, and one process writes the anchor."""
    claims = {claim["metadata"]["name"] for claim in STATEFUL["spec"]["volumeClaimTemplates"]}
    for name, pod in PODS.items():
        volumes = {volume["name"] for volume in pod["volumes"]}
        (container,) = pod["containers"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == volumes | (claims if name == "service" else set())
    labels = STATEFUL["spec"]["template"]["metadata"]["labels"]
    assert labels == SERVICE["spec"]["selector"] == STATEFUL["spec"]["selector"]["matchLabels"]
    (port,) = PODS["service"]["containers"][0]["ports"]
    assert SERVICE["spec"]["ports"][0]["targetPort"] == port["name"]
    assert STATEFUL["spec"]["replicas"] == 1


@pytest.mark.parametrize("name", PODS)
def test_a_pod_has_no_rights_that_it_does_not_use(name: str) -> None:
    pod = PODS[name]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["fsGroup"] == 50000
    for container in pod["containers"]:
        rights = container["securityContext"]
        assert rights["allowPrivilegeEscalation"] is False and rights["readOnlyRootFilesystem"]
        assert rights["capabilities"] == {"drop": ["ALL"]}
        for variable in container["env"]:
            secret = any(word in variable["name"] for word in ("CONN", "PASSWORD", "LEDGER"))
            is_plain = variable["name"] in ("DPFLOW_LEDGER_ANCHOR", "DPFLOW_LEDGER_OWNER")
            assert ("valueFrom" in variable) == (secret and not is_plain), variable["name"]
    assert pod.get("terminationGracePeriodSeconds", 30) >= 3 * STOP_SECONDS


def read_environment(pod: str, secrets: dict[str, str], places: dict[str, str]) -> dict[str, str]:
    """A container's variables, with places of this machine; nothing else but where programs are."""
    told = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for variable in PODS[pod]["containers"][0]["env"]:
        if "value" in variable:
            told[variable["name"]] = move(variable["value"], places)
        else:
            told[variable["name"]] = secrets[variable["valueFrom"]["secretKeyRef"]["name"]]
    return told


def move(text: str, places: dict[str, str]) -> str:
    """A text of a manifest with the places of this machine."""
    for place, here in places.items():
        # Each place begins a word, or follows an option.
        if text.startswith(place) or f"={place}" in text:
            return text.replace(place, here)
    return text


def run_owner(environment: dict[str, str], root: Path, places: dict[str, str]) -> None:
    """The page's commands in the owner's pod; then files of the anchor as fsGroup leaves a volume."""
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text()
    commands = re.findall(r"^kubectl exec (?:-it )?dpflow-owner -- (.*)$", page, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        words = [move(word, places) for word in shlex.split(command.partition(" > ")[0])]
        done = subprocess.run(
            words,
            env=environment,
            cwd=root / "rows",
            capture_output=True,
            errors="replace",
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert not list((root / "anchor").rglob("sign"))
    for file in (root / "anchor").rglob("*"):
        file.chmod(file.stat().st_mode | 0o060)


def test_a_task_releases_at_the_service(
    tmp_path: Path, password_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both as processes that have their manifest's variables and no others; the service has the login of tasks at
    PostgreSQL, and ends in its time.
    """
    monkeypatch.syspath_prepend(str(ROOT / "deploy"))
    load_script("make_secrets").write_secrets(tmp_path / "secrets", host=password_server)
    init = load_script("init")
    monkeypatch.setattr(init, "SECRETS", tmp_path / "secrets")
    init.make_logins()
    for folder in ("rows", "anchor/lost+found", "tmp", "dags"):
        (tmp_path / folder).mkdir(parents=True)
    declaration = DECLARATION | {"database": str(tmp_path / "rows" / "visits.duckdb")}
    ann = asker("ann", scope="visits", role="scheduler", dag_prefixes=["team_a_"])
    service = {"tables": {"visits": "visits.yml"}, "principals": {"ann": ann}}
    files = {"service.yml": yaml.safe_dump(service), "visits.yml": yaml.safe_dump(declaration)}
    # Files as a kubelet mounts a ConfigMap: links into a folder that is exchanged whole.
    folder = tmp_path / "service"
    (folder / "..1").mkdir(parents=True)
    (folder / "..data").symlink_to("..1")
    for name, text in files.items():
        (folder / "..1" / name).write_text(text)
        (folder / name).symlink_to(f"..data/{name}")
    # As the Secret and the ConfigMap have it.
    (tmp_path / "tls").mkdir()
    certificate = write_certificate(tmp_path / "tls")
    for file in ("tls.crt", "ca.crt"):
        shutil.copy(certificate, tmp_path / "tls" / file)
    certificate.with_name("key.pem").rename(tmp_path / "tls" / "tls.key")
    rows = [f"p{i},{('Oslo', 'Rome')[i % 2]}\n" for i in range(400)]
    (tmp_path / "tmp" / "visits.csv").write_text("person,city\n" + "".join(rows))
    port = find_free_port()
    url = f"https://127.0.0.1:{port}"
    connection = {"conn_type": "dpflow", "host": url, "password": TOKENS["ann"][0]}
    secrets = {
        "dpflow-ledger": (tmp_path / "secrets" / "dpflow_service_url").read_text(),
        "dpflow-owner": (tmp_path / "secrets" / "dpflow_owner_url").read_text(),
        "dpflow-connection": json.dumps(connection),
    }
    places = {
        "/opt/dpflow": str(tmp_path),
        "/run/tls": str(tmp_path / "tls"),
        "/run/ca": str(tmp_path / "tls"),
        "/tmp": str(tmp_path / "tmp"),
        "0.0.0.0": "127.0.0.1",
    }
    run_owner(read_environment("owner", secrets, places), tmp_path, places)
    monkeypatch.setenv("DPFLOW_LEDGER_ANCHOR", str(tmp_path / "anchor"))
    init.make_ledger()  # it is there, and gets its roles
    container = PODS["service"]["containers"][0]
    words = [move(word, places) for word in (*container["command"], *container["args"])]
    log = (tmp_path / "log").open("w+")
    receipt: Any = None
    process = subprocess.Popen(
        [*words, "--port", str(port)],
        env=read_environment("service", secrets, places), cwd=tmp_path / "tmp", stdout=log, stderr=log,
    )  # fmt: skip
    try:
        trusted = ssl.create_default_context(cafile=tmp_path / "tls" / "ca.crt")
        probe = container["readinessProbe"]["httpGet"]
        deadline = time.monotonic() + 120
        with httpx.Client(base_url=url, verify=trusted) as client:
            while process.poll() is None and time.monotonic() < deadline:
                try:
                    if client.get(probe["path"]).status_code == 200:
                        break
                except httpx.TransportError:
                    time.sleep(0.1)
            assert client.get(container["livenessProbe"]["httpGet"]["path"]).status_code == 200
        # The negative control: who trusts another certificate sends no token.
        with pytest.raises(ServiceUnavailable):
            RemoteClient(url, TOKENS["ann"][0]).tables()
        done = subprocess.run(
            [sys.executable, "-c", TASK], env=read_environment("base", secrets, places),
            cwd=tmp_path / "dags", input=json.dumps(task() | {"releases": [RELEASE]}), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        tables, receipt = json.loads(done.stdout.splitlines()[-1])
        assert tables == ["visits"] and TOKENS["ann"][0] not in done.stdout + done.stderr
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PODS["service"]["terminationGracePeriodSeconds"])
        log.seek(0)
        written = log.read()
        log.close()
    assert "Traceback" not in written, written
    assert RELEASE["name"] in json.dumps(receipt) and "Oslo" not in json.dumps(receipt)
    book = Ledger(secrets["dpflow-owner"], anchor=tmp_path / "anchor", owner=True)
    (row,) = book.remaining("visits").rows()
    assert row["epsilon_spent"] == "0.5" and book.verify().ok
