"""The door ``read``: settled results by URL, with ETags, as the ledger has them."""

from __future__ import annotations

import base64
import datetime as dt
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pandas
import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml
from service_world import (
    RELEASE,
    TOKENS,
    TRUST,
    ServiceWorld,
    asker,
    headers_of,
    serve_here,
    settle,
    task,
)

from dpflow.engine.releases.copies import find_latest
from dpflow.engine.releases.republish import read_settled
from dpflow.errors import InvalidDeclaration
from dpflow.server.publications import Publications, PublishedFile
from dpflow.server.service import load_service


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> ServiceWorld:
    world = ServiceWorld(tmp_path_factory.mktemp("published"))
    service = yaml.safe_load(world.file.read_text())
    service["published"] = {
        "daily": {"release": "daily", "scope": "visits/ann"},
        "hidden": {"release": "daily", "scope": "visits/bob"},
        "empty": {"release": "never", "scope": "visits/ann"},
    }
    reader = {"token_sha256": TOKENS["cyd"][1], "doors": ["read"], "published": ["daily", "empty"]}
    service["principals"]["cyd"] = reader
    world.file.write_text(yaml.safe_dump(service))
    return world


@pytest.fixture(scope="module")
def client(world: ServiceWorld) -> Iterator[Any]:
    """A reader, who asks after two days were released, the later one first."""
    with world.test_client("cyd") as client:
        for day in (2, 1):
            body = task(day=day) | {"releases": [RELEASE]}
            ann = world.test_client("ann")
            with ann:
                assert settle(ann, "tasks/release", body).status_code == 200
        yield client


def test_each_kind_has_the_same_rows(client: Any) -> None:
    (daily, empty) = client.get("/v1/published").json()
    assert (daily["name"], daily["results"], empty["results"]) == ("daily", 2, 0)
    files = {
        kind: client.get(f"/v1/published/daily.{kind}")
        for kind in ("csv", "json", "parquet", "arrow")
    }
    assert {file.status_code for file in files.values()} == {200}
    tables = [
        pa.parquet.read_table(io.BytesIO(files["parquet"].content)),
        pa.ipc.open_file(io.BytesIO(files["arrow"].content)).read_all(),
    ]
    assert tables[0] == tables[1] and tables[0].num_rows == 6
    records = files["json"].json()
    assert [record["value"] for record in records] == tables[0]["value"].to_pylist()
    assert files["csv"].text.count("\n") == 7 and files["csv"].headers["content-type"].startswith(
        "text/csv"
    )
    assert {record["scope"] for record in records} == {"visits/ann"}


def test_the_latest_is_that_of_the_latest_interval(client: Any) -> None:
    """And not what was released last, such as a day that was backfilled."""
    latest = client.get("/v1/published/daily.json", params={"latest": True}).json()
    assert {record["run"].rpartition("/")[2][:10] for record in latest} == {"2026-01-02"}
    assert client.get("/v1/published/empty.csv", params={"latest": True}).text.count("\n") == 1


def test_a_reader_that_has_it_gets_nothing(world: ServiceWorld, client: Any) -> None:
    """By ETag, in each of the header's forms; a new result is a new one."""
    first = client.get("/v1/published/daily.csv")
    tag = first.headers["etag"]
    assert first.headers["cache-control"] == "private, no-cache"
    for known in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        again = client.get("/v1/published/daily.csv", headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert (
        client.get("/v1/published/daily.csv", headers={"If-None-Match": tag[:-2]}).status_code
        == 200
    )
    head = client.head("/v1/published/daily.csv")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) == len(first.content)
    others = [
        client.get(f"/v1/published/{name}").headers["etag"]
        for name in ("daily.json", "daily.csv?latest=1", "empty.csv")
    ]
    assert len({tag, *others}) == 4
    with world.test_client("ann") as ann:
        settle(ann, "tasks/release", task(day=3) | {"releases": [RELEASE]})
    changed = client.get("/v1/published/daily.csv", headers={"If-None-Match": tag})
    assert changed.status_code == 200 and changed.text.count("\n") == 10


@pytest.mark.parametrize(
    ("place", "status"),
    [
        *(("hidden.csv", 422), ("nothing.csv", 422), ("daily.exe", 422), ("daily", 404)),
        *(
            ("../tables", 403),
            ("daily.csv%00", 422),
            ("visits%2Fann.csv", 404),
            ("daily.csv?latest=perhaps", 422),
        ),
    ],
)
def test_what_is_not_for_a_reader(client: Any, place: str, status: int) -> None:
    answer = client.get(f"/v1/published/{place}")
    assert answer.status_code in (status, 200 if place == "../tables" else status), answer.text


def test_what_another_may_read_is_as_what_is_not_there(client: Any) -> None:
    texts = [
        client.get(f"/v1/published/{name}.csv").json()["message"] for name in ("hidden", "hiddem")
    ]
    assert texts[0].replace("hidden", "") == texts[1].replace("hiddem", "")
    assert client.get("/v1/published", headers=headers_of("ann")).status_code == 403


def test_a_url_with_a_token_opens_files_alone(world: ServiceWorld, client: Any) -> None:
    """HTTP Basic, which browsers repeat for pages of others, is taken where nothing can be spent."""

    def basic(token: str) -> dict[str, str]:
        return {"Authorization": "Basic " + base64.b64encode(f"x:{token}".encode()).decode()}

    good = basic(TOKENS["cyd"][0])
    assert client.get("/v1/published/daily.csv", headers=good).status_code == 200
    for headers in (
        basic("x"),
        basic(""),
        {"Authorization": "Basic ?"},
        {"Authorization": "Basic"},
    ):
        assert client.get("/v1/published/daily.csv", headers=headers).status_code == 401
    ann = basic(TOKENS["ann"][0])
    for method, place in (
        ("POST", "release"),
        ("GET", "tables"),
        ("POST", "published/daily.csv"),
        ("DELETE", "jobs/x"),
    ):
        assert client.request(method, f"/v1/{place}", json=RELEASE, headers=ann).status_code == 401
    with serve_here(world) as address:
        url = address.replace("//", f"//x:{TOKENS['cyd'][0]}@") + "/v1/published/daily.csv"
        lines = httpx.get(url, verify=TRUST).text.count("\n")
        frame = pandas.read_parquet(
            f"{address}/v1/published/daily.parquet", storage_options=headers_of("cyd")
        )
    assert lines == len(frame) + 1 and lines >= 7


def test_results_of_another_principal_are_not_published(tmp_path: Path) -> None:
    """By the same name and budget; and no service starts that does not say whose results it publishes."""
    world = ServiceWorld(tmp_path)
    service = yaml.safe_load(world.file.read_text())
    service["published"] = {"daily": {"release": "daily", "scope": "visits/ann"}}
    service["principals"]["ann"] |= {"doors": ["release", "read"], "published": ["daily"]}
    service["principals"]["bob"] = asker("bob") | {"scope": "visits/ann", "doors": ["release"]}
    for principal, said in (
        (None, "ann and bob release from scope"),
        ("cyd", "cyd does not release"),
    ):
        service["published"]["daily"]["principal"] = principal
        world.file.write_text(yaml.safe_dump(service))
        with pytest.raises(InvalidDeclaration, match=said):
            load_service(world.file)
    service["published"]["daily"]["principal"] = "ann"
    world.file.write_text(yaml.safe_dump(service))
    with world.test_client("bob") as bob:
        assert settle(bob, "release", RELEASE).status_code == 200
    with world.test_client("ann") as ann:
        assert ann.get("/v1/published/daily.csv").text.count("\n") == 1
        assert settle(ann, "release", RELEASE).status_code == 200
        assert ann.get("/v1/published/daily.csv").text.count("\n") == 4


def test_a_run_of_the_future_is_not_the_latest_for_ever(tmp_path: Path) -> None:
    world = ServiceWorld(tmp_path)
    service = yaml.safe_load(world.file.read_text())
    service["published"] = {"daily": {"release": "daily", "scope": "visits/ann"}}
    service["principals"]["ann"] |= {"doors": ["release", "read"], "published": ["daily"]}
    world.file.write_text(yaml.safe_dump(service))
    with world.test_client("ann") as ann:
        for name in ("9999-12-31T23-05:00", "2026-01-02"):
            body = task() | {"releases": [RELEASE]}
            body["run"] = {"dag_id": "team_a_x", "task_id": "t", "name": name}
            assert settle(ann, "tasks/release", body).status_code == 200
            if name.startswith("9999"):
                record = world.ledger.releases_by_name("visits/ann", "daily")[0]
                published = read_settled(world.ledger, record)
                later = published.released_at + dt.timedelta(days=400)
        day = replace(published, run="ann/team_a_x/t/2028-01-01T00:00:00", released_at=later)
        assert find_latest([published, day]) == [day]
        # Times are whole seconds: of one name the later charge is the latest.
        again, other = replace(published, release_id="later"), replace(published, release="other")
        assert find_latest([published, other, again]) == [again, other]


def test_a_reader_keeps_a_file_while_another_counts_what_is_kept() -> None:
    kept = Publications({}, {}, None)  # type: ignore[arg-type]

    class Content(bytes):
        def __len__(self) -> int:
            if "late" not in kept._kept:
                kept._keep(PublishedFile("late", "csv", b"x"))
            return 1

    for tag in ("first", "second"):
        kept._keep(PublishedFile(tag, "csv", Content(b"x")))
    assert {*kept._kept} == {"first", "second", "late"}
