"""The file of ``dpflow serve``: which tables it answers about, who may ask, what each may spend.

Declarations, ledger and keys stay with the owner: a client names a table of the file. A bearer token is
32 random bytes, shown once; the file keeps its SHA-256.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import secrets
import urllib.parse
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo

from dpflow.catalogue import TableName, resolve_ledger
from dpflow.core.accounting.amounts import Delta, Epsilon
from dpflow.core.contract.strict_models import Exact, Strict, describe_problems
from dpflow.errors import InvalidDeclaration, UnknownName
from dpflow.loopback import is_loopback
from dpflow.private_files import UntrustedPlace, forbid_public_writing
from dpflow.yaml_files import load_yaml

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Rate = Annotated[int, Field(ge=1, le=10**6)]
#: No slash: in run identities one ends a principal's name.
PrincipalName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,62}$")]
Door = Literal["sql", "release", "predict", "load", "contract", "gate", "read"]
#: Begins names of DAGs. A delimiter ends it, so that team_a- is not the beginning of team_ab.
DagPrefix = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{0,100}[_.-]$")]


def _resolve_file(file: Path, info: ValidationInfo) -> Path:
    """A path from the folder of the service file, which is the context."""
    return info.context / file if info.context else file


def _resolve_place(place: str, info: ValidationInfo) -> str:
    return place if "://" in place else str(_resolve_file(Path(place), info))


File = Annotated[Path, AfterValidator(_resolve_file)]
#: A file, or a URL.
Place = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_resolve_place)]


class Claim(Strict):
    """Whose tokens of an OpenID issuer are a principal's: those in which a claim has a value.

    Attributes:
        issuer: its name in the service file.
        claim: such as ``email`` or ``groups``; a list has the value if one of its elements is it.
        value: compared as it is.
    """

    example = "{issuer: corp, claim: groups, value: dp-analysts}"

    issuer: TableName
    claim: Annotated[str, Field(min_length=1, max_length=200)]
    value: Annotated[str, Field(min_length=1, max_length=1000)]


class IssuerLogin(Strict):
    """How people log in to the budget page by an issuer's own page (authorization code flow with PKCE).

    Attributes:
        authorize, token: the issuer's two endpoints, as its ``/.well-known/openid-configuration`` has them.
        callback: ``/budgets/callback`` of this service as browsers see it, which the issuer knows.
        client_id: this page's name at the issuer: the audience (``aud``) of its ID tokens.
        client_secret: a file that has it, for issuers that want one.
        scopes: what claims are asked for.
    """

    example = (
        "{authorize: 'https://login.example.org/authorize', token: 'https://login.example.org/token', "
        "callback: 'https://dp.example.org/budgets/callback', client_id: dpflow-page}"
    )

    authorize: Annotated[str, Field(min_length=1, max_length=1000)]
    token: Annotated[str, Field(min_length=1, max_length=1000)]
    callback: Annotated[str, Field(max_length=1000, pattern=r"/budgets/callback$")]
    client_id: Annotated[str, Field(min_length=1, max_length=1000)]
    client_secret: File | None = None
    scopes: Annotated[str, Field(pattern=r"^openid( [!-~]+)*$")] = "openid email"


class Issuer(Strict):
    """An OpenID issuer whose tokens (JWT) are taken.

    Attributes:
        issuer: its name in tokens (``iss``), compared as it is.
        audience: this service's name in tokens (``aud``).
        keys: its public keys (a JWK set): a file, or an ``https`` URL.
        refresh_seconds: how often keys are read from a URL; those of a file are read when it changes. A key that is
            taken out is trusted for so long.
        leeway_seconds: by which clocks may differ.
        login: how people log in by its page.
    """

    example = "{issuer: 'https://login.example.org', audience: dpflow, keys: keys.json}"

    issuer: Annotated[str, Field(min_length=1, max_length=1000)]
    audience: Annotated[str, Field(min_length=1, max_length=1000)]
    keys: Place
    refresh_seconds: Annotated[float, Field(ge=1, le=86_400)] = 300
    leeway_seconds: Annotated[int, Field(ge=0, le=300)] = 10
    login: IssuerLogin | None = None


class Principal(Strict):
    """Who may ask, for what, and what it may spend. It has a token, or a claim in tokens of an issuer, or both.

    Attributes:
        token_sha256: the SHA-256 of the token, or of several while one replaces another.
        openid: whose tokens of an OpenID issuer are its.
        role: ``analyst`` asks by its doors and sees its own scope; ``scheduler`` asks for runs of DAGs, too;
            ``auditor`` asks nothing and sees every scope; ``owner`` asks, sees every scope, and sends decisions
            that a person's key signed.
        scope: which budget pays. A limit per day is that of the scope: a quota with a period.
        doors: ``sql``, ``release``, ``predict``, ``load``, ``contract``, ``gate`` and ``read``.
        loads, contracts, gates, published: which of the file it may name at the doors ``load``, ``contract``, ``gate`` and
            ``read``.
        dag_prefixes: how names of a scheduler's DAGs begin; any if left out. Those of two schedulers differ.
        tables: which tables of the file it may name at the doors ``sql`` and ``release``.
        max_epsilon, max_delta: privacy cost of one request; any that the scope can pay if left out.
        max_rows: of one reply; what a plan says to have more is refused, and other rows are left out of the reply.
        requests_per_minute: those of the file if left out.
        concurrent_queries: how many of its requests may wait or run at once.
        predictions: points that its session answers; those of the session file if left out.
    """

    token_sha256: Digest | Annotated[list[Digest], Field(min_length=1, max_length=10)] | None = None
    openid: Claim | None = None
    role: Literal["analyst", "scheduler", "auditor", "owner"] = "analyst"
    scope: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    doors: frozenset[Door] = frozenset()
    loads: frozenset[TableName] = frozenset()
    contracts: frozenset[TableName] = frozenset()
    gates: frozenset[TableName] = frozenset()
    published: frozenset[TableName] = frozenset()
    dag_prefixes: frozenset[DagPrefix] = frozenset()
    tables: frozenset[TableName] = frozenset()
    max_epsilon: Epsilon | None = None
    max_delta: Delta | None = None
    max_rows: Annotated[int, Field(ge=1, le=10**9)] | None = None
    requests_per_minute: Rate | None = None
    concurrent_queries: Annotated[int, Field(ge=1, le=1000)] = 4
    predictions: Annotated[int, Field(ge=1, le=10**9)] | None = None

    @property
    def digests(self) -> Sequence[str]:
        """Of all tokens that are valid."""
        tokens = self.token_sha256
        return [tokens] if isinstance(tokens, str) else tokens or []

    @property
    def sees_every_scope(self) -> bool:
        """Whether budgets and history of all scopes are shown to it."""
        return self.role in ("auditor", "owner")


class Predictions(Strict):
    """The door ``predict``.

    Attributes:
        session: a release file with a prediction mechanism, relative to the service file.
        pooled: whether principals may share answers; false lets their scopes lie below different
            budgets.
        outside: what becomes of a value beyond the declared range: ``clamp`` takes the range's end for
            it and says so, ``refuse`` refuses the request.
        max_points: of one request.
    """

    example = "{session: late.yml}"

    session: File
    pooled: bool = True
    outside: Literal["clamp", "refuse"] = "clamp"
    max_points: Annotated[int, Field(ge=1, le=10**6)] = 10_000


#: Stands for the block in a load's source.
BLOCK = "{block}"


class Load(Strict):
    """Where the rows of a block come from. The service is the only one who writes the table.

    Attributes:
        table: a table of the file, in a DuckDB file.
        source: a CSV, JSON or Parquet file with ``{block}`` in its path, relative to the service file.
        by: the column whose values are blocks.
        columns: declared types as SQL writes them; those of the table that is there if left out.
        missing: texts of CSV files that mean no value.
    """

    example = "{table: visits, source: 'incoming/{block}.csv', by: day}"

    table: TableName
    source: File
    by: Annotated[str, Field(min_length=1)]
    columns: str | None = None
    missing: tuple[str, ...] = ()


class ServedGate(Strict):
    """A holdout gate that strangers' candidates come to. Models are scored in a process of their own.

    Attributes:
        gate: its release file, relative to the service file.
        champion: a JSON file that holds the champion, made with the first one; models that were promoted are kept in
            a folder beside it. Without it nothing is promoted.
        better_by: by how much a challenger has to be better, in units of the metric.
        max_seconds: that scoring one model may take; what takes longer fails, and closes the gate.
    """

    example = "{gate: late.yml, champion: late.json}"

    gate: File
    champion: File | None = None
    better_by: Annotated[Exact, Field(ge=0)] = Fraction(0)
    max_seconds: Annotated[float, Field(ge=0.1, le=86_400)] = 120


class Publication(Strict):
    """Settled results of one release that may be read by URL, of all its blocks and runs.

    Attributes:
        release: its name.
        scope: the budget that paid.
        principal: who released them; may be left out unless several principals release from the scope.
        copies: where they are copied to as well, by the publication's name: ``.parquet`` and ``.duckdb`` files,
            ``s3://BUCKET/NAME.parquet``, ``postgresql://HOST/DATABASE``.
    """

    example = "{release: by-city, scope: visits/ann}"

    release: Annotated[str, Field(min_length=1, max_length=200)]
    scope: Annotated[str, Field(min_length=1, max_length=200)]
    principal: PrincipalName | None = None
    copies: tuple[Place, ...] = ()


class Service(Strict):
    """The file of ``dpflow serve``. All paths in it are relative to it.

    Attributes:
        ledger: a SQLite file or a URL; ``--ledger`` comes before it, ``dpflow.yml`` after it.
        anchor: the ledger's anchor, if it is not in the default place.
        tables: declarations by the names that they give themselves.
        loads: what schedulers may load, by name.
        contracts: files of data contracts in mode ``metered``, by the names that schedulers use.
        gates: holdout gates, by the names that submissions give them.
        published: releases whose results may be read by URL, by the names that URLs have.
        public: files of facts that are nobody's data, by the names that queries give them.
        issuers: OpenID issuers, by the names that principals give them.
        max_waiting: requests that may wait for one source.
        lease_seconds: how long a charged request may lie before another process of this service finishes it; longer
            than any query takes.
        max_attempts: tries of a charged request, of all processes; then it is settled without a result.
        max_bytes: of one request's body.
        requests_per_minute: of each principal.
    """

    ledger: Annotated[str, Field(min_length=1)] | None = None
    anchor: File | None = None
    tables: dict[TableName, File] = Field(default_factory=dict)
    public: dict[TableName, Annotated[File, AfterValidator(Path.resolve)]] = Field(
        default_factory=dict
    )
    loads: dict[TableName, Load] = Field(default_factory=dict)
    contracts: dict[TableName, File] = Field(default_factory=dict)
    gates: dict[TableName, ServedGate] = Field(default_factory=dict)
    published: dict[TableName, Publication] = Field(default_factory=dict)
    predict: Predictions | None = None
    issuers: dict[TableName, Issuer] = Field(default_factory=dict)
    principals: Annotated[dict[PrincipalName, Principal], Field(min_length=1)]
    max_waiting: Annotated[int, Field(ge=1, le=10**5)] = 100
    lease_seconds: Annotated[float, Field(ge=0.1, le=86_400)] = 60
    max_attempts: Annotated[int, Field(ge=2, le=1000)] = 10
    max_bytes: Annotated[int, Field(ge=100, le=10**9)] = 2_000_000
    requests_per_minute: Rate | None = None

    def without_tokens(self) -> Mapping[str, Any]:
        """All that a running service cannot change."""
        fields = self.model_dump()
        for principal in fields["principals"].values():
            del principal["token_sha256"], principal["openid"]
        return fields

    def list_predictors(self) -> dict[str, Principal]:
        """The principals with the door ``predict``."""
        return {name: one for name, one in self.principals.items() if "predict" in one.doors}


def load_service(path: Path) -> Service:
    """Read a service file, which says whose tokens are valid; its paths are absolute afterwards.

    Raises:
        InvalidDeclaration: it is none, naming the field; or every user of the machine may change it.
    """
    folder = path.parent.resolve()
    try:
        with contextlib.suppress(FileNotFoundError):
            forbid_public_writing(path)
    except UntrustedPlace as error:
        raise InvalidDeclaration(f"no service starts from this file: {error.strerror}") from None
    try:
        service = Service.model_validate(load_yaml(path, "service file"), context=folder)
    except ValidationError as error:
        raise InvalidDeclaration(f"{path} is not a service: {describe_problems(error)}") from None
    if len({issuer.issuer for issuer in service.issuers.values()}) < len(service.issuers):
        raise InvalidDeclaration(f"{path}: two issuers are called the same; leave one out")
    digests = [digest for one in service.principals.values() for digest in one.digests]
    if len(set(digests)) != len(digests):
        raise InvalidDeclaration(f"{path}: two principals have the same token; give each its own")
    claims = [one.openid for one in service.principals.values() if one.openid is not None]
    if any(claims.count(claim) > 1 for claim in claims):
        raise InvalidDeclaration(f"{path}: two principals have the same claim; give each its own")
    for name, principal in service.principals.items():
        if problem := _find_problem(service, principal):
            raise InvalidDeclaration(f"{path}: principal {name} {problem}")
    if service.predict is not None and not service.list_predictors():
        raise InvalidDeclaration(
            f"{path} serves predictions, and no principal has the door predict; add it to doors"
        )
    for name, load in service.loads.items():
        if load.table not in service.tables:
            raise InvalidDeclaration(
                f"{path}: load {name} is into a table that is not served: "
                f"{UnknownName('table', load.table, service.tables)}"
            )
        if BLOCK not in str(load.source):
            raise InvalidDeclaration(f"{path}: load {name} needs {BLOCK} in its source")
    names = {name.casefold() for name in service.tables}
    if taken := [name for name in service.public if name.casefold() in names]:
        raise InvalidDeclaration(
            f"{path}: {taken[0]!r} stands under tables and under public; rename one of them"
        )
    _require_own_names(path, service)
    _require_one_budget(path, service)
    _require_own_dags(path, service)
    _require_publishers(path, service)
    for issuer in service.issuers.values():
        _require_safe_addresses(issuer)
    ledger = resolve_ledger(service.ledger, folder, path)
    return service.model_copy(update={"ledger": ledger})


def _require_safe_addresses(issuer: Issuer) -> None:
    """Raises `InvalidDeclaration` for an address of an issuer that anybody on the way may change."""
    login = issuer.login
    addresses = [] if login is None else [login.authorize, login.token, login.callback]
    for address in [*addresses, *([issuer.keys] if "://" in issuer.keys else [])]:
        parts = urllib.parse.urlsplit(address)
        if parts.scheme != "https" and not (
            parts.scheme == "http" and is_loopback(parts.hostname or "")
        ):
            raise InvalidDeclaration(
                f"{issuer.issuer} is asked at {address}, where anybody on the way may change the answer; write https://"
            )


def _find_problem(service: Service, principal: Principal) -> str:
    """What of a principal does not fit, as the end of a sentence; "" if all does."""
    asks = principal.doors & {"sql", "release"}
    if principal.token_sha256 is None and principal.openid is None:
        return "has no token; add token_sha256 (dpflow serve --new-token), or openid"
    if principal.openid is not None and principal.openid.issuer not in service.issuers:
        unknown_issuer = UnknownName("issuer", principal.openid.issuer, service.issuers)
        return f"names an issuer that is not there: {unknown_issuer}"
    if principal.role == "auditor" and principal.doors:
        return "is an auditor, who asks nothing; leave doors out, or make it an analyst"
    if principal.role in ("analyst", "scheduler") and not principal.doors:
        return "may ask nothing; give it doors, such as doors: [sql]"
    if principal.doors - {"load", "read"} and principal.scope is None:
        return "has doors and no scope that pays; add scope: NAME"
    if asks and not principal.tables:
        return f"has the door {min(asks)} and no table; add tables: [NAME]"
    if principal.dag_prefixes and principal.role != "scheduler":
        return "has dag_prefixes and is no scheduler; add role: scheduler"
    named: tuple[tuple[Door, str, frozenset[str], Mapping[str, Any]], ...] = (
        ("load", "loads", principal.loads, service.loads),
        ("contract", "contracts", principal.contracts, service.contracts),
        ("gate", "gates", principal.gates, service.gates),
        ("read", "published", principal.published, service.published),
    )
    for door, field, names, known in named:
        if (door in principal.doors) != bool(names):
            return f"has the door {door} without {field}, or {field} without the door; give it both"
        if unknown := sorted(names - {*known}):
            return (
                f"names under {field} what is not there: {UnknownName('name', unknown[0], known)}"
            )
    if unknown := sorted(principal.tables - {*service.tables}):
        return (
            f"names a table that is not served: {UnknownName('table', unknown[0], service.tables)}"
        )
    if principal.predictions is not None and "predict" not in principal.doors:
        return "has predictions without the door predict; add it to doors"
    if "predict" in principal.doors and service.predict is None:
        return "has the door predict, and the file serves no session; add predict: {session: FILE}"
    return ""


def _require_own_names(path: Path, service: Service) -> None:
    """Raises `InvalidDeclaration` where a client that reads what is published by its name would read something else."""
    taken = {name.casefold() for name in [*service.tables, *service.public]}
    for name in service.published:
        views = {name.casefold(), f"{name}_latest".casefold()}
        if both := sorted(views & taken):
            raise InvalidDeclaration(
                f"{path}: published {name!r} is read as {name!r} and {f'{name}_latest'!r}, and {both[0]!r} is the name of a "
                f"table or of something else that is published; rename one of them"
            )
        taken |= views


def _require_publishers(path: Path, service: Service) -> None:
    """Raises `InvalidDeclaration` where another principal could put results of its own among those that are published."""
    for name, terms in service.published.items():
        spenders = sorted(
            principal
            for principal, one in service.principals.items()
            if one.scope == terms.scope and {"release", "sql"} & {*one.doors}
        )
        if terms.principal is None and len(spenders) > 1:
            raise InvalidDeclaration(
                f"{path}: {' and '.join(spenders)} release from scope {terms.scope}, and published {name} does not say whose "
                "results it has; add principal: NAME"
            )
        if terms.principal is not None and terms.principal not in spenders:
            raise InvalidDeclaration(
                f"{path}: published {name}: principal {terms.principal} does not release from scope {terms.scope}; name one "
                "that does"
            )


def _require_one_budget(path: Path, service: Service) -> None:
    """Raises `InvalidDeclaration` where principals may pool predictions that no one budget bounds."""
    scopes = [one.scope or "" for one in service.list_predictors().values()]
    budgets = sorted({scope.partition("/")[0] for scope in scopes})
    if service.predict is not None and service.predict.pooled and len(budgets) > 1:
        raise InvalidDeclaration(
            f"{path}: the principals' scopes lie below different budgets ({', '.join(budgets[:5])}), so none bounds what they learn "
            f"together; put all below one, or write pooled: false below predict if they share no answers"
        )


def _require_own_dags(path: Path, service: Service) -> None:
    """Raises `InvalidDeclaration` where a DAG may belong to two schedulers."""
    prefixes = [
        (prefix, name)
        for name, one in service.principals.items()
        if one.role == "scheduler"
        for prefix in one.dag_prefixes or [""]
    ]
    for (first, name), (second, other) in itertools.combinations(sorted(prefixes), 2):
        if name != other and second.startswith(first):
            raise InvalidDeclaration(
                f"{path}: DAGs that begin with {second!r} belong to the schedulers {name} and {other}; give each "
                "dag_prefixes of which none begins another"
            )


def new_token() -> tuple[str, str]:
    """A fresh bearer token, and what the service file keeps of it."""
    token = secrets.token_urlsafe(32)
    # The token itself is stored nowhere.
    return token, token_digest(token)


def token_digest(token: str) -> str:
    """SHA-256 of a token; tokens have 256 bits, so it needs no salt."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()
