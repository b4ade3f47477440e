"""Where the servers are and how to log in: read from the environment (`VIEWTAIL_*`) and viewtail.toml.

One load reports everything that is wrong with both at once, each with the name under which it was given and what is
allowed. Secrets and addresses are SecretStr, and no message repeats them. Nothing here opens a connection.
"""

from __future__ import annotations

import ssl
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from changes.errors import SettingsError
from projectors.suggestions import nearest
from projectors.views import View
from servers.sessions import MySQLAddress
from viewtail.addresses import DEFAULT_PORTS, Parsed, parse

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch
    from redis import Redis

PREFIX = "VIEWTAIL_"
CONFIG_FILE = "viewtail.toml"
DEFAULT_DATABASE = "viewtail"

# Read elsewhere: the settings file itself, and what only tests and the demo set.
_OTHER_VARIABLES = frozenset({"VIEWTAIL_CONFIG", "VIEWTAIL_FAILPOINT"})
_OTHER_PREFIXES = ("VIEWTAIL_STACK_", "VIEWTAIL_TEST_")


def _address(store: str) -> BeforeValidator:
    """Refuses what is no address of that store; the text itself is kept, as a secret."""

    def check(given: object) -> object:
        if isinstance(given, str):
            parse(given, store)
        return given

    return BeforeValidator(check)


def _off_is_zero(given: object) -> object:
    return 0 if isinstance(given, str) and given.strip().lower() == "off" else given


MySQLUrl = Annotated[SecretStr, _address("mysql")]
RedisUrl = Annotated[SecretStr, _address("redis")]
ElasticsearchUrl = Annotated[SecretStr, _address("elasticsearch")]
Name = Annotated[str, Field(min_length=1, max_length=64)]
Port = Annotated[int, Field(ge=0, le=65535), BeforeValidator(_off_is_zero)]


class Group(BaseModel):
    """A group of settings; unknown names in it are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Server(Group):
    """How to log in to a server, and over which TLS."""

    user: str | None = Field(default=None, description="user, when it is not part of the address")
    password: SecretStr | None = Field(
        default=None, description="password, when it is not part of the address"
    )
    password_file: Path | None = Field(default=None, description="a file that holds the password")
    tls: bool | None = Field(
        default=None, description="speak TLS; by default when a tls_ option or the address says so"
    )
    tls_ca: Path | None = Field(
        default=None, description="certificates to trust (PEM), instead of the system's"
    )
    tls_cert: Path | None = Field(default=None, description="client certificate (PEM)")
    tls_key: Path | None = Field(default=None, description="private key of the client certificate (PEM)")
    tls_verify: bool = Field(default=True, description="check the server's certificate and host name")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.password is not None and self.password_file is not None:
            raise ValueError("give either password or password_file, not both")
        if (self.tls_key is not None) and self.tls_cert is None:
            raise ValueError("tls_key needs tls_cert, the certificate it belongs to")
        if self.tls is False and any((self.tls_ca, self.tls_cert, self.tls_key)):
            raise ValueError("tls = false contradicts the tls_ options beside it; remove one or the other")
        for name in ("password_file", "tls_ca", "tls_cert", "tls_key"):
            _readable(getattr(self, name), name)
        if self.password_file is not None:
            _secret_of(self.password_file)
        return self

    def secret(self) -> str | None:
        """The password given beside the address, if any."""
        if self.password_file is not None:
            return _secret_of(self.password_file)
        return None if self.password is None else self.password.get_secret_value()

    def tls_context(self, is_wanted: bool) -> ssl.SSLContext | None:
        """A context when TLS is asked for, here or by the address (`is_wanted`)."""
        if self.tls is False:
            return None
        if not (self.tls or is_wanted or self.tls_ca or self.tls_cert or not self.tls_verify):
            return None
        context = ssl.create_default_context(cafile=self.tls_ca and str(self.tls_ca))
        if not self.tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.tls_cert is not None:
            context.load_cert_chain(self.tls_cert, self.tls_key)
        return context


class Source(Server):
    """The MySQL server whose binlog is tailed."""

    url: MySQLUrl | None = Field(
        default=None, description="mysql://USER:PASSWORD@HOST:PORT[/SCHEMA] of the tailed server"
    )
    primary_url: MySQLUrl | None = Field(
        default=None, description="its primary, where watermarks are written; by default the tailed server"
    )
    database: Name = Field(
        default=DEFAULT_DATABASE, description="database of the watermark table, on the primary"
    )
    server_id: int | None = Field(
        default=None, ge=1, le=2**32 - 1, description="replica number to log in with; by default a random one"
    )
    heartbeat_s: float = Field(
        default=2.0, ge=0.1, le=60, description="seconds of silence after which the server sends a heartbeat"
    )


class MySQLStore(Server):
    """The MySQL server of the index tables and of viewtail's own tables."""

    url: MySQLUrl | None = Field(
        default=None,
        description="mysql://USER:PASSWORD@HOST:PORT/DATABASE; by default the source, database viewtail",
    )


class RedisStore(Server):
    """The Redis server of the hashes and JSON documents."""

    url: RedisUrl | None = Field(
        default=None,
        description="redis://[USER:PASSWORD@]HOST:PORT[/DB], rediss:// with TLS, or unix:///PATH",
    )


class ElasticsearchStore(Server):
    """The Elasticsearch cluster of the search indices."""

    url: ElasticsearchUrl | None = Field(default=None, description="http(s)://[USER:PASSWORD@]HOST:PORT")
    api_key: SecretStr | None = Field(
        default=None, description="an encoded API key, instead of user and password"
    )
    api_key_file: Path | None = Field(default=None, description="a file that holds the API key")

    @model_validator(mode="after")
    def _one_login(self) -> Self:
        if self.api_key is not None and self.api_key_file is not None:
            raise ValueError("give either api_key or api_key_file, not both")
        if (self.api_key or self.api_key_file) and (self.user or self.password or self.password_file):
            raise ValueError("give either an API key or user and password, not both")
        _readable(self.api_key_file, "api_key_file")
        if self.api_key_file is not None:
            _secret_of(self.api_key_file)
        return self

    def key(self) -> str | None:
        """The API key, if one is given."""
        if self.api_key_file is not None:
            return _secret_of(self.api_key_file)
        return None if self.api_key is None else self.api_key.get_secret_value()


class Run(Group):
    """How much `viewtail run` holds at once. The defaults keep a pipeline below 150 MiB."""

    batch_rows: int = Field(
        default=24000, ge=1, le=100_000, description="rows written to a store at once, at most"
    )
    batch_bytes: int = Field(
        default=2 << 20, ge=4096, le=256 << 20, description="bytes of binlog events written at once"
    )
    waiting_bytes: int = Field(
        default=4 << 20, ge=4096, le=1 << 30, description="bytes read ahead while a store is busy"
    )
    spool_bytes: int = Field(
        default=4 << 20,
        ge=4096,
        le=1 << 30,
        description="bytes of one open transaction kept in memory, the rest in a file",
    )
    max_event_bytes: int = Field(
        default=256 << 20, ge=1 << 20, le=1 << 30, description="a larger row event halts its views"
    )
    chunk_rows: int = Field(
        default=24_000,
        ge=1,
        le=100_000,
        description="rows of one chunk of a backfill, in 8 MiB at most",
    )
    offset_interval_s: float = Field(
        default=1.0, ge=0.05, le=60, description="seconds between saved offsets of Redis and Elasticsearch"
    )


class Metrics(Group):
    """Prometheus metrics of `viewtail run`."""

    host: Name = Field(default="127.0.0.1", description="address to listen on")
    port: Port = Field(default=9464, description="port to listen on; 0 or 'off' for no metrics")


class Logs(Group):
    """Logs, on stderr."""

    format: Literal["auto", "json", "text"] = Field(
        default="auto", description="auto: text on a terminal, JSON otherwise"
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the lowest level that is logged"
    )


class Settings(BaseSettings):
    """Everything that can be set. `load` is the way to get one."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, hide_input_in_errors=True
    )

    views: str = Field(
        default="views:views",
        pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*$",
        description="MODULE:ATTRIBUTE of the views",
    )
    source: Source = Field(default_factory=Source)
    mysql: MySQLStore = Field(default_factory=MySQLStore)
    redis: RedisStore = Field(default_factory=RedisStore)
    elasticsearch: ElasticsearchStore = Field(default_factory=ElasticsearchStore)
    run: Run = Field(default_factory=Run)
    metrics: Metrics = Field(default_factory=Metrics)
    logs: Logs = Field(default_factory=Logs)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `load` hands over: it keeps for each value where it came from, for the messages."""
        return (init_settings,)

    # -- addresses ---------------------------------------------------------------------------------------------

    @property
    def watermark_database(self) -> str:
        """Database of the watermark table, on the source's primary."""
        return self.source.database

    @property
    def store_database(self) -> str:
        """Database of the index tables and of viewtail's own tables."""
        url = self.mysql.url
        return (url and parse(url.get_secret_value(), "mysql").path) or DEFAULT_DATABASE

    @property
    def source_schema(self) -> str | None:
        """The schema that the source's address names, if any; `init` starts there."""
        url = self.source.url
        return parse(url.get_secret_value(), "mysql").path if url else None

    def source_address(self) -> MySQLAddress:
        """The tailed server. Raises SettingsError when it is not set."""
        return _mysql_address(self._source_url(), self.source, None)

    def primary_address(self) -> MySQLAddress:
        """Where watermarks are written: the source's primary, by default the source itself."""
        primary = self.source.primary_url
        return _mysql_address(primary or self._source_url(), self.source, None)

    def store_address(self) -> MySQLAddress:
        """The server of index tables and offsets, its database included; by default the source's."""
        if self.mysql.url is None:
            return _mysql_address(self._source_url(), self.source, DEFAULT_DATABASE)
        return _mysql_address(self.mysql.url, self.mysql, self.store_database)

    def redis_client_factory(self) -> Callable[[], Redis]:
        """Makes clients that do not retry by themselves: the sink does, and knows what may be repeated."""
        if self.redis.url is None:
            raise SettingsError(_unset("redis", "url"))
        return partial(_redis_client, self.redis, parse(self.redis.url.get_secret_value(), "redis"))

    def elasticsearch_client_factory(self) -> Callable[[], Elasticsearch]:
        """Makes clients that do not retry by themselves: the sink does, and looks at each item's answer."""
        if self.elasticsearch.url is None:
            raise SettingsError(_unset("elasticsearch", "url"))
        address = parse(self.elasticsearch.url.get_secret_value(), "elasticsearch")
        return partial(_elasticsearch_client, self.elasticsearch, address)

    def check_stores(self, views: Iterable[View]) -> None:
        """Raises one SettingsError for all stores that a view needs and no address is set for."""
        missing = {
            "redis": self.redis.url is None,
            "elasticsearch": self.elasticsearch.url is None,
        }
        first: dict[str, View] = {}
        for view in views:
            if missing.get(view.store):
                first.setdefault(view.store, view)
        if first:
            raise SettingsError(
                "\n".join(
                    f"view {view.id} needs {_STORE_NAMES[store]}: {_unset(store, 'url')}"
                    for store, view in first.items()
                )
            )

    def _source_url(self) -> SecretStr:
        if self.source.url is None:
            raise SettingsError(_unset("source", "url"))
        return self.source.url


_STORE_NAMES = {"redis": "Redis", "elasticsearch": "Elasticsearch", "source": "the source", "mysql": "MySQL"}


def _unset(group: str, name: str) -> str:
    example = {
        "source": "mysql://USER:PASSWORD@HOST:3306",
        "redis": "redis://HOST:6379/0",
        "elasticsearch": "http://HOST:9200",
    }[group]
    return (
        f"the address of {_STORE_NAMES[group]} is not set; set {PREFIX}{group.upper()}__{name.upper()}={example}, "
        f"or {name} under [{group}] in {CONFIG_FILE}"
    )


def _mysql_address(url: SecretStr, server: Server, database: str | None) -> MySQLAddress:
    parsed = parse(url.get_secret_value(), "mysql")
    password = server.secret()
    return MySQLAddress(
        host=parsed.host,
        port=parsed.port or DEFAULT_PORTS["mysql"],
        user=server.user or parsed.user or "root",
        password=(parsed.password or "") if password is None else password,
        unix_socket=parsed.socket,
        database=database,
        tls=_context(server, parsed),
    )


def _redis_client(server: RedisStore, parsed: Parsed) -> Redis:
    from redis import Connection, ConnectionPool, Redis, SSLConnection, UnixDomainSocketConnection
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    password = server.secret()
    arguments: dict[str, Any] = {
        "username": server.user or parsed.user,
        "password": parsed.password if password is None else password,
        "db": int(parsed.path or 0),
        "socket_timeout": 30.0,
        "retry": Retry(NoBackoff(), 0),
        "client_name": "viewtail",
    }
    kind: type[Connection] = Connection
    if parsed.socket is not None:
        kind = UnixDomainSocketConnection  # type: ignore[assignment]
        arguments["path"] = parsed.socket
    else:
        arguments |= {
            "host": parsed.host,
            "port": parsed.port or DEFAULT_PORTS["redis"],
            "socket_connect_timeout": 10.0,
        }
        if _context(server, parsed) is not None:
            kind = SSLConnection
            arguments |= {
                "ssl_ca_certs": server.tls_ca and str(server.tls_ca),
                "ssl_certfile": server.tls_cert and str(server.tls_cert),
                "ssl_keyfile": server.tls_key and str(server.tls_key),
                "ssl_cert_reqs": "required" if server.tls_verify else "none",
                "ssl_check_hostname": server.tls_verify,
            }
    return Redis(connection_pool=ConnectionPool(connection_class=kind, **arguments))


def _elasticsearch_client(server: ElasticsearchStore, parsed: Parsed) -> Elasticsearch:
    from elasticsearch import Elasticsearch

    login: dict[str, Any] = {}
    password = server.secret()
    user = server.user or parsed.user
    if (key := server.key()) is not None:
        login["api_key"] = key
    elif user is not None:
        login["basic_auth"] = (user, (parsed.password or "") if password is None else password)
    context = _context(server, parsed)
    if context is not None:
        login |= {"ssl_context": context, "ssl_show_warn": False}
    scheme = "https" if context is not None else "http"
    host = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
    return Elasticsearch(
        f"{scheme}://{host}:{parsed.port or DEFAULT_PORTS['elasticsearch']}{parsed.path or ''}",
        request_timeout=30,
        max_retries=0,
        retry_on_timeout=False,
        http_compress=False,
        connections_per_node=10,
        **login,
    )


def _context(server: Server, parsed: Parsed) -> ssl.SSLContext | None:
    try:
        return server.tls_context(parsed.is_tls)
    except (OSError, ssl.SSLError) as error:
        given = [str(path) for path in (server.tls_ca, server.tls_cert, server.tls_key) if path is not None]
        raise SettingsError(
            f"{', '.join(given)}: no certificate or key in PEM form could be read ({type(error).__name__})"
        ) from None


def _readable(path: Path | None, name: str) -> None:
    if path is None:
        return
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ValueError(f"{name}: the file {str(path)!r} cannot be read ({error.strerror})") from None


def _secret_of(path: Path) -> str:
    """The first and only line of a secret's file."""
    try:
        text = path.read_text().removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"the file {str(path)!r} cannot be read as UTF-8 text") from None
    if not text or "\n" in text:
        raise ValueError(f"the file {str(path)!r} must hold the secret on one line, and nothing else")
    return text


# -- loading ---------------------------------------------------------------------------------------------------


class _Given(NamedTuple):
    """A value, and the name under which the user gave it."""

    value: object
    origin: str


_Path = tuple[str, ...]


def load(config: Path | None, environ: Mapping[str, str]) -> Settings:
    """The settings of viewtail.toml (or `config`, which must exist then) and of the environment, which wins.

    Raises SettingsError with one line for everything that is wrong.
    """
    wrong: list[str] = []
    in_file = dict(_from_file(_config_path(config, environ), wrong))
    in_environment = dict(_from_environment(environ, wrong))
    given = {path: value for path, value in in_file.items() if not _is_superseded(path, in_environment)}
    given.update(in_environment)
    try:
        settings = Settings(**_nested(given))
    except ValidationError as error:
        wrong.extend(_describe(error, given))
        settings = None
    if wrong or settings is None:
        raise SettingsError("\n".join(wrong))
    return settings


def known_names() -> list[_Path]:
    """Every setting, as a path: ('views',), ('source', 'url'), ..."""
    names: list[_Path] = []
    for name, field in Settings.model_fields.items():
        group = _group_of(name)
        names.extend([(name,)] if group is None else [(name, inner) for inner in group.model_fields])
        assert field.description or group is not None
    return names


def variable(path: _Path) -> str:
    """The environment variable of a setting: ('source', 'url') -> VIEWTAIL_SOURCE__URL."""
    return PREFIX + "__".join(path).upper()


_SECRETS = ("password", "password_file", "api_key", "api_key_file")


def _is_superseded(path: _Path, in_environment: Mapping[_Path, _Given]) -> bool:
    """Whether the environment gives the login that this setting of the file is a part of."""
    if path[-1] not in (*_SECRETS, "user"):
        return False
    url = in_environment.get((path[0], "url"))
    has_login = url is not None and "@" in str(url.value)
    return has_login or (path[-1] != "user" and any((path[0], name) in in_environment for name in _SECRETS))


def _config_path(config: Path | None, environ: Mapping[str, str]) -> Path | None:
    if config is not None:
        if not config.is_file():
            raise SettingsError(f"--config {config}: there is no such file")
        return config
    if chosen := environ.get("VIEWTAIL_CONFIG"):
        if not Path(chosen).is_file():
            raise SettingsError(f"VIEWTAIL_CONFIG={chosen}: there is no such file")
        return Path(chosen)
    default = Path(CONFIG_FILE)
    return default if default.is_file() else None


def _from_file(path: Path | None, wrong: list[str]) -> Iterator[tuple[_Path, _Given]]:
    if path is None:
        return
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        wrong.append(f"{path}: cannot be read ({type(error).__name__})")
        return
    except tomllib.TOMLDecodeError as error:
        wrong.append(f"{path}: is not TOML: {error}")
        return
    for name, value in content.items():
        yield from _entry(path.name, name, value, wrong)


def _entry(file: str, name: str, value: object, wrong: list[str]) -> Iterator[tuple[_Path, _Given]]:
    group = _group_of(name)
    if name not in Settings.model_fields:
        near = nearest(name, Settings.model_fields)
        wrong.append(
            f"{file}: {name} is not a setting" + (near or f"; there are {', '.join(Settings.model_fields)}")
        )
    elif group is None:
        yield (name,), _Given(value, f"{file}: {name}")
    elif not isinstance(value, dict):
        wrong.append(
            f'{file}: {name} is a group of settings: write [{name}] and its names below, e.g. url = "..."'
        )
    else:
        for inner, inner_value in value.items():
            if inner not in group.model_fields:
                near = nearest(inner, group.model_fields)
                wrong.append(
                    f"{file}: {name}.{inner} is not a setting{near}" + ("" if near else _allowed(group))
                )
            else:
                yield (name, inner), _Given(inner_value, f"{file}: {name}.{inner}")


def _from_environment(environ: Mapping[str, str], wrong: list[str]) -> Iterator[tuple[_Path, _Given]]:
    known = {variable(path): path for path in known_names()}
    for name, value in sorted(environ.items()):
        if (
            not name.upper().startswith(PREFIX)
            or name in _OTHER_VARIABLES
            or name.startswith(_OTHER_PREFIXES)
        ):
            continue
        if name in known:
            yield known[name], _Given(value, name)
        elif _group_of(name.removeprefix(PREFIX).lower()) is not None:
            group = name.removeprefix(PREFIX).lower()
            wrong.append(f"{name} is a group of settings: set its members, e.g. {_first_of(group)}")
        else:
            near = nearest(name, [*known, "VIEWTAIL_CONFIG"])
            wrong.append(f"{name} is not a setting" + (near or "; docs/operations.md lists them all"))


def _group_of(name: str) -> type[Group] | None:
    field = Settings.model_fields.get(name)
    kind = field.annotation if field is not None else None
    return kind if isinstance(kind, type) and issubclass(kind, Group) else None


def _first_of(group: str) -> str:
    return next(variable(path) for path in known_names() if path[0] == group)


def _allowed(group: type[Group]) -> str:
    return "; the settings there are " + ", ".join(group.model_fields)


def _nested(given: Mapping[_Path, _Given]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, (value, _) in given.items():
        if len(path) == 1:
            nested[path[0]] = value
        else:
            nested.setdefault(path[0], {})[path[1]] = value
    return nested


# -- messages --------------------------------------------------------------------------------------------------


def _describe(error: ValidationError, given: Mapping[_Path, _Given]) -> Iterator[str]:
    for detail in error.errors(include_url=False, include_input=False):
        path = tuple(str(part) for part in detail["loc"][:2])
        origin = given.get(path)
        if origin is None:  # said of a group as a whole
            yield f"{_origins(path, given)}: {_reason(detail)}"
        else:
            yield f"{origin.origin}{_shown(path, origin.value)}: {_reason(detail)}"


def _origins(path: _Path, given: Mapping[_Path, _Given]) -> str:
    names = [origin.origin for at, origin in given.items() if at[:1] == path[:1]]
    return ", ".join(names) or ".".join(path)


def _shown(path: _Path, value: object) -> str:
    """The value, unless it may be a secret."""
    if _is_secret(path) or not isinstance(value, str | int | float | bool):
        return ""
    return f" is {value!r}"


def _is_secret(path: _Path) -> bool:
    group = _group_of(path[0])
    fields = Settings.model_fields if group is None else group.model_fields
    annotation = fields[path[-1]].annotation
    return SecretStr in (annotation, *(kind for kind in get_args(annotation) if kind is not NoneType)) or any(
        get_args(kind)[:1] == (SecretStr,) for kind in get_args(annotation)
    )


def _reason(detail: Any) -> str:
    context = detail.get("ctx", {})
    match detail["type"]:
        case "value_error":
            return str(context["error"])
        case "int_parsing" | "int_type" | "int_from_float":
            return "must be a whole number"
        case "float_parsing" | "float_type":
            return "must be a number"
        case "bool_parsing" | "bool_type":
            return "must be true or false"
        case "string_type" | "path_type":
            return "must be a text"
        case "greater_than_equal":
            return f"must be {context['ge']} or more"
        case "less_than_equal":
            return f"must be {context['le']} or less"
        case "literal_error":
            return f"must be one of {context['expected']}"
        case "string_too_short" | "string_too_long":
            return "must have 1 to 64 characters"
        case "string_pattern_mismatch":
            return "must be MODULE:ATTRIBUTE, e.g. views:views for the list `views` in views.py"
        case _:
            return str(detail["msg"])
