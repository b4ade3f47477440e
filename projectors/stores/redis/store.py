"""All that is known about Redis views: the store called `redis`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from changes.errors import DeclarationError
from changes.tables import Kind
from projectors.stores import Store, ViewReader
from projectors.stores.examples import Choice, Example
from projectors.stores.redis.keys import RedisKeys
from projectors.stores.redis.settings import REDIS, RedisSettings
from projectors.stores.redis.views import RedisHash, RedisJson
from projectors.views import BoundView, Entity

if TYPE_CHECKING:
    from changes.findings import Finding
    from projectors.stores.access import Access
    from projectors.stores.redis.sink import RedisSink

_RAW = (Kind.BYTES, Kind.GEOMETRY, Kind.VECTOR)


class RedisStore(Store):
    """A hash or a JSON document per entity."""

    name = "redis"
    title = "Redis"
    view_classes = (RedisHash, RedisJson)
    section = RedisSettings
    address = REDIS

    def problems(self, view: BoundView) -> Iterable[str]:
        try:
            RedisKeys(view)
        except DeclarationError as error:
            yield str(error)

    def problems_between(self, one: BoundView, other: BoundView) -> Iterable[str]:
        try:
            RedisKeys(one).check_apart(RedisKeys(other))
        except DeclarationError as error:
            yield str(error)

    def sink(self, access: Access, views: Sequence[BoundView], pipeline: str) -> RedisSink:
        from projectors.stores.redis.sink import RedisSink

        open_, read = access.section.client, access.read_position
        return RedisSink(open_, views, access.database, pipeline, read_position=read)

    def left_behind(self, name: str, database: str) -> str:
        return (
            f"its keys, {name}:KEY where it named no key=, and {{{name}:KEY}}:t of what was deleted. To drop them: "
            f"redis-cli --scan --pattern '{name}:*' | xargs redis-cli unlink, and the same for '{{{name}:*}}:t'"
        )

    def reader(self, access: Access, view: BoundView) -> ViewReader:
        from projectors.stores.redis.reading import RedisReader

        return RedisReader(access.section.client(), view)

    def checks(self, access: Access) -> Iterable[Finding]:
        from projectors.stores.redis.checks import checks

        return checks(access.section.client)

    def example(self, choice: Choice) -> Example | None:
        if not choice.shown:
            return None
        name, fields = choice.table.name, [column.name for column in choice.shown]
        key = ":".join(f"<{name}>" for name in choice.table.primary_key)
        return Example(
            view=RedisHash(name, Entity(choice.table.full_name), fields=fields),
            declaration=f"RedisHash({name!r}, entity, fields={fields!r}),",
            comment=f"Redis: a hash {name}:{key} a row. viewtail get redis:{name} KEY",
        )

    def printable(self, view: BoundView, content: dict[str, Any]) -> dict[str, Any]:
        """A hash gives bytes: those of text columns are text again."""
        if not isinstance(view.view, RedisHash):
            return content
        raw = {column.name for column in view.values if column.kind in _RAW}
        return {name: value if name in raw else value.decode("utf-8", "replace") for name, value in content.items()}
