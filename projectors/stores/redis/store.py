"""Everything about Redis views as a store: it is called `redis`, and its settings are [redis]."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, SecretStr

from projectors.stores import Adoption, AuditedPlace, Choice, Example, NoCopy, Store, ViewReader
from projectors.stores.redis.keys import keys_of, leading, shapes_meet
from projectors.stores.redis.scores import score_problems
from projectors.stores.redis.views import GENERATION, RedisHash, RedisJson, RedisSet, RedisSortedSet
from projectors.views import BoundView, View
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import Column, Kind
from viewtail.changes.writes import Key
from viewtail.servers.addresses import AddressForm
from viewtail.servers.login import Server, is_address

if TYPE_CHECKING:
    from redis import Redis

    from offsets.mysql import Session
    from projectors.stores.access import Access
    from projectors.stores.leaving import Leftover, Place, Retired, Traces
    from projectors.stores.redis.places import RedisPlaces
    from projectors.stores.redis.sink import RedisSink
    from projectors.stores.redis.swapping import KeySwapping
    from viewtail.changes.findings import Finding

_RAW = (Kind.BYTES, Kind.GEOMETRY, Kind.VECTOR)


def _number(path: str) -> str:
    if not (path.isascii() and path.isdigit()):
        raise ValueError("after the / comes the number of the database, e.g. /0")
    return path


REDIS = AddressForm(
    form="redis://[USER:PASSWORD@]HOST:PORT[/DB], rediss:// with TLS, or unix:///PATH",
    example="redis://HOST:6379/0",
    default_port=6379,
    schemes=("redis", "rediss", "unix"),
    tls_schemes=("rediss",),
    parameters=("db",),
    path=_number,
)


class RedisSettings(Server):
    """The Redis server of hashes, JSON documents and sets."""

    url: Annotated[SecretStr, is_address(REDIS)] | None = Field(default=None, description=REDIS.form)

    def client(self) -> Redis:
        """A client that does not retry by itself: the sink does, and knows what may be repeated."""
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        assert self.url is not None
        parsed = self.parsed(self.url, REDIS)
        return Redis(
            host=parsed.host,
            port=parsed.port,
            unix_socket_path=parsed.socket,
            db=int(parsed.path or 0),
            username=parsed.user,
            password=parsed.password,
            client_name="viewtail",
            socket_timeout=min(30.0, self.patience.login_s),
            socket_connect_timeout=self.patience.connect_s,
            retry=Retry(NoBackoff(), 0),
            ssl=self.context(parsed) is not None,  # redis-py takes no context of ours
            ssl_ca_certs=None if self.tls_ca is None else str(self.tls_ca),
            ssl_certfile=None if self.tls_cert is None else str(self.tls_cert),
            ssl_keyfile=None if self.tls_key is None else str(self.tls_key),
            ssl_cert_reqs="required" if self.tls_verify else "none",
            ssl_check_hostname=self.tls_verify,
        )


class RedisStore(Store):
    """A hash, a JSON document or a membership per entity."""

    name = "redis"
    title = "Redis"
    has_copies = True
    view_classes = (RedisHash, RedisJson, RedisSet, RedisSortedSet)
    section = RedisSettings
    address = REDIS
    needs_place = True
    files = (
        "older values in Redis' append-only file and RDB snapshots, and its replicas'",
        "Redis rewrites them: BGREWRITEAOF and BGSAVE ask for that now",
    )

    def problems(self, view: BoundView) -> Iterable[str]:
        try:
            own, *sets = keys_of(view)
            if any(map(own.could_meet, sets)):
                yield (
                    f"{type(view.view).__name__}({view.view.name!r}): a set could have the key of an entity, which is "
                    f"{view.view.name}:KEY; begin the template with another word than the view's name"
                )
        except DeclarationError as error:
            yield str(error)
        if isinstance(view.view, RedisSet) and view.view.has_generation and view.table.column(GENERATION) is not None:
            yield (
                f"{{{GENERATION}}} in a key template is the number of a copy of the view, and {view.table.full_name} "
                "has a column of that name; to name sets by it, add a generated column of another name"
            )
        yield from score_problems(view)

    def no_unique_keys(self, view: View) -> str:
        """A member of a set says nothing of its source."""
        if isinstance(view, RedisHash | RedisJson):
            return ""
        return f"the members of a {type(view).__name__} do not note which source a key is of"

    def problems_between(self, views: Sequence[BoundView]) -> Iterable[tuple[BoundView, str]]:
        templates = [(view, keys) for view in views for keys in keys_of(view)]
        for (one, keys), (of, other) in combinations(templates, 2):
            if of is one:
                continue
            try:
                keys.check_apart(other)
            except DeclarationError as error:
                yield one, str(error)

    def indexed(self, view: BoundView) -> Sequence[Column]:
        from projectors.stores.redis.keys import SetKeys

        return SetKeys(view).columns

    def sink(self, access: Access, views: Sequence[BoundView], pipeline: str) -> RedisSink:
        from projectors.stores.redis.sink import RedisSink

        open_, read = access.section.client, access.read_position
        leading_ = {keys.pointer: view.copy for view in views if (keys := leading(view)) and not view.is_beside}
        return RedisSink(
            open_,
            views,
            access.database,
            pipeline,
            read_position=read,
            pointers=leading_,
            claiming=access.claimant,
        )

    def for_backfill(
        self, access: Access, view: BoundView, pipeline: str, session: Session
    ) -> tuple[RedisSink, Session]:
        return self.for_push(access, [view], pipeline), session

    def for_push(self, access: Access, views: Sequence[BoundView], pipeline: str) -> RedisSink:
        """A sink that leads no readers, since it may outlive a swap."""
        from projectors.stores.redis.sink import RedisSink

        open_, read = access.section.client, access.read_position
        return RedisSink(open_, views, access.database, pipeline, read_position=read, claiming=access.claimant)

    def swapping(self, access: Access) -> KeySwapping:
        from projectors.stores.redis.swapping import KeySwapping

        return KeySwapping(access.section.client(), access.database, access.claimant)

    def left_behind(self, name: str, database: str) -> str:
        return (
            f"its keys: {name}:KEY (with key=: its template) and {{{name}:KEY}}:t (with unique_over_sources: "
            f"{{{name}:KEY}}:t:SOURCE) for deleted rows. To "
            f"drop them: redis-cli --scan --pattern '{name}:*' | xargs -d '\\n' redis-cli unlink, and the same with "
            f"'{{{name}:*}}:*'. With a template the patterns begin with its text instead of {name}:. "
            "The sets of a RedisSet have the names of its template"
        )

    def place(self, view: BoundView) -> Place:
        from projectors.stores.redis.leaving import place_of

        return place_of(view)

    def no_copy_from(self, view: BoundView, before: Place) -> NoCopy | None:
        """Entities change places under the keys that they had, and as the same type of value.

        An entity that moves leaves the set of a former template, too, unless the sets are of one copy alone. A set and
        a sorted set cannot have one name.
        """
        now = self.place(view)
        names = ["shape", "kind", "pointer", *(["sets"] if "pointer" in now else [])]
        is_same = all(before.get(name) == now.get(name) for name in names)
        is_same_type = before.get("type") == now.get("type")
        if is_same and (is_same_type or not shapes_meet(before["sets"], now["sets"])):
            return None
        return NoCopy(
            why="its Redis keys have another form, or another type of value, by this declaration, and readers would "
            "find what is there now for ever",
            mend="Give it a new name, and forget this one when nobody reads it any more; or take the change back",
        )

    def leftover(self, access: Access, retired: Retired) -> Leftover:
        from projectors.stores.redis.leaving import RedisLeftover

        return RedisLeftover(access.section.client(), retired, access.database, access.claimant())

    def places(self, access: Access, view: str) -> RedisPlaces:
        from projectors.stores.redis.places import RedisPlaces

        return RedisPlaces(access.section.client(), access.claimant(), access.database)

    def traces(self, access: Access, view: BoundView) -> Traces:
        from projectors.stores.redis.leaving import RedisTraces

        return RedisTraces(access.section.client(), view)

    def connection(self, access: Access) -> Redis:
        client: Redis = access.section.client()
        return client

    def reader_over(self, connection: Redis, access: Access, view: BoundView) -> ViewReader:
        from projectors.stores.redis.reading import RedisReader
        from projectors.stores.redis.set_reading import SetReader
        from projectors.stores.redis.unique_reading import UniqueReader

        if view.is_unique_over_sources:
            return UniqueReader(connection, view)
        return (SetReader if isinstance(view.view, RedisSet) else RedisReader)(connection, view)

    def audited(self, access: Access, view: BoundView) -> AuditedPlace:
        from projectors.stores.redis.auditing import AuditedKeys
        from projectors.stores.redis.keys import RedisKeys

        if isinstance(view.view, RedisSet):
            return super().audited(access, view)
        undeclared: dict[str, None] = {}
        return AuditedPlace(
            title=f"Redis, the keys {RedisKeys(view).scan_match}",
            reader=AuditedKeys(self.connection(access), view, undeclared),
            undeclared=undeclared,
        )

    def adoption(self, access: Access, view: BoundView) -> Adoption:
        from projectors.stores.redis.adopting import KeyAdoption

        if isinstance(view.view, RedisSet):
            return super().adoption(access, view)
        return KeyAdoption(self.connection(access), view, self.places(access, view.view.id))

    def checks(self, access: Access, views: Sequence[View]) -> Iterable[Finding]:
        from projectors.stores.redis.checks import checks

        return checks(access.section.client)

    def example(self, choice: Choice) -> Example | None:
        if not choice.shown:
            return None
        name, fields = choice.name, [column.name for column in choice.shown]
        key = ":".join(f"<{name}>" for name in choice.table.primary_key)
        return Example(
            view=RedisHash(name, choice.entity, fields=fields),
            declaration=f"RedisHash({name!r}, entity, fields={fields!r}),",
            comment=f"Redis: a hash {name}:{key} a row. viewtail get redis:{name} KEY",
        )

    def document_example(self, choice: Choice) -> Example | None:
        if not choice.related:
            return None
        name = f"{choice.name}_document"
        shown = [*(column.name for column in choice.shown), *(name for name, _ in choice.related)]
        members = ", ".join(f"{shown_name!r}: row[{shown_name!r}]" for shown_name in shown)
        key = ":".join(f"<{name}>" for name in choice.table.primary_key)
        return Example(
            view=RedisJson(name, choice.entity, document=dict),
            declaration=f"RedisJson({name!r}, entity, document=lambda row: {{{members}}}),",
            comment=f"Redis: a document {name}:{key} of several tables. viewtail get redis:{name} KEY",
        )

    def content(self, view: BoundView, key: Key, values: tuple[Any, ...] | bytes) -> dict[str, Any] | None:
        from projectors.stores.redis.packing import hash_content, json_content

        if isinstance(view.view, RedisSet):
            from projectors.stores.redis.set_reading import set_content

            return set_content(view, key, values)
        make = hash_content if isinstance(view.view, RedisHash) else json_content
        return self.printable(view, make(view, values))

    def printable(self, view: BoundView, content: dict[str, Any]) -> dict[str, Any]:
        """A hash gives bytes: those of text columns are text again."""
        if not isinstance(view.view, RedisHash):
            return content
        raw = {column.name for column in view.values if column.kind in _RAW}
        return {name: value if name in raw else value.decode("utf-8", "replace") for name, value in content.items()}
