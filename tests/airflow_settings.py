"""Names of environment variables held against the configuration that the installed Airflow knows."""

from __future__ import annotations

import configparser
import json
import re
from collections.abc import Mapping
from pathlib import Path

#: Variables of Airflow that are no options of its configuration.
OTHERS = re.compile(r"AIRFLOW_(HOME|CONN_[A-Z_]+|VAR_[A-Z_]+)")
#: Options of the Celery provider, which is not installed here, that may come from a command.
CELERY_SECRETS = {("celery", "broker_url"), ("celery", "result_backend")}

#: How values of these types are written.
FORMS = {"integer": r"-?\d+", "float": r"-?\d+(\.\d+)?", "boolean": "True|False"}


def find_wrong_settings(environment: Mapping[str, str]) -> list[str]:
    """What Airflow would ignore or refuse: unknown options, commands for what takes none, values that
    are of another type than their option.
    """
    import airflow
    from airflow.configuration import conf
    from airflow.providers_manager import ProvidersManager

    ProvidersManager().initialize_providers_configuration()
    known = conf.configuration_description
    secrets = conf.sensitive_config_values | CELERY_SECRETS
    # Options of Celery and Kubernetes, as the core knows them without these providers.
    providers = configparser.RawConfigParser()
    templates = Path(airflow.__path__[0]) / "config_templates"
    providers.read(templates / "provider_config_fallback_defaults.cfg")
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
        if (section, option) in CELERY_SECRETS or providers.has_option(section, option):
            described = described or {}
        if described is None:
            wrong.append(f"{name}: no option of Airflow")
        elif kind and (section, option) not in secrets:
            wrong.append(f"{name}: this option takes no command")
        elif not kind:
            expected = described.get("type", "string")
            if expected in ("object", "json"):
                fits = isinstance(json.loads(value), dict | list)
            else:
                fits = re.fullmatch(FORMS.get(expected, "(?s:.*)"), value) is not None
            if not fits:
                wrong.append(f"{name}: {value!r} is no {expected}")
    return wrong
