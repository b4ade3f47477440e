"""Reads the settings from the environment (`VIEWTAIL_*`) and viewtail.toml: addresses, logins, limits.

pydantic-settings reads both, and a directory of secrets; what wins, and what is said of mistakes, is decided here. One
load reports everything that is wrong at once, each with the name under which it was given and what is allowed. Secrets
and addresses are SecretStr, and no message repeats them. Nothing here opens a connection.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args
from urllib.parse import urlsplit

import pydantic_settings
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NestedSecretsSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from ingest import SourceAccess, SourceKind
from ingest.limits import Limits
from projectors.servers import Servers
from projectors.stores import Store
from projectors.stores.access import Access
from projectors.stores.index_tables.store import MySQLSettings
from projectors.stores.registry import STORES, needed
from projectors.views import View
from viewtail.changes.errors import SettingsError, nearest
from viewtail.changes.masks import SHORTEST_SECRET, Masks
from viewtail.changes.pipelines import DEFAULT_SOURCE
from viewtail.servers.addresses import MYSQL, AddressForm, parse
from viewtail.servers.login import OWN_DATABASE, Group, Name, Server
from viewtail.servers.patience import Patience
from viewtail.servers.sessions import MySQLAddress
from viewtail.sources import SourceSettings, read_position

PREFIX = "VIEWTAIL_"
CONFIG_FILE = "viewtail.toml"

# Read elsewhere: where settings are, the deployment that is meant, and what only tests and the demo set.
_CONFIG, _SECRETS_DIR = "VIEWTAIL_CONFIG", "VIEWTAIL_SECRETS_DIR"
_OTHER_VARIABLES = frozenset({_CONFIG, _SECRETS_DIR, "VIEWTAIL_FAILPOINT", "VIEWTAIL_SHARD"})
_OTHER_PREFIXES = ("VIEWTAIL_STACK_", "VIEWTAIL_TEST_")


def _off_is_zero(given: object) -> object:
    return 0 if isinstance(given, str) and given.strip().lower() == "off" else given


Port = Annotated[int, Field(ge=0, le=65535), BeforeValidator(_off_is_zero)]


class Metrics(Group):
    """Prometheus metrics of `viewtail run`."""

    host: Name = Field("127.0.0.1", description="address to listen on")
    port: Port = Field(9464, description="port to listen on; 0 or 'off' for no metrics")


class Logs(Group):
    """Logs, on stderr."""

    format: Literal["auto", "json", "text"] = Field("auto", description="auto: text on a terminal, JSON otherwise")
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="the lowest level that is logged")


class CleanerSettings(Group):
    """What keeps views right in the background."""

    share: float = Field(
        0.05, ge=0, le=1, description="of the time that the cleaner of a pipeline is at work; 0: there is none"
    )
    rest_s: float = Field(300, ge=0, description="seconds between two of its rounds through all views")


_MODULE_ATTRIBUTE = r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*$"


def _split(given: object) -> object:
    """A list in the environment is separated by commas."""
    return [part.strip() for part in given.split(",") if part.strip()] if isinstance(given, str) else given


Tag = Annotated[str, Field(pattern=r"^#?\w+$", max_length=64)]


class MaskSettings(Group):
    """People's data, which is masked before it leaves the database: see docs/masks.md."""

    tags: Annotated[tuple[Tag, ...], BeforeValidator(_split)] = Field(
        ("PPI", "GEO"),
        description="words behind a # in a column's comment that mark it as people's data, separated by commas",
    )
    secret: SecretStr | None = Field(
        None, min_length=SHORTEST_SECRET, description="key of the hashes; needed where a view has a hashed column"
    )

    def masks(self) -> Masks:
        """The same, for those who describe tables."""
        secret = "" if self.secret is None else self.secret.get_secret_value()
        return Masks(frozenset(tag.lstrip("#").upper() for tag in self.tags), secret.encode())


_ORIGIN = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?")


def _is_origin(given: str) -> str:
    if not _ORIGIN.fullmatch(given):
        raise ValueError("an address is http://HOST:PORT or https://HOST:PORT, without a path")
    return given


Origin = Annotated[str, AfterValidator(_is_origin)]


Topic = Annotated[str, Field(min_length=1, max_length=249)]


class ServeSettings(Group):
    """`viewtail serve`: commands and states of event-sourced entities over HTTP."""

    entities: str = Field(
        "entities:entities", pattern=_MODULE_ATTRIBUTE, description="MODULE:ATTRIBUTE of the entities"
    )
    host: Name = Field("127.0.0.1", description="address to listen on; it has no authentication")
    port: int = Field(8080, ge=0, le=65535, description="port to listen on; 0: any that is free")
    max_body_bytes: int = Field(1 << 20, ge=1024, le=4 << 20, description="largest request of a command")
    members: Annotated[tuple[Origin, ...], BeforeValidator(_split)] = Field(
        (),
        description="addresses of all processes that share the entities, http://HOST:PORT, separated by commas; "
        "empty: no process passes a command on",
    )
    member: Origin | None = Field(None, description="which of the members this process is")
    commands_topic: Topic | None = Field(None, description="`viewtail entities consume`: the topic of commands")
    replies_topic: Topic | None = Field(None, description="the topic that their answers go to")
    commands_group: Name = Field("viewtail-commands", description="consumer group of the processes that share them")

    @model_validator(mode="after")
    def _is_a_member(self) -> Self:
        if (self.member is None) != (not self.members):
            raise ValueError("members and member are set together, or neither")
        if self.member is not None and self.member not in self.members:
            raise ValueError(f"member is none of the members ({', '.join(self.members)})")
        if len(set(self.members)) < len(self.members):
            raise ValueError("an address is twice among the members")
        return self


class ConsoleSettings(Group):
    """The console: a page on which operators look, and act."""

    host: Name = Field("127.0.0.1", description="address to listen on; whoever reaches it may read")
    port: Port = Field(9465, description="port to listen on; 0 or 'off' for no console")
    token: SecretStr | None = Field(
        None, min_length=16, description="what an operator signs in with, to act; without one the console only reads"
    )
    url: Origin | None = Field(
        None, description="the address by which people reach it, where that is another: behind a proxy, or in messages"
    )


def _is_webhook(given: object) -> object:
    text = given.strip() if isinstance(given, str) else ""
    if given is None or text.lower() == "off":
        return None
    if not isinstance(given, SecretStr) and not _is_postable(text):
        raise ValueError("a webhook is https://HOST/PATH")
    return text or given


def _is_postable(text: str) -> bool:
    """Whether it is an address that a message can be posted to: without a login, which nobody would send."""
    try:
        parts = urlsplit(text if text.isascii() and text.isprintable() else "")
        _ = parts.port
    except ValueError:  # brackets, or a port, that are none
        return False
    return parts.scheme in ("https", "http") and bool(parts.hostname) and "@" not in parts.netloc


class NotifySettings(Group):
    """Messages to people about what is not well, and when it is over: see docs/operations.md, Messages."""

    url: Annotated[SecretStr | None, BeforeValidator(_is_webhook)] = Field(
        None, description="webhook that messages are posted to, https://HOST/PATH; a secret. 'off' or none: no messages"
    )
    format: Literal["auto", "slack", "teams", "json"] = Field(
        "auto", description="form of the messages; auto: that of Slack or Teams at their hosts, else json"
    )

    @property
    def address(self) -> str | None:
        return None if self.url is None else self.url.get_secret_value()


_Codes = Annotated[tuple[str, ...], BeforeValidator(_split)]


class LintSettings(Group):
    """`viewtail lint`: which rules of the guideline count."""

    select: _Codes = Field(("VT",), description="codes of rules, or what they begin with, separated by commas")
    ignore: _Codes = Field(
        (), description="the same, of rules that do not count; `VT104:shop.order` only for that table, * for anything"
    )
    strict: bool = Field(False, description="whether warnings make the exit code 1, too")


class _First(BaseSettings):
    """The settings before those of the stores, and the section of viewtail's own tables, which is needed by name."""

    model_config = SettingsConfigDict(
        frozen=True,
        hide_input_in_errors=True,
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        case_sensitive=True,  # in the file; names of variables are checked here
        enable_decoding=False,  # a list is separated by commas
    )

    views: str = Field("views:views", pattern=_MODULE_ATTRIBUTE, description="MODULE:ATTRIBUTE of the views")
    source: SourceSettings = SourceSettings()
    mysql: MySQLSettings = MySQLSettings()


if TYPE_CHECKING:
    _WithStores = _First
else:
    sections = {store.name: (store.section, store.section()) for store in STORES}
    _WithStores = create_model("_WithStores", __base__=_First, **sections)


class Settings(_WithStores):
    """Everything that can be set. `load` is the way to get one."""

    run: Limits = Limits()
    metrics: Metrics = Metrics()
    logs: Logs = Logs()
    cleaner: CleanerSettings = CleanerSettings()
    masks: MaskSettings = MaskSettings()
    serve: ServeSettings = ServeSettings()
    console: ConsoleSettings = ConsoleSettings()
    notify: NotifySettings = NotifySettings()
    lint: LintSettings = LintSettings()
    # By name: servers that a view draws on together.
    sources: dict[str, SourceSettings] = Field(default_factory=dict)
    _source_name: str = PrivateAttr(DEFAULT_SOURCE)  # of these the one that `source` is

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **others: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take what `load` has read: it asks each source by itself, to say where a wrong value stands."""
        return (init_settings,)

    def asked_with(self, patience: Patience) -> Self:
        """The same settings for one who waits so long for an answer of any server."""
        servers = {name: value for name, value in self if isinstance(value, Server)}
        return self.model_copy(update={name: server.asked_with(patience) for name, server in servers.items()})

    def of_source(self, name: str) -> Self:
        """The same settings for one of `sources`. Raises SettingsError, also where nobody says where viewtail's own
        tables are."""
        if name not in self.sources:
            near = nearest(name, self.sources) or f"; there are {', '.join(self.sources) or 'none'}"
            raise SettingsError(f"the settings have no [sources.{name}]{near}")
        own = self.mysql
        if own.url is None:
            if self.source.url is None or not self.source_kind.has_rows:
                raise SettingsError(
                    f"the views of [sources.{name}] have one place for all sources, and it is not set: set "
                    f"{PREFIX}MYSQL__URL={MYSQL.example}, or url under [mysql] in {CONFIG_FILE}"
                )
            url = urlsplit(self.source.url.get_secret_value())._replace(path=f"/{self.store_database}").geturl()
            login = {field: getattr(self.source, field) for field in Server.model_fields} if own.user is None else {}
            own = own.model_copy(update={**login, "url": SecretStr(url)})
        update = {"source": self.sources[name], "mysql": own, "views": f"{self.views}@{name}"}
        found = self.model_copy(update=update)
        found._source_name = name
        return found

    @property
    def store_database(self) -> str:
        """Database of the index tables and of viewtail's own tables."""
        url = self.mysql.url
        return (url and parse(url.get_secret_value(), MYSQL).path) or OWN_DATABASE

    @property
    def source_schema(self) -> str | None:
        """The schema that the source's address names, if any; `init` starts there."""
        url = self.source.url
        return parse(url.get_secret_value(), MYSQL).path if url and self.source_kind.address is MYSQL else None

    @property
    def source_kind(self) -> SourceKind:
        """All that is known of the source: its address says which kind it is."""
        return self.source.kind

    def source_address(self) -> MySQLAddress:
        """The server with the canonical rows: the tailed one, or that of a topic's tables.

        Raises SettingsError when it is not set.
        """
        self._source_url()
        found = self.source.canonical_address(self.mysql, self.mysql.url)
        if found is None:
            raise SettingsError(_unset("mysql", "MySQL, with the tables whose changes the topics hold,", MYSQL))
        return found

    def primary_address(self) -> MySQLAddress:
        """Return where watermarks are written: the source's primary, by default the source itself."""
        return self.source.primary_address(self.mysql) or self.source_address()

    def store_address(self) -> MySQLAddress:
        """The server of index tables and offsets, its database included; by default the source's."""
        if self.mysql.url is None:
            return replace(self.source_address(), database=OWN_DATABASE)
        return self.mysql.mysql_address(self.mysql.url, self.store_database)

    def source_access(self) -> SourceAccess:
        """Return how the source is reached. Raises SettingsError where its address is not set."""
        return SourceAccess(
            section=self.source,
            limits=self.run,
            address=self.source_address,
            primary=self.primary_address,
            own=self.store_address(),
            own_database=self.store_database,
            is_cleaned=self.cleaner.share > 0,
            name=self._source_name,
            count=max(1, len(self.sources) + (self._source_name == DEFAULT_SOURCE)),
        )

    def servers(self) -> Servers:
        """Return how every server is reached."""
        return Servers(
            kind=self.source_kind,
            source=self.source_access,
            own=self.store_address,
            store=self.access,
            source_name=self._source_name,
            database=self.store_database,
            watermarks_in=self.source.database,
            read_position=read_position,
            limits=self.run,
            is_cleaned=self.cleaner.share > 0,
            masks=self.masks.masks(),
        )

    def section(self, store: Store) -> Any:
        """A store's own settings, of its `section` class."""
        return getattr(self, store.name)

    def access(self, store: Store) -> Access:
        """Return how a store is reached. Raises SettingsError where its address is not set."""
        if unset := self._unset(store):
            raise SettingsError(unset)
        return Access(
            section=self.section(store),
            own=self.store_address(),
            database=self.store_database,
            read_position=read_position,
            limits=self.run,
        )

    def check_stores(self, views: Sequence[View]) -> None:
        """Raise one SettingsError for all stores that a view needs and no address is set for."""
        unset = {store.name: f"needs {store.title}: {why}" for store in needed(views) if (why := self._unset(store))}
        first = {view.store: view.id for view in reversed(views)}
        if unset:
            raise SettingsError("\n".join(f"view {first[name]} {why}" for name, why in unset.items()))

    def _unset(self, store: Store) -> str:
        """Return what is wrong where the store needs an address and has none."""
        has_address = store.default_address or self.section(store).url is not None
        return "" if has_address else _unset(store.name, store.title, store.address)

    def _source_url(self) -> SecretStr:
        if self.source.url is None:
            raise SettingsError(_unset("source", "the source", MYSQL))
        return self.source.url


def _unset(group: str, title: str, address: AddressForm) -> str:
    return (
        f"the address of {title} is not set; set {PREFIX}{group.upper()}__URL={address.example}, "
        f"or url under [{group}] in {CONFIG_FILE}"
    )


# -- loading ---------------------------------------------------------------------------------------------------


_Path = tuple[str, ...]
_Read = Mapping[str, Any]  # as pydantic-settings reads a place: by setting, or by group and setting


def load(config: Path | None, environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of viewtail.toml (or `config`, which must exist then) and of the environment, which wins.

    A variable may be a file of its name, in the directory that VIEWTAIL_SECRETS_DIR names.
    Raises SettingsError with one line for everything that is wrong.
    """
    wrong: list[str] = []
    file = _config_path(config, environ)
    in_file = {} if file is None else _from_file(file, wrong)
    of_sources, environ = _sources_apart({**_secrets(environ, wrong), **environ}, wrong)
    in_environment = _from_environment(environ, wrong)
    in_file, sources = _named_sources(in_file, of_sources, file, wrong)
    values = {name: _over(in_file.get(name), in_environment.get(name)) for name in {**in_file, **in_environment}}
    settings = _validated(values, _places(values, in_environment, file), wrong)
    if wrong:
        raise SettingsError("\n".join(wrong))
    assert settings is not None
    return settings.model_copy(update={"sources": sources})


def _validated(values: _Read, places: Mapping[_Path, str], wrong: list[str]) -> Settings | None:
    try:
        return Settings(**values)
    except ValidationError as error:
        wrong.extend(_describe(error, values, places))
    return None


def _places(values: _Read, in_environment: _Read, file: Path | None) -> dict[_Path, str]:
    """Where each setting stands, for messages."""
    places = {path: f"{file and file.name}: {'.'.join(path)}" for path in _paths(values)}
    return places | {path: variable(path) for path in _paths(in_environment)}


# -- several sources: [sources.NAME] has what [source] has


_SOURCE_NAME = re.compile(r"(?!default$)[a-z0-9]+(_[a-z0-9]+)*")
_MOST_OF_NAME = 63  # characters
_SOURCES = f"{PREFIX}SOURCES__"


def _sources_apart(environ: Mapping[str, str], wrong: list[str]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The settings of named sources in the environment, and all other variables."""
    found: dict[str, dict[str, Any]] = {}
    for name in [name for name in environ if name.upper().startswith(_SOURCES)]:
        source, _, setting = name[len(_SOURCES) :].lower().rpartition("__")
        if not source or setting not in SourceSettings.model_fields:
            near = nearest(setting, SourceSettings.model_fields) or f", as in {_SOURCES}EU__URL={MYSQL.example}"
            wrong.append(f"{name} is no setting of a source{near}")
        found.setdefault(source, {})[setting] = environ[name]
    return found, {name: value for name, value in environ.items() if not name.upper().startswith(_SOURCES)}


def _named_sources(
    in_file: _Read, of_environment: Mapping[str, _Read], file: Path | None, wrong: list[str]
) -> tuple[_Read, dict[str, SourceSettings]]:
    """The file's settings without those of named sources, and these."""
    of_file = in_file.get("sources", {})
    if not isinstance(of_file, dict):
        wrong.append(f'{file and file.name}: sources is a group for each source: write [sources.eu] and url = "..."')
        of_file = {}
    sources = {}
    for name in {**of_file, **of_environment}:
        in_both = of_file.get(name), of_environment.get(name)
        place = f"{file and file.name}: sources.{name}"
        settings = _validated({"source": _over(*in_both)}, _places_of(name, place, *in_both), wrong)
        if settings is not None:
            sources[name] = settings.source
        wrong.extend(f"{place}: {why}" for why in _not_one_of_several(name, settings))
    return {group: value for group, value in in_file.items() if group != "sources"}, sources


def _places_of(name: str, place: str, of_file: Any, of_environment: Any) -> dict[_Path, str]:
    """Where each setting of a named source stands, as if it were one of [source]."""
    if not isinstance(of_file or {}, dict):
        return {("source",): place}
    places = {("source", setting): f"{place}.{setting}" for setting in of_file or {}}
    return places | {("source", setting): f"{_SOURCES}{name}__{setting}".upper() for setting in of_environment or {}}


def _not_one_of_several(name: str, settings: Settings | None) -> Iterator[str]:
    if not _SOURCE_NAME.fullmatch(name):
        yield (
            "a source's name is in keys and in variables: small letters, digits and single _ between them, and "
            "not default"
        )
    if len(name) > _MOST_OF_NAME:
        yield f"a source's name is in a column of each key: at most {_MOST_OF_NAME} characters"
    if settings is not None and not settings.source.is_one_of_several:
        yield f'a view of several sources reads their binlogs: say url = "{MYSQL.example}", and no mode'


def known_names() -> list[_Path]:
    """Every setting, as a path: ('views',), ('source', 'url'), ..."""
    names: list[_Path] = []
    for name in Settings.model_fields:
        group = _group_of(name)
        if name == "sources":  # [sources.NAME] has what [source] has
            continue
        names.extend([(name,)] if group is None else [(name, inner) for inner in group.model_fields])
    return names


def variable(path: _Path) -> str:
    """The environment variable of a setting: ('source', 'url') -> VIEWTAIL_SOURCE__URL."""
    return PREFIX + "__".join(path).upper()


_LOGIN = ("password", "password_file", "api_key", "api_key_file")


def _over(of_file: Any, of_environment: Any) -> Any:
    """A setting or a group of the file, and what the environment says of it, which wins: a login as a whole."""
    if of_file is None or of_environment is None:
        return of_file if of_environment is None else of_environment
    if not isinstance(of_environment, dict):
        return of_environment
    if not isinstance(of_file, dict):
        return of_file  # no group: told as that
    superseded: set[str] = set()
    if "@" in str(of_environment.get("url")):
        superseded = {*_LOGIN, "user"}
    elif not of_environment.keys().isdisjoint(_LOGIN):
        superseded = {*_LOGIN}
    return {name: value for name, value in of_file.items() if name not in superseded} | of_environment


def _config_path(config: Path | None, environ: Mapping[str, str]) -> Path | None:
    chosen = environ.get(_CONFIG)
    if config is None and not chosen:
        default = Path(CONFIG_FILE)
        return default if default.is_file() else None
    path = config or Path(chosen or "")
    if not path.is_file():
        how = f"--config {config}" if config is not None else f"{_CONFIG}={chosen}"
        raise SettingsError(f"{how}: there is no such file")
    return path


def _from_file(path: Path, wrong: list[str]) -> _Read:
    try:
        return TomlConfigSettingsSource(Settings, path).toml_data
    except (OSError, UnicodeDecodeError) as error:
        wrong.append(f"{path}: cannot be read ({type(error).__name__})")
    except TOMLDecodeError as error:
        wrong.append(f"{path}: is not TOML: {error}")
    return {}


def _secrets(environ: Mapping[str, str], wrong: list[str]) -> dict[str, str]:
    if not (chosen := environ.get(_SECRETS_DIR)):
        return {}
    try:
        source = NestedSecretsSettingsSource(Settings, chosen, "error")  # type: ignore[arg-type]  # a class will do
    except (OSError, UnicodeDecodeError, pydantic_settings.SettingsError) as error:
        wrong.append(f"{_SECRETS_DIR}={chosen}: is no directory of files with a secret each ({type(error).__name__})")
        return {}
    return {name.upper(): secret or "" for name, secret in source.env_vars.items()}


def _from_environment(environ: Mapping[str, str], wrong: list[str]) -> _Read:
    known = [variable(path) for path in known_names()]
    for name in sorted(environ.keys() - {*known, *_OTHER_VARIABLES}):
        if name.upper().startswith(PREFIX) and not name.startswith(_OTHER_PREFIXES):
            wrong.append(f"{name} {_why_unknown(name, known)}")
    source = EnvSettingsSource(Settings, case_sensitive=False)
    source.env_vars = {name.lower(): environ[name] for name in known if name in environ}
    return source()


def _paths(read: _Read) -> list[_Path]:
    groups = {name: members for name, members in read.items() if _group_of(name) and isinstance(members, dict)}
    return [(name,) for name in read if not groups.get(name)] + [
        (name, member) for name, members in groups.items() for member in members
    ]


def _group_of(name: str) -> type[Group] | None:
    field = Settings.model_fields.get(name)
    kind = field.annotation if field is not None else None
    return kind if isinstance(kind, type) and issubclass(kind, Group) else None


# -- messages --------------------------------------------------------------------------------------------------


def _describe(error: ValidationError, values: _Read, places: Mapping[_Path, str]) -> Iterator[str]:
    for detail in error.errors(include_url=False, include_input=False):
        path = tuple(str(part) for part in detail["loc"][:2])
        place = places.get(path) or ", ".join(places[at] for at in places if at[0] == path[0])  # a group as a whole
        if detail["type"] == "extra_forbidden":
            yield f"{place} is not a setting{_known_beside(path)}"
        elif detail["type"] == "model_type":
            yield f'{place} is a group of settings: write [{path[0]}] and its names below, e.g. url = "..."'
        else:
            yield f"{place}{_shown(path, values)}: {_reason(detail)}"


def _why_unknown(name: str, known: Sequence[str]) -> str:
    """Return why a variable is no setting."""
    if members := [setting for setting in known if setting.startswith(f"{name}__")]:
        return f"is a group of settings: set its members, e.g. {members[0]}"
    return f"is not a setting{nearest(name, [*known, _CONFIG]) or '; docs/reference.md lists them all'}"


def _known_beside(path: _Path) -> str:
    """Return what a name in the file may have been meant to be."""
    group = _group_of(path[0])
    if group is None:
        return nearest(path[0], Settings.model_fields) or f"; there are {', '.join(Settings.model_fields)}"
    return nearest(path[1], group.model_fields) or f"; the settings there are {', '.join(group.model_fields)}"


def _shown(path: _Path, values: _Read) -> str:
    """The value, unless it may be a secret."""
    value = values[path[0]] if len(path) == 1 else values[path[0]].get(path[1])
    if not isinstance(value, str | int | float | bool) or _is_secret(path):
        return ""
    return f" is {value!r}"


def _is_secret(path: _Path) -> bool:
    group = _group_of(path[0])
    fields = Settings.model_fields if group is None else group.model_fields
    return _has_secret(fields[path[-1]].annotation)


def _has_secret(annotation: object) -> bool:
    return annotation is SecretStr or any(map(_has_secret, get_args(annotation)))


_REASONS = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "must be a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "must be true or false"),
    **dict.fromkeys(("string_type", "path_type"), "must be a text"),
    **dict.fromkeys(("string_too_short", "string_too_long"), "must have 1 to 64 characters"),
    "too_short": "must have {min_length} characters or more",
    "value_error": "{error}",
    "greater_than_equal": "must be {ge} or more",
    "less_than_equal": "must be {le} or less",
    "literal_error": "must be one of {expected}",
    "string_pattern_mismatch": "must be MODULE:ATTRIBUTE, e.g. views:views for the list `views` in views.py",
}


def _reason(detail: Any) -> str:
    form = _REASONS.get(detail["type"])
    return str(detail["msg"]) if form is None else form.format(**detail.get("ctx", {}))
