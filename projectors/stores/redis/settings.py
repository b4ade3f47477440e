"""The settings of Redis: [redis], the form of its address, and the client that they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, SecretStr

from servers.addresses import AddressForm, parse
from servers.login import Server, is_address

if TYPE_CHECKING:
    from redis import Redis


def _number(path: str) -> str:
    if not (path.isascii() and path.isdigit()):
        raise ValueError("after the / stands the number of the database, e.g. /0")
    return path


REDIS = AddressForm(
    form="redis://[USER:PASSWORD@]HOST:PORT[/DB], rediss://... with TLS, or unix:///PATH",
    example="redis://HOST:6379/0",
    default_port=6379,
    schemes=("redis", "rediss", "unix"),
    tls_schemes=("rediss",),
    parameters=("db",),
    path=_number,
)


class RedisSettings(Server):
    """The Redis server of the hashes and JSON documents."""

    url: Annotated[SecretStr, is_address(REDIS)] | None = Field(
        default=None,
        description="redis://[USER:PASSWORD@]HOST:PORT[/DB], rediss:// with TLS, or unix:///PATH",
    )

    def client(self) -> Redis:
        """A client that does not retry by itself: the sink does, and knows what may be repeated."""
        from redis import Connection, ConnectionPool, Redis, SSLConnection, UnixDomainSocketConnection
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        assert self.url is not None
        parsed = parse(self.url.get_secret_value(), REDIS)
        password = self.secret()
        arguments: dict[str, Any] = {
            "username": self.user or parsed.user,
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
            arguments |= {"host": parsed.host, "port": parsed.port or REDIS.default_port}
            arguments["socket_connect_timeout"] = 10.0
            if self.context(parsed) is not None:
                kind = SSLConnection
                arguments |= self._tls()
        return Redis(connection_pool=ConnectionPool(connection_class=kind, **arguments))

    def _tls(self) -> dict[str, Any]:
        """redis-py takes no context of ours."""
        return {
            "ssl_ca_certs": self.tls_ca and str(self.tls_ca),
            "ssl_certfile": self.tls_cert and str(self.tls_cert),
            "ssl_keyfile": self.tls_key and str(self.tls_key),
            "ssl_cert_reqs": "required" if self.tls_verify else "none",
            "ssl_check_hostname": self.tls_verify,
        }
