"""Names of environment variables held against the configuration that the installed Airflow knows."""

from __future__ import annotations

import configparser
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Variables of Airflow that are no options of its configuration.
OTHERS = re.compile(r"AIRFLOW_(HOME|CONN_[A-Z_]+|VAR_[A-Z_]+)")
#: Options of the Celery provider, which is not installed here, that may come from a command.
CELERY_SECRETS = {("celery", "broker_url"), ("celery", "result_backend")}


def find_wrong_settings(environment: Mapping[str, str]) -> list[str]:
    """What Airflow would ignore or refuse: unknown options, commands for what takes none, values that
    are of another type than their option.
    """
    from airflow.configuration import conf
    from airflow.providers_manager import ProvidersManager

    ProvidersManager().initialize_providers_configuration()
    known = conf.configuration_description
    secrets = conf.sensitive_config_values | CELERY_SECRETS
    providers = _read_options_of_providers()
    wrong = []
    for name, value in environment.items():
        if not name.startswith("AIRFLOW") or OTHERS.fullmatch(name):
            continue
        section, _, option = name.removeprefix("AIRFLOW__").lower().partition("__")
        kind = re.search("_cmd$|_secret$", option)
        # an option's own name may end like what says where to ask for it: jwt_secret
        if kind and option not in known.get(section, {}).get("options", {}):
            option = option[: kind.start()]
        else:
            kind = None
        described = known.get(section, {}).get("options", {}).get(option)
        if (section, option) in CELERY_SECRETS or option in providers.get(section, ()):
            described = described or {}
        if described is None:
            wrong.append(f"{name}: no option of Airflow")
        elif kind and (section, option) not in secrets:
            wrong.append(f"{name}: this option takes no command")
        elif not kind and not _fits(described.get("type", "string"), value):
            wrong.append(f"{name}: {value!r} is no {described['type']}")
    return wrong


def _read_options_of_providers() -> dict[str, set[str]]:
    """Options of Celery and Kubernetes by section, as the core knows them without these providers."""
    import airflow

    file = Path(airflow.__path__[0]) / "config_templates" / "provider_config_fallback_defaults.cfg"
    parser = configparser.RawConfigParser()
    parser.read(file)
    return {section: set(parser[section]) for section in parser.sections()}


def _fits(kind: str, value: Any) -> bool:
    if kind == "integer":
        return re.fullmatch(r"-?\d+", value) is not None
    if kind == "float":
        return re.fullmatch(r"-?\d+(\.\d+)?", value) is not None
    if kind == "boolean":
        return value in ("True", "False")
    if kind in ("object", "json"):
        return isinstance(json.loads(value), dict | list)
    return True
