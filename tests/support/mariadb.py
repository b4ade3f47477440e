"""What tests ask a MariaDB for."""

from __future__ import annotations

import pymysql

from ingest.binlog.coordinates import BinlogPosition
from stack import Server


def binlog_end(server: Server) -> BinlogPosition:
    """Where its binlog ends now, in epoch 1."""
    with (
        pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SHOW MASTER STATUS")
        file, end, *_ = cursor.fetchone() or ("", 0)
    return BinlogPosition(epoch=1, file=file, end=end, start=end)
