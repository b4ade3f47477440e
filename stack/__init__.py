"""Real servers for the demo, the tests and the benchmarks, without a container engine: MySQL, MariaDB, Redis,
Elasticsearch, Kafka.

    server = stack.mysql.start(directory)
    server.url, server.pause(), server.kill(), server.start(), server.stop()

Standard library only, since it runs before the project's own environment exists. Nothing is installed on the
machine: all of it lies below `.stack/` or $VIEWTAIL_STACK_CACHE. The wheel has it as viewtail/demo/stack/, so its
modules import each other relatively; there the user's cache stands for `.stack/`.
"""

from . import elasticsearch, kafka, mariadb, mysql, redis
from .errors import ServerFailed, ServerUnavailable, StackError
from .server import Server

__all__ = [
    "Server",
    "ServerFailed",
    "ServerUnavailable",
    "StackError",
    "elasticsearch",
    "kafka",
    "mariadb",
    "mysql",
    "redis",
]
