"""One `viewtail run` over several sources, each read in its own way: a binlog tailed here, tables polled there.

Each source is a deployment of its own (viewtail/shards.py): its views, its pipelines, and a database of its own for
viewtail's tables and index tables. No view draws on two of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import urlsplit

from pydantic import SecretStr, ValidationError

from projectors.views import View
from viewtail.changes.errors import DeclarationError, SettingsError
from viewtail.servers.addresses import MYSQL, parse
from viewtail.servers.login import OWN_DATABASE, Server
from viewtail.sources import Mode, SourceSettings

if TYPE_CHECKING:
    from viewtail.settings import Settings

_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")


class Source:
    """A MySQL server, how its changes are read, and the views of them.

    Args:
        url: mysql://USER:PASSWORD@HOST:PORT; who logs in says [source] of the settings, where the address does not.
        mode: "binlog", or "poll" for tables whose rows are only ever added.
        settings: others of [source] that are this source's: poll_s=0.5, primary_url=...
    """

    def __init__(self, url: str, views: Sequence[View], *, mode: Mode = "binlog", **settings: Any) -> None:
        if mode not in get_args(Mode):
            raise DeclarationError(f"Source: mode is 'binlog' or 'poll', not {mode!r}")
        self.views = list(views)
        self.mode = mode
        self._url, self._given = url, settings

    def settings(self) -> SourceSettings:
        """Return what is given here alone. Raises SettingsError."""
        try:
            parse(self._url, MYSQL)
        except (ValueError, AttributeError) as error:
            raise SettingsError(f"the address {error}") from None
        try:
            return SourceSettings(url=SecretStr(self._url), mode=self.mode, **self._given)
        except ValidationError as error:
            said = error.errors(include_url=False, include_input=False, include_context=False)
            raise SettingsError("; ".join(": ".join([*map(str, one["loc"]), one["msg"]]) for one in said)) from None


def _check(name: str, source: object) -> None:
    if not _NAME.fullmatch(name):
        raise DeclarationError(
            f"Sources: {name!r} becomes a part of a database's name: small letters, digits and _, at most 31"
        )
    if not isinstance(source, Source):
        raise DeclarationError(f"Sources: {name} is no Source, as in {name}=Source(URL, [...])")


class Sources:
    """A views.py may name this instead of a list of views: `views = "views:sources"`.

        sources = Sources(
            shop=Source("mysql://db1:3306", [IndexTable("user_by_email", user, value="email")]),
            bank=Source("mysql://db2:3306", [RedisHash("account", account, fields=["balance"])], mode="poll"),
        )

    Args:
        sources: by name, which is for good: it is in the name of the source's database, viewtail_NAME.
    """

    def __init__(self, **sources: Source) -> None:
        if not sources:
            raise DeclarationError("Sources: name at least one, as in Sources(shop=Source(...))")
        for name, source in sources.items():
            _check(name, source)
        views = Counter(view.id for one in sources.values() for view in one.views if isinstance(view, View))
        if twice := [view for view, count in views.items() if count > 1]:
            raise DeclarationError(f"Sources: {twice[0]} is a view of two sources; give each a name of its own")
        self._sources = sources

    def shards(self) -> Mapping[str, str]:
        """Return what each is, in words, by its name."""
        how = {"binlog": "read by its binlog", "poll": "polled"}
        return {name: how[one.mode] for name, one in self._sources.items()}

    def views_of(self, shard: str) -> Sequence[View]:
        """Return the views of one of them."""
        return self._sources[shard].views

    def settings_of(self, shard: str, settings: Settings) -> Settings:
        """Return the settings of one of them. Raises SettingsError."""
        try:
            given = self._sources[shard].settings()
        except SettingsError as error:
            raise SettingsError(f"Source {shard}: {error}") from None
        assert given.url is not None
        own, number = self._database(shard, settings), list(self._sources).index(shard)
        source: dict[str, Any] = {name: getattr(given, name) for name in given.model_fields_set}
        source.setdefault("database", own)
        if settings.source.server_id is not None:  # two readers of one number throw each other out
            source.setdefault("server_id", settings.source.server_id + 1000 * number)
        url = urlsplit((settings.mysql.url or given.url).get_secret_value())._replace(path=f"/{own}").geturl()
        return settings.model_copy(
            update={
                "source": settings.source.model_copy(update=source),
                "mysql": settings.mysql.model_copy(update={**_login(settings, source), "url": SecretStr(url)}),
                "views": f"{settings.views}@{shard}",
            }
        )

    def _database(self, name: str, settings: Settings) -> str:
        """Return the database of viewtail's own tables and the index tables of a source."""
        url = settings.mysql.url
        path = parse(url.get_secret_value(), MYSQL).path if url is not None else None
        return f"{path or OWN_DATABASE}_{name}"


def _login(settings: Settings, source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the login of viewtail's own tables where nothing is said of them: they are on the source's server."""
    if settings.mysql.url is not None or settings.mysql.user is not None:
        return {}
    return {name: source.get(name, getattr(settings.source, name)) for name in Server.model_fields}
