"""A server of S3's protocol in this process, for tests of stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def s3_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of S3's protocol; `make compat` installs one."""
    s3fs = pytest.importorskip("s3fs", reason="the package of S3's file system is not installed")
    server_module = pytest.importorskip("moto.server", reason="there is no S3 server for tests")
    server = server_module.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    for name, value in {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "owner",
        "AWS_SECRET_ACCESS_KEY": "s3cret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    yield url
    server.stop()
