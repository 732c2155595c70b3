"""Requests that the service's own description allows, and those that it does not: each is answered as it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from service_world import ServiceWorld, headers_of


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_whatever_the_description_allows_is_answered(tmp_path: Path, mode: str) -> None:
    """schemathesis asks every endpoint of every door: each answer is described, none is a failure inside, and no
    request that is not described is taken.
    """
    import schemathesis
    from hypothesis import HealthCheck, given, settings

    world = ServiceWorld(tmp_path)
    asked = set[str]()
    with world.test_client("ann") as client:
        # A name that is not there, or a plan that cannot be, is refused like a wrong request.
        refused = [401, 403, 404, 405, 413, 422]
        config = schemathesis.Config.from_dict(
            {
                "checks": {
                    "negative_data_rejection": {"expected-statuses": refused},
                    "positive_data_acceptance": {
                        "expected-statuses": ["2xx", "3xx", 409, 429, *refused]
                    },
                }
            }
        )
        schema = schemathesis.openapi.from_asgi("/openapi.json", client.app, config=config)
        for found in schema.get_all_operations():
            operation = found.ok()
            modes = {"generation_mode": schemathesis.GenerationMode(mode)}
            # Where nothing is asked there is nothing to get wrong.
            if mode == "negative" and not (
                operation.body or operation.query or operation.path_parameters
            ):
                continue

            @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy(**modes))
            def ask(case: Any) -> None:
                asked.add(case.operation.label)
                is_owners = case.operation.path.endswith(("decisions", "scopes", "proposals"))
                answer = case.call_and_validate(headers=headers_of("own" if is_owners else "ann"))
                assert answer.status_code != 500

            ask()
    assert len(asked) > (20 if mode == "positive" else 10)


#: Requests of each endpoint.
EXAMPLES = 60
