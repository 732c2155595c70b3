"""The door ``gate``: candidates of strangers, rows that stay, verdicts that no row decides but through the gate."""

from __future__ import annotations

import base64
import copy
import errno
import hashlib
import io
import json
import logging
import multiprocessing
import os
import pickle
import socket
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import skops.io
import yaml
from service_world import Server, ServiceWorld, asker, headers_of, settle
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

from dpflow.cli import app
from dpflow.engine.sessions import candidate as candidates
from dpflow.engine.sessions.model_process import FIRST, ModelProcess
from dpflow.engine.sessions.model_sandbox import lock_process
from dpflow.errors import DpflowError, InvalidDeclaration, InvalidInput, PlanRefused
from dpflow.server.gates import load_gates
from dpflow.server.service import load_service
from dpflow.tables.access.declarations import load_table

PLANTED = "planted4711"
ROWS = """
CREATE TABLE holdout AS SELECT i AS person, (i % 100) / 100 AS a, (i % 7) / 7 AS b, (i % 100 >= 50)::INTEGER AS late
FROM range(4000) t(i)
"""
#: The same table with the most that rows can say: every value at an end or missing.
ODD = f"""
DELETE FROM holdout;
INSERT INTO holdout SELECT 7, 'infinity'::DOUBLE, 'nan'::DOUBLE, 1 FROM range(500);
INSERT INTO holdout VALUES (NULL, NULL, NULL, NULL);
CREATE TABLE {PLANTED} AS SELECT 1 AS x;
"""
DECLARATION: dict[str, Any] = {
    "name": "holdout",
    "database": "holdout.duckdb",
    "privacy_unit": {"column": "person"},
    "contribution_bounds": {"rows": 1},
    "holdout": True,
    "columns": {
        "person": {},
        "a": {"lower": 0, "upper": 1},
        "b": {"lower": 0, "upper": 1},
        "late": {"lower": 0, "upper": 1, "step": 1},
    },
}
GATE: dict[str, Any] = {
    "name": "late",
    "mechanism": "gate",
    "table": "holdout.yml",
    "scope": "holdout",
    "params": {
        "metric": "accuracy",
        "threshold": "0.2",
        "epsilon": 40,
        "queries": 20,
        "failures": 3,
    },
}
CHAMPIONS = GATE | {
    "name": "champions",
    "scope": "other",
    "params": GATE["params"] | {"question": "champion", "threshold": 0},
}


def make_world(folder: Path, **changes: Any) -> ServiceWorld:
    """A service with two gates on a holdout; ann may submit to both, though one is paid by another scope."""
    world = ServiceWorld(folder)
    with duckdb.connect(str(folder / "holdout.duckdb")) as connection:
        connection.execute(ROWS)
    for name, content in (("holdout", DECLARATION), ("gate", GATE), ("champions", CHAMPIONS)):
        (folder / f"{name}.yml").write_text(yaml.safe_dump(content))
    table = load_table(folder / "holdout.yml")
    for scope in ("holdout", "other"):
        world.ledger.grant(
            scope, 50, 0, filter="basic", table=table, principal="owner", confirm_large=True
        )
    service = yaml.safe_load(world.file.read_text())
    service["tables"]["holdout"], service["max_bytes"] = "holdout.yml", 10**8
    service["gates"] = {
        "late": {"gate": "gate.yml"},
        "champions": {"gate": "champions.yml", "champion": "champion.json"},
    } | changes
    may = {"doors": ["gate"], "tables": [], "gates": ["late", "champions"]}
    service["principals"]["ann"] = asker("ann") | may | {"scope": "holdout"}
    service["principals"]["bob"] = asker("bob") | may | {"scope": "other", "gates": ["champions"]}
    world.file.write_text(yaml.safe_dump(service))
    return world


def fit(flip: bool = False, kind: Any = LogisticRegression) -> bytes:
    rows = np.random.default_rng(0).random((400, 2))
    labels = (rows[:, 0] >= 0.5).astype(int)
    return bytes(skops.io.dumps(kind().fit(rows, 1 - labels if flip else labels)))


GOOD, BAD, FOREST = fit(), fit(flip=True), fit(kind=lambda: RandomForestClassifier(10))


def send(file: bytes | None = GOOD, claim: str | None = "0.9", **more: Any) -> dict[str, Any]:
    fields = {"name": "m", "label": "late", "features": ["a", "b"], "claim": claim} | more
    return fields | ({} if file is None else {"file": base64.b64encode(file).decode()})


def predictions(ids: Any, values: Any, claim: str | None = "0.9", **more: Any) -> dict[str, Any]:
    rows = {"column": "person", "ids": list(ids), "predictions": list(values)}
    return send(None, claim, features=[], predictions=rows | more)


DOOR = "gates/late/candidates"


def test_a_pipeline_submits_from_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command, with a skops file and a table of predictions, from a folder without rows: one charge, exit codes
    as beside the ledger, and the same again is free and the same.
    """
    world = make_world(tmp_path / "service" if (tmp_path / "service").mkdir() is None else tmp_path)
    server, client = Server(world.file), tmp_path / "client"
    client.mkdir()
    (client / "good.skops").write_bytes(GOOD)
    with duckdb.connect(str(client / "said.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE said AS SELECT i AS person, 1 - (i % 100 >= 50)::INT AS prediction FROM range(4000) t(i)"
        )
    shared = {"label": "late", "claim": "0.9"}
    table = {"database": "said.duckdb", "table": "said", "id": "person"}
    listed = {
        "good.yml": [{"name": "good", "file": "good.skops", "features": ["a", "b"], **shared}],
        "wrong.yml": [{"name": "wrong", "predictions": table, **shared}],
    }
    for name, content in listed.items():
        (client / name).write_text(yaml.safe_dump(content))
    monkeypatch.chdir(client)
    monkeypatch.setenv("DPFLOW_SERVER", server.url)
    monkeypatch.setenv("DPFLOW_TOKEN", headers_of("ann")["Authorization"].split()[1])

    def run(*words: str) -> tuple[int, Any]:
        done = CliRunner().invoke(app, ["gate", *words, "--json"])
        return done.exit_code, json.loads(done.stdout) if done.stdout else done.exception

    try:
        assert run("status", "late") == (0, {"session": "", "left": {"state": "not opened"}})
        code, said = run("submit", "late", "good.yml")
        assert (code, said["verdicts"][0]["verdict"], world.spent("holdout")) == (0, "yes", "40")
        assert run("submit", "late", "good.yml")[1]["verdicts"] == said["verdicts"]
        code, said = run("submit", "late", "wrong.yml")
        assert (code, said["verdicts"][0]["verdict"]) == (1, "no")
        assert said["left"]["failures_left"] == 2 and world.spent("holdout") == "40"
        for words, why in (
            (("submit", "late", "good.yml", "--champion", "c.json"), "leave --model"),
            (("status", "lato"), "did you mean 'late'"),
        ):
            assert why in str(run(*words)[1])
    finally:
        server.stop()
    assert "Traceback" not in server.log and world.ledger.verify().ok


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServiceWorld, Any]]:
    world = make_world(tmp_path_factory.mktemp("gates"))
    with world.test_client("ann") as client:
        yield world, client


class Bomb:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/dpflow-bomb",)


def zipped(content: bytes, copies: int = 0) -> bytes:
    """An archive of a schema, and of so many names of one member that unpacks to 256 MiB."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("schema.json", content)
        if copies:
            archive.writestr("0.npy", bytes(2**28))
        for n in range(1, copies):
            member = copy.copy(archive.filelist[-1])
            member.filename = f"{n}.npy"
            archive.filelist.append(member)
    return file.getvalue()


FORK = {"__class__": "fork", "__module__": "os", "__loader__": "FunctionNode", "__id__": 1}
FORK |= {"content": {"module_path": "os", "function": "fork"}}
#: Made when they are sent: to pack a bomb takes a CPU second.
ATTACKS: dict[str, Callable[[], bytes]] = {
    "pickle": lambda: pickle.dumps(Bomb()),
    "zip bomb": lambda: zipped(b"{}", copies=5),
    "bomb of a schema": lambda: zipped(b"[" * 10_000_000),
    "fork bomb": lambda: zipped(json.dumps(FORK).encode()),
    "no zip": lambda: b"PK\x03\x04" + bytes(100),
    "nothing": lambda: b"",
    "half": lambda: GOOD[: len(GOOD) // 2],
    "other features": lambda: bytes(skops.io.dumps(LogisticRegression().fit([[0], [1]], [0, 1]))),
    "no estimator": lambda: bytes(skops.io.dumps({"a": 1})),
    "nothing that predicts": lambda: bytes(skops.io.dumps(StandardScaler().fit([[0, 1], [1, 0]]))),
}


@pytest.mark.parametrize(
    "changes",
    [{"claim": "7"}, {"features": ["a", "nope"]}, {"label": "nope"}, {"options": {"x": 1}}],
)
def test_a_candidate_that_no_gate_can_judge_charges_nothing(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """The first one was refused behind the charge of the whole gate, with the words that nothing was charged."""
    world = make_world(tmp_path)
    with world.test_client("ann") as client:
        before = client.get("/v1/remaining").json()
        answer = settle(client, DOOR, send() | changes)
        assert answer.status_code == 422, answer.text
        assert client.get("/v1/remaining").json() == before


@pytest.mark.parametrize("name", ["zip bomb", "fork bomb"])
def test_a_file_that_is_no_model_charges_nothing(asked: Any, name: str) -> None:
    world, client = asked
    before = client.get("/v1/remaining").json()
    answer = settle(client, DOOR, send(ATTACKS[name]()))
    assert (answer.status_code, answer.json()["error"]) == (422, "invalid_input"), answer.text
    assert not answer.json()["retryable"] and "dpflow-candidate" not in answer.text
    assert client.get("/v1/remaining").json() == before and not Path("/tmp/dpflow-bomb").exists()


LISTS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "no file": lambda: [local(GOOD), local(None, file="gone.skops")],
    "no model": lambda: [local(GOOD), local(ATTACKS["half"]())],
    "other features": lambda: [local(ATTACKS["other features"]())],
    "no table": lambda: [local(None, features=[], predictions={"database": "p.duckdb", "table": "p", "id": "person"})],
    "a column that is none": lambda: [local(GOOD, features=["a", "nope"])],
    "a claim beyond the metric": lambda: [local(GOOD, claim="7")],
}  # fmt: skip


def local(content: bytes | None, **fields: Any) -> dict[str, Any]:
    """A candidate beside the ledger: its file is written where the list is."""
    name = {} if content is None else {"file": hashlib.sha256(content).hexdigest()[:8] + ".skops"}
    if content is not None:
        Path(name["file"]).write_bytes(content)
    return send(None) | name | fields


@pytest.mark.parametrize("door", [("gate", "submit", "gate.yml"), ("ask", "gate.yml", "--queries")])
def test_no_list_beside_the_ledger_charges_for_what_no_gate_can_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: tuple[str, ...]
) -> None:
    """As at a service: a file was read behind the charge of the whole gate."""
    world = make_world(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = [*door, "list.yml", "--ledger", str(tmp_path / "ledger.sqlite")]
    for name, make in LISTS.items():
        Path("list.yml").write_text(yaml.safe_dump(make()))
        done = CliRunner().invoke(app, words)
        assert isinstance(done.exception, DpflowError), (name, done.output)
        assert world.spent("holdout") == "0", name
    # The same list without a fault is answered and paid.
    Path("list.yml").write_text(yaml.safe_dump([local(GOOD)]))
    assert CliRunner().invoke(app, words).exit_code == 0 and world.spent("holdout") == "40"


def test_a_candidate_of_another_session_charges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(tmp_path)
    monkeypatch.chdir(tmp_path)
    params = {"epsilon": 1, "rows": 10, "queries": 3}
    Path("gate.yml").write_text(
        yaml.safe_dump(GATE | {"mechanism": "mean_queries", "params": params})
    )
    Path("list.yml").write_text(yaml.safe_dump([local(GOOD)]))
    words = [
        "ask",
        "gate.yml",
        "--queries",
        "list.yml",
        "--ledger",
        str(tmp_path / "ledger.sqlite"),
    ]
    assert isinstance(CliRunner().invoke(app, words).exception, PlanRefused)
    assert world.spent("holdout") == "0"


@pytest.mark.parametrize("name", ATTACKS)
def test_no_file_runs_code_or_fills_memory_here(name: str, tmp_path: Path) -> None:
    """The same check beside the ledger, where no process is between: each is refused as no model."""
    with pytest.raises(InvalidInput):
        candidates.load_bytes("m", ("a", "b"), "m.skops", ATTACKS[name]())
    assert not Path("/tmp/dpflow-bomb").exists()


@pytest.mark.parametrize(
    "body",
    [
        send(tracking_uri="http://10.0.0.1"),
        send(model="models:/m/1"),
        send(None) | {"file": "../champion.json"},
        send(claim=None),
        send(features=["secret"]),
        predictions([], []),
        predictions([1, "a"], [0, 1]),
        predictions([1, 2], [0]),
        predictions([1], [0], scores=[1, 2]),
        predictions([1], [0], scores=[]),
        send(estimator={"sql": "avg(secret)", "range": [0, 1], "default": 0}),
    ],
    ids=lambda body: str(sorted(body))[:40],
)
def test_what_a_candidate_may_not_say(asked: Any, body: Any) -> None:
    world, client = asked
    answer = settle(client, DOOR, body)
    assert answer.status_code == 422 and str(world.folder) not in answer.text, answer.text
    assert world.spent("holdout") == "0"


def test_gates_of_others_are_as_none(asked: Any) -> None:
    """Whom a gate is not for hears what is said of a gate that is not there; another scope pays for none."""
    world, client = asked
    bob = {"headers": headers_of("bob")}
    texts = [
        client.post(f"/v1/gates/{gate}/candidates", json=send(), **bob).json()["message"]
        for gate in ("late", "lato")
    ]
    assert texts[0].replace("'late'", "") == texts[1].replace("'lato'", "")
    assert client.get("/v1/gates/late", **bob).status_code == 422
    assert client.get("/v1/gates", headers=headers_of("cyd")).status_code == 403
    refused = client.post("/v1/gates/champions/candidates", json=send())
    assert refused.status_code == 422 and "another scope" in refused.json()["message"]
    (gate,) = client.get("/v1/gates", **bob).json()
    assert gate["gate"] == "champions" and gate["epsilon"] == "40"


def test_row_ids_change_no_status(tmp_path: Path) -> None:
    """Unknown ones and missing ones: the verdict alone says how good they are. What no id of the column's type is, is refused,
    whatever the rows are.
    """
    world, truth = make_world(tmp_path), [int(i % 100 >= 50) for i in range(4000)]
    with world.test_client("ann") as client:
        bodies = [
            predictions(range(4000), truth),
            predictions([*range(4000), 10**9, -15, 2**52], [*truth, 1, 0, None]),
            predictions([10**9], [1]),
            predictions(["77777"], [1]),
        ]
        answers = [settle(client, DOOR, body) for body in bodies]
        assert {answer.status_code for answer in answers} == {200}
        said = [answer.json()["verdict"]["verdict"] for answer in answers]
        assert said == ["yes", "yes", "no", "no"]
        assert len({tuple(sorted(answer.json()["verdict"])) for answer in answers[:2]}) == 1
        for odd in (-1.5, 2**60, PLANTED, "07"):
            refused = settle(client, DOOR, predictions([odd], [1]))
            assert refused.status_code == 422 and "not a whole number" in refused.text
    assert world.spent("holdout") == "40" and world.ledger.verify().ok


def test_a_better_model_becomes_champion(tmp_path: Path) -> None:
    """The champion's model stays at the service, for who challenges it; that of one who lost is gone."""
    world, poor = make_world(tmp_path), predictions([1], [0], claim=None)
    with world.test_client("bob") as client:
        door = "gates/champions/candidates"
        outcomes = [
            settle(client, door, body).json()["verdict"]["outcome"]
            for body in (poor, send(GOOD, None), predictions(range(4000), [0] * 4000, claim=None))
        ]
        assert outcomes == ["promoted", "promoted", "not_better"]
        asked_twice = settle(client, door, poor).json()["verdict"]
        assert asked_twice["promotion"] == "it was promoted, and then replaced"
    assert len(list((tmp_path / "champion.candidates").iterdir())) == 2
    assert json.loads((tmp_path / "champion.json").read_text())["champion"] == "2"


def test_a_candidate_whose_file_was_half_written_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, or killed: half of a file of a model or of predictions is no candidate, and is not taken for one."""
    world, door = make_world(tmp_path), "gates/champions/candidates"
    real = duckdb.connect

    def fail(file: Any) -> None:
        if "champion.candidates" in str(file):
            Path(file).touch()
            raise OSError(errno.ENOSPC, "full")

    def connect(*given: Any, **more: Any) -> Any:
        fail(given[0] if given else "")
        return real(*given, **more)

    with world.test_client("bob") as client:
        for body in (send(GOOD, None), predictions(range(4000), [0] * 4000, claim=None)):
            with monkeypatch.context() as patch:
                patch.setattr(
                    os, "fsync", lambda file: fail(Path(f"/proc/self/fd/{file}").readlink())
                )
                patch.setattr(Path, "write_bytes", lambda file, _: fail(file))
                patch.setattr(duckdb, "connect", connect)
                assert settle(client, door, body).status_code == 500
            assert settle(client, door, body).status_code == 200
    assert len(list((tmp_path / "champion.candidates").iterdir())) == 1


def test_a_process_that_dies_is_a_charged_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed among rows, the whole answer is none, whatever units were scored before; the gate closes."""
    world, compute = make_world(tmp_path), ModelProcess._compute
    calls: list[int] = []

    def die(self: ModelProcess, kind: bytes, matrix: Any) -> Any:
        calls.append(len(matrix))
        if len(calls) == 3:
            FIRST.kill(self.number)
        return compute(self, kind, matrix)

    monkeypatch.setattr(ModelProcess, "_compute", die)
    caplog.set_level(logging.DEBUG)
    # Scored unit by unit, so that some have a score when it dies.
    slow = bytes(skops.io.dumps(RandomForestClassifier(2, n_jobs=2).fit([[0, 0], [1, 1]], [0, 1])))
    with world.test_client("ann") as client:
        answer = settle(client, DOOR, send(slow))
        assert (answer.status_code, answer.json()["verdict"]["verdict"]) == (200, "none")
        assert answer.json()["left"]["state"] == "closed" and len(calls) >= 3
        again = settle(client, DOOR, send(slow)).json()["verdict"]
        assert again == answer.json()["verdict"]
    assert world.spent("holdout") == "40" and "CandidateStopped" not in caplog.text


def test_a_slow_model_is_refused_before_rows(tmp_path: Path) -> None:
    world = make_world(tmp_path, late={"gate": "gate.yml", "max_seconds": 0.1})
    huge = bytes(skops.io.dumps(RandomForestClassifier(600).fit([[0, 0], [1, 1]], [0, 1])))
    with world.test_client("ann") as client:
        answer = settle(client, DOOR, send(huge))
        assert answer.status_code == 422 and "slow" in answer.json()["message"], answer.text
    assert world.spent("holdout") == "0"


def test_no_row_decides_what_is_seen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Twin services whose rows differ as much as rows can: same statuses, fields, headers, metrics and charges."""
    caplog.set_level(logging.DEBUG)
    worlds = []
    for name in ("plain", "odd"):
        (tmp_path / name).mkdir()
        worlds.append(make_world(tmp_path / name))
    with duckdb.connect(str(tmp_path / "odd" / "holdout.duckdb")) as connection:
        connection.execute(ODD)
    seen, texts = [], []
    for world in worlds:
        shown: list[Any] = []
        with world.test_client("ann") as client:
            for body in (send(FOREST), predictions([1, 7], [1, 1])):
                answer = settle(client, DOOR, body)
                texts.append(answer.text)
                said = answer.json()
                fields = (sorted(said), sorted(said["left"]))
                headers = {k: v for k, v in answer.headers.items() if k != "content-length"}
                shown.append((answer.status_code, fields, headers))
            texts += [client.get(place).text for place in ("/metrics", "/v1/gates/late")]
            shown.append(client.get("/v1/remaining").json())
            shown.append([e.kind for e in world.ledger.history() if e.kind == "session"])
        seen.append(shown)
    assert seen[0] == seen[1]
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("dpflow")]
    assert PLANTED not in "".join(texts + ours)


def attempt(work: Any, queue: Any) -> None:
    lock_process(2**33, 60)
    try:
        work()
    except OSError as error:
        queue.send_bytes(error.__class__.__name__.encode())
    except BaseException as error:
        queue.send_bytes(repr(error).encode())
    else:
        queue.send_bytes(b"done")
    os._exit(0)


WORKS: dict[str, Any] = {
    "open": lambda: Path("/etc/hostname").read_text(),
    "write": lambda: os.open("/tmp/dpflow-locked", os.O_CREAT | os.O_WRONLY),
    "socket": socket.socket,
    # Not os.fork: other tests' libraries have handlers that start threads in a child, without end.
    "fork": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "kill": lambda: os.kill(os.getppid(), 0),
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "list": lambda: os.listdir("/"),
    "compute": lambda: np.linalg.inv(np.eye(50) * 2) @ np.ones(50),
    "time": lambda: __import__("time").sleep(0.01),
}


@pytest.mark.parametrize("name", WORKS)
def test_a_locked_process_only_computes(name: str) -> None:
    """No file, socket, process or signal; memory and numbers go on."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=attempt, args=(WORKS[name], theirs))
    process.start()
    assert ours.poll(60)
    said = ours.recv_bytes().decode()
    process.join(60)
    assert said == ("done" if name in ("compute", "time") else "PermissionError")


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"late": {"gate": "gate.yml", "champions": "x"}}, "champion"),
        ({"late": {"gate": "gate.yml", "better_by": -1}}, "better_by"),
    ],
)
def test_a_gate_in_the_file_says_what_is_wrong(tmp_path: Path, terms: Any, said: str) -> None:
    with pytest.raises(InvalidDeclaration, match=said):
        load_service(make_world(tmp_path, **terms).file)


def test_a_gate_is_about_a_served_table(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    service = load_service(world.file)
    unserved = service.model_copy(update={"tables": {}})
    with pytest.raises(InvalidInput, match="not served"):
        load_gates(unserved, world.ledger, world.test_client("ann").app.state.data._registry)


def test_a_status_tells_of_its_own_session_alone(tmp_path: Path) -> None:
    """Neither of another principal's session of that name nor of another revision's."""
    world = make_world(tmp_path)
    service = yaml.safe_load(world.file.read_text())
    may = {"scope": "holdout", "doors": ["release"], "tables": ["visits"], "gates": []}
    service["principals"]["bob"] = asker("bob") | may
    world.file.write_text(yaml.safe_dump(service))
    gate = GATE | {"params": GATE["params"] | {"epsilon": 10}}

    def show_left(revision: int) -> Any:
        (tmp_path / "gate.yml").write_text(yaml.safe_dump(gate | {"revision": revision}))
        with world.test_client("ann") as ann:
            return ann.get("/v1/gates/late").json()["left"]

    namesake = {"name": "late", "mechanism": "above_threshold", "table": "visits"}
    session = namesake | {"params": {"epsilon": "0.01"}}
    with world.test_client("bob") as bob:
        assert settle(bob, "sessions", {"session": session, "queries": []}).status_code == 200
    assert show_left(1) == {"state": "not opened"}
    with world.test_client("ann") as ann:
        assert settle(ann, DOOR, send()).status_code == 200
    assert show_left(1)["answered"] == 1
    assert show_left(2) == {"state": "not opened"}
    assert show_left(1)["answered"] == 1 and world.spent("holdout") == "10.01"
