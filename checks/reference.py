"""The reference pages, made from the code: fields, commands, operators, public names, errors."""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pydantic import BaseModel

NOTE = "*Generated from the code; what it says is what runs.*\n\n"
# One field, or several that share a meaning: ``epsilon``, ``delta``
FIELDS = r"``\w+``(?:(?:,| and|, and) ``\w+``)*"


def field_notes(model: type[BaseModel]) -> dict[str, str]:
    """What each field means, from the docstrings of a model and its bases.

    Two forms are read: ````name````: text up to the next such name, and lines ``name: text`` under
    ``Attributes:``. Several names before one colon share the text. A description in the field
    itself comes first.
    """
    notes: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if not issubclass(base, BaseModel):
            continue
        text = inspect.cleandoc(vars(base).get("__doc__") or "")
        flat = " ".join(text.split())
        for match in re.finditer(rf"({FIELDS}): (.*?)(?=\s*{FIELDS}: |$)", flat):
            notes |= dict.fromkeys(re.findall(r"``(\w+)``", match[1]), match[2])
        _, _, attributes = text.partition("Attributes:\n")
        for match in re.finditer(r"^    (\w+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE):
            notes[match[1]] = " ".join(match[2].split())
    for name, field in model.model_fields.items():
        if field.description:
            notes[name] = field.description
    return {name: note for name, note in notes.items() if name in model.model_fields}


def first_paragraph(thing: Any) -> str:
    """The first paragraph of a docstring on one line."""
    text = inspect.cleandoc(thing.__doc__ or "").split("\n\n")[0]
    return " ".join(text.split()).replace("``", "`")


def cell(text: Any) -> str:
    """Text that may stand in a cell of a Markdown table."""
    return " ".join(str(text).split()).replace("``", "`").replace("|", "\\|")


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A Markdown table."""
    names = list(head)
    lines = [f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}"]
    lines += [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return "\n".join(lines) + "\n\n"


def type_name(schema: dict[str, Any]) -> str:
    """A JSON Schema's type in few words."""
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return " or ".join(dict.fromkeys(type_name(part) for part in choices))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if "$ref" in schema:
        return f"[{schema['$ref'].split('/')[-1]}](#{schema['$ref'].split('/')[-1].lower()})"
    if schema.get("type") == "array":
        items = schema.get("items", {})
        return f"list of {type_name(items)}" if items else "list"
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return f"map of names to {type_name(values)}" if isinstance(values, dict) else "map"
    bounds = [
        f"{word} {schema[key]}"
        for key, word in (("minimum", "from"), ("maximum", "to"))
        if key in schema
    ]
    plain = {"null": "nothing", "boolean": "true or false", "string": "text"}
    kind = plain.get(schema.get("type", ""), schema.get("type", "anything"))
    return " ".join([kind, *bounds])


def model_table(model: type[BaseModel]) -> str:
    """Fields of a model: name, type, default, meaning."""
    properties = model.model_json_schema()["properties"]
    notes = field_notes(model)
    rows = []
    for name, field in model.model_fields.items():
        schema = properties.get(name, {})
        default = "required" if field.is_required() else default_text(field)
        rows.append((f"`{name}`", type_name(schema), default, notes.get(name, "")))
    return table(("field", "type", "if left out", "meaning"), rows)


def default_text(field: Any) -> str:
    """A default as a person writes it."""
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        value = json.dumps(value.model_dump(mode="json"))
    return "nothing" if value is None or value in ((), {}, "") else f"`{value}`"


def declaration_models() -> list[type[BaseModel]]:
    """The models of a declaration, outermost first."""
    from dpflow.core.contract import declaration as d
    from dpflow.core.contract.columns import Column
    from dpflow.core.contract.contribution import ContributionBounds, MaxContributions, PeriodLimits
    from dpflow.tables.backends.spark_source import SparkSource

    return [
        d.Table,
        d.PrivacyUnit,
        ContributionBounds,
        MaxContributions,
        Column,
        PeriodLimits,
        d.Join,
        SparkSource,
        d.RequiredCertificates,
    ]


def declaration_schema() -> dict[str, Any]:
    """A JSON Schema of declarations, for editors."""
    from dpflow.core.contract.declaration import Table

    schema = Table.model_json_schema()
    notes = {model.__name__: field_notes(model) for model in declaration_models()}
    for part in [schema, *schema.get("$defs", {}).values()]:
        part_notes = notes.get(part["title"], {})
        for field, properties in part.get("properties", {}).items():
            if field in part_notes:
                properties["description"] = part_notes[field]
        part["description"] = part.get("description", "").split("\n")[0]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def declaration_page() -> str:
    """Every field of a declaration."""
    parts = [
        "# Declaration\n\n",
        NOTE,
        "A declaration says what a private table protects and how much one privacy unit may "
        "contribute. It is public. How to write one: [Declare a table](../how-to/declare-a-table.md). "
        "For completion in an editor, begin the file with\n\n"
        "```yaml\n# yaml-language-server: $schema=declaration.schema.json\n```\n\n"
        "and save [the schema](declaration.schema.json) beside it.\n\n",
    ]
    for model in declaration_models():
        parts += [f"## {model.__name__}\n\n", first_paragraph(model), "\n\n", model_table(model)]
    # The one kind of server that is built in.
    return "".join(parts).replace("[ServerSource](#serversource)", "[SparkSource](#sparksource)")


def release_file_page() -> str:
    """Every field of a release file."""
    from dpflow.core.contract.contribution import RequestedBounds
    from dpflow.engine.releases.request import Publish, ReleaseRequest

    return "".join(
        (
            "# Release file\n\n",
            NOTE,
            "A release file asks for one release, or opens one session. Paths in it are relative to it. "
            "The same fields are the `release` of an operator and the arguments of `dpflow.plan`.\n\n",
            model_table(ReleaseRequest),
            "## publish\n\n",
            model_table(Publish),
            "## RequestedBounds\n\n",
            model_table(RequestedBounds),
        )
    )


def catalogue_page() -> str:
    """Every field of ``dpflow.yml``."""
    from dpflow.catalogue import Catalogue, Output

    return "".join(
        (
            "# Catalogue: dpflow.yml\n\n",
            NOTE,
            "A project's names. Commands, Python and operators find the file upward from a release "
            "file, a DAG file or the working directory. Paths in it are relative to it. What a command, "
            "the environment or a release says itself wins.\n\n",
            model_table(Catalogue),
            "## output\n\n",
            model_table(Output),
        )
    )


def mechanisms_page() -> str:
    """Every installed mechanism and session with its parameters."""
    from dpflow.core.contract.interactive import InteractiveMechanism
    from dpflow.registry import Registry

    registry = Registry.load()
    parts = [
        "# Mechanisms\n\n",
        NOTE,
        "Which one when: [Choose a mechanism](../how-to/choose-a-mechanism.md).\n\n",
    ]
    models: list[type[BaseModel]] = []
    for name, mechanism in sorted(registry.mechanisms.items()):
        kind = "session" if isinstance(mechanism, InteractiveMechanism) else "release"
        summary = mechanism.summary.removeprefix("session: ").removesuffix(".")
        parts.append(
            f"## {name}\n\n{summary[0].upper()}{summary[1:]}. A {kind}, version {mechanism.version}. "
            f"From `{registry.origin[name]}`. Source: {mechanism.citation}.\n\n"
        )
        models.append(mechanism.Params)
        parts.append(model_table(mechanism.Params))
        if isinstance(mechanism, InteractiveMechanism):
            parts += [f"What `{name}` is asked:\n\n", model_table(mechanism.Query)]
            models.append(mechanism.Query)
    for part in dict.fromkeys(part for model in models for part in inner_models(model)):
        parts += [f"## {part.__name__}\n\n{first_paragraph(part)}\n\n", model_table(part)]
    return "".join(parts)


def inner_models(model: type[BaseModel]) -> list[type[BaseModel]]:
    """The models that a model's table refers to."""
    names = model.model_json_schema().get("$defs", {})
    parts: list[type[BaseModel]] = []
    waiting: list[Any] = [field.annotation for field in model.model_fields.values()]
    for kind in waiting:
        waiting += typing.get_args(kind)
        if inspect.isclass(kind) and issubclass(kind, BaseModel) and kind.__name__ in names:
            parts.append(kind)
    return parts


def cli_page() -> str:
    """Every command with its arguments and options."""
    import typer.main

    from dpflow.cli import app

    parts = ["# Command line\n\n", NOTE]
    parts.append(
        "Exit codes: 0 done; 1 the answer is no; 2 the command line itself is wrong; 75 the same "
        "command can work later. A ledger on PostgreSQL also needs its anchor directory in "
        "`DPFLOW_LEDGER_ANCHOR`.\n\n"
    )
    parts += command_sections(typer.main.get_command(app), "dpflow")
    return "".join(parts)


def command_sections(command: Any, path: str) -> Iterator[str]:
    """One section a command, groups expanded."""
    import click

    if hasattr(command, "list_commands"):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from command_sections(command.get_command(context, name), f"{path} {name}")
        return
    yield f"## {path}\n\n{' '.join((command.help or '').split())}\n\n"
    rows = []
    for parameter in command.params:
        names = ", ".join(f"`{option}`" for option in getattr(parameter, "opts", []))
        if parameter.param_type_name == "argument":
            names = f"`{parameter.name}`"
        default = parameter.default
        shown = "" if default in (None, False, ()) or callable(default) else f"`{default}`"
        rows.append(
            (
                names,
                getattr(parameter, "help", "") or "",
                "required" if parameter.required else shown or "nothing",
            )
        )
    if rows:
        yield table(("option", "meaning", "if left out"), rows)


def operators_page() -> str:
    """Every operator with its parameters."""
    from dpflow import airflow

    parts = ["# Airflow operators\n\n", NOTE, "All are imported from `dpflow.airflow`.\n\n"]
    for name in airflow.__all__:
        operator = getattr(airflow, name)
        if not inspect.isclass(operator):
            continue
        # An operator that builds on another one takes its parameters, too.
        bases = [base for base in operator.__mro__ if base.__module__.startswith("dpflow.")]
        text = "\n".join(inspect.cleandoc(base.__doc__ or "") for base in bases)
        prose = re.split(r"^:param ", text, flags=re.MULTILINE)[0]
        parts.append(f"## {name}\n\n{prose.strip()}\n\n")
        rows = re.findall(r"^:param (\w+): (.*(?:\n(?!:param|\n|\S).*)*)", text, re.MULTILINE)
        notes = {parameter: " ".join(note.split()) for parameter, note in rows}
        parameters: dict[str, inspect.Parameter] = {}
        for base in bases:
            parameters = dict(inspect.signature(base.__init__).parameters) | parameters
        rows = [
            (
                f"`{p.name}`",
                notes.get(p.name, ""),
                "required" if p.default is p.empty else f"`{p.default!r}`",
            )
            for p in parameters.values()
            if p.name != "self" and p.kind is not p.VAR_KEYWORD
            # Of tasks that charge only.
            if p.name != "plan_only" or operator.request_field
        ]
        parts.append(table(("parameter", "meaning", "if left out"), rows))
        parts.append(
            f"Templated: {', '.join(f'`{f}`' for f in operator.template_fields) or 'nothing'}.\n\n"
        )
    return "".join(parts)


def python_page() -> str:
    """The map of `dpflow`, then each public name with its signature and docstring; errors have a page."""
    import dpflow

    parts = ["# Python\n\n", NOTE, docstring_text(dpflow)]
    parts.append(
        "All names are imported from `dpflow`; every error is on [its own page](errors.md).\n\n"
    )
    for name in dpflow.__all__:
        thing = getattr(dpflow, name)
        if inspect.isclass(thing) and issubclass(thing, dpflow.DpflowError):
            continue
        parts.append(f"## {name}\n\n")
        parts.append(signature_block(name, thing))
        parts.append(docstring_text(thing))
        if inspect.isclass(thing) and not issubclass(thing, BaseModel):
            for method, function in vars(thing).items():
                if (
                    not method.startswith("_")
                    and callable(getattr(thing, method))
                    and function.__doc__
                ):
                    parts.append(f"### {name}.{method}\n\n")
                    parts.append(signature_block(method, getattr(thing, method)))
                    parts.append(docstring_text(getattr(thing, method)))
    return "".join(parts)


def signature_block(name: str, thing: Any) -> str:
    """A signature as text, if there is one."""
    try:
        signature = str(inspect.signature(thing)).replace("'", "")
    except (TypeError, ValueError):
        return ""
    return f"```text\n{name}{signature}\n```\n\n"


def docstring_text(thing: Any) -> str:
    """A docstring as Markdown: argument lists become lists."""
    text = inspect.cleandoc(thing.__doc__ or "")
    text = re.sub(
        r"^(Args|Attributes|Raises|Returns):[ \t]*$", r"**\1**\n", text, flags=re.MULTILINE
    )
    text = re.sub(r"^    (\S[^:\n]*): ", r"- `\1`: ", text, flags=re.MULTILINE)
    return text.replace("``", "`") + "\n\n"


def errors_page() -> str:
    """Every error: when it is raised, whether a retry helps, what to do."""
    from dpflow import errors

    classes = [
        thing
        for thing in vars(errors).values()
        if inspect.isclass(thing) and issubclass(thing, errors.DpflowError)
    ]
    rows = []
    for error in classes:
        text = inspect.cleandoc(error.__doc__ or "")
        prose = " ".join(re.split(r"^\w+:$", text, flags=re.MULTILINE)[0].split())
        rows.append(
            (
                f"`{error.__name__}`",
                prose,
                "yes" if error.retryable else "no",
                f"`{error.__mro__[1].__name__}`",
            )
        )
    return "".join(
        (
            "# Errors\n\n",
            NOTE,
            "A message says what was asked, what is true, and what to do next. It holds no value of a "
            "private table. Where a retry helps, commands exit with 75 and tasks are tried again by "
            "Airflow; elsewhere commands exit with 1 and tasks fail at once.\n\n",
            table(("error", "when, and what to do", "does a retry help", "is a"), rows),
        )
    )


PAGES: dict[str, Callable[[], str]] = {
    "declaration": declaration_page,
    "release-file": release_file_page,
    "catalogue": catalogue_page,
    "mechanisms": mechanisms_page,
    "cli": cli_page,
    "operators": operators_page,
    "python": python_page,
    "errors": errors_page,
}
