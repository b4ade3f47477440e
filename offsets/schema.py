"""viewtail's own tables: one DDL a table, created when missing, in one database of the store's MySQL server.

House guideline: singular snake_case names, a comment on each column, `_at` for times, `is_` for booleans,
`_idx` for indexes, compact primary keys, no foreign keys, triggers or procedures.
"""

from __future__ import annotations

from typing import Any

import pymysql

from offsets import deployments, migrations
from offsets.deployments import Identity
from viewtail.servers.facts import facts_of
from viewtail.servers.sessions import MySQLAddress, create_database, quote, session_error

_OPTIONS = "ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE={collation}"

SCHEMA_VERSION = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`schema_version` (
  `version` SMALLINT UNSIGNED NOT NULL COMMENT 'that all tables here came to',
  `since` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'when they did',
  PRIMARY KEY (`version`)
) {_OPTIONS} COMMENT='viewtail: the form of its own tables; the largest version counts'
"""

DEPLOYMENT_IDENTITY = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`deployment_identity` (
  `number` TINYINT UNSIGNED NOT NULL COMMENT 'always 1: these tables are of one deployment',
  `id` CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'places in shared stores carry it',
  `title` VARCHAR(255) NOT NULL COMMENT 'for people: the database, and the server where it was made',
  `created_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'when it was made',
  PRIMARY KEY (`number`)
) {_OPTIONS} COMMENT='viewtail: who this deployment is'
"""

SOURCE = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`source` (
  `id` SMALLINT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'compact key',
  `name` VARCHAR(255) NOT NULL COMMENT 'default, or the topic that is read',
  `description` VARCHAR(1024) NOT NULL COMMENT 'what the server that was read last says of itself',
  `epoch` SMALLINT UNSIGNED NOT NULL COMMENT 'number of the history; rises when coordinates stop being comparable',
  `created_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'first seen',
  `updated_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)
    COMMENT 'last change of this row',
  PRIMARY KEY (`id`),
  UNIQUE KEY `name_idx` (`name`)
) {_OPTIONS} COMMENT='viewtail: the histories that versions come from'
"""

PIPELINE = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`pipeline` (
  `id` SMALLINT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'compact key',
  `name` VARCHAR(320) NOT NULL COMMENT 'name of the pipeline; one a store by default',
  `source` VARCHAR(255) NOT NULL DEFAULT 'default' COMMENT 'source.name of the source that it reads',
  `partition_number` SMALLINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'which part of the source, from 0',
  `store` VARCHAR(64) NOT NULL DEFAULT '' COMMENT 'the store that it writes',
  `fence` INT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'number of the owner; rises when somebody takes over',
  `position` MEDIUMTEXT NULL COMMENT 'the offset: all up to here is durable; as the source writes it',
  `saved_at` TIMESTAMP(6) NULL COMMENT 'when the offset last moved',
  `paused_at` TIMESTAMP(6) NULL COMMENT 'when an operator paused it; NULL: it is not paused',
  `paused_by` VARCHAR(255) NULL COMMENT 'user and host of who paused it',
  `pause_reason` VARCHAR(1000) NULL COMMENT 'why, if that was said',
  `paused_lag_ms` BIGINT UNSIGNED NULL COMMENT 'its lag when it was paused, as it last reported it, milliseconds',
  PRIMARY KEY (`id`),
  UNIQUE KEY `name_idx` (`name`)
) {_OPTIONS} COMMENT='viewtail: offset and fence of each pipeline'
"""

PIPELINE_STATUS = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`pipeline_status` (
  `pipeline_id` SMALLINT UNSIGNED NOT NULL COMMENT 'pipeline.id',
  `state` VARCHAR(32) NOT NULL COMMENT 'starting, running, standby, retrying, halted or stopped',
  `error` VARCHAR(2000) NULL COMMENT 'why it is not running well, and what to do',
  `lag_ms` BIGINT UNSIGNED NOT NULL COMMENT 'age of the oldest change that is not durable yet, milliseconds',
  `rows_per_second` INT UNSIGNED NOT NULL COMMENT 'rows applied a second, over the last report',
  `applied_row_count` BIGINT UNSIGNED NOT NULL COMMENT 'rows applied since this owner started',
  `reconnect_count` INT UNSIGNED NOT NULL COMMENT 'reconnects to the source since this owner started',
  `owner` VARCHAR(255) NOT NULL COMMENT 'host and process id of the owner',
  `updated_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)
    COMMENT 'when this was reported',
  PRIMARY KEY (`pipeline_id`)
) {_OPTIONS} COMMENT='viewtail: what each pipeline last reported'
"""

PIPELINE_OWNER = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`pipeline_owner` (
  `pipeline_id` SMALLINT UNSIGNED NOT NULL COMMENT 'pipeline.id',
  `fence` INT UNSIGNED NOT NULL COMMENT 'the number that this owner had',
  `name` VARCHAR(255) NOT NULL COMMENT 'host and process id of the owner',
  `taken_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'when it took the pipeline',
  `given_up_at` TIMESTAMP(6) NULL COMMENT 'when it gave it up, or saw that another has it; NULL: it may not know',
  PRIMARY KEY (`pipeline_id`, `fence`)
) {_OPTIONS} COMMENT='viewtail: the last owners of each pipeline, for people'
"""

PIPELINE_MEMBER = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`pipeline_member` (
  `name` VARCHAR(255) NOT NULL COMMENT 'host and process id',
  `store` VARCHAR(64) NOT NULL COMMENT 'whose pipelines it runs, or stands by for',
  `is_in_group` TINYINT(1) NOT NULL COMMENT 'whether it shares out partitions with others, in a consumer group',
  `lock_name` VARCHAR(64) NOT NULL COMMENT 'lock that a session of the process holds while it lives',
  `started_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'when it came',
  PRIMARY KEY (`name`)
) {_OPTIONS} COMMENT='viewtail: the processes that run pipelines or stand by'
"""

VIEW = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`view` (
  `id` SMALLINT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'compact key',
  `name` VARCHAR(255) NOT NULL COMMENT 'store:name of the view; ~number behind it: a copy beside the live one',
  `copy` SMALLINT UNSIGNED NOT NULL DEFAULT 1 COMMENT 'number of this copy of the view; it tells its place',
  `pipeline_id` SMALLINT UNSIGNED NOT NULL COMMENT 'pipeline.id of the pipeline that keeps it',
  `fingerprint` CHAR(64) NOT NULL COMMENT 'hash of the declaration that the content was made with',
  `declaration` CHAR(64) NOT NULL COMMENT 'hash of the declaration alone, whatever its table is like',
  `version_kind` VARCHAR(255) NOT NULL COMMENT 'binlog, or the name of the version column',
  `columns` MEDIUMTEXT NULL COMMENT 'JSON: columns that a topic of all of them has, and had until it was filled',
  `places` TEXT NOT NULL COMMENT 'where it is in its store, and was, as JSON',
  `is_place_ours` TINYINT(1) NOT NULL DEFAULT 0 COMMENT 'whether this deployment has begun to fill its place',
  `state` VARCHAR(16) NOT NULL COMMENT 'new, filling, filled, halted or paused',
  `reason` VARCHAR(2000) NULL COMMENT 'why it is halted, and what to do; why it is paused, if that was said',
  `paused_at` TIMESTAMP(6) NULL COMMENT 'when an operator paused it; NULL: it is not paused',
  `paused_by` VARCHAR(255) NULL COMMENT 'user and host of who paused it',
  `watermark_version` BIGINT UNSIGNED NULL COMMENT 'of the running backfill; of a finished one, its end',
  `fill_key` TEXT NULL COMMENT 'primary key, as JSON, of the last row of the last finished chunk',
  `fill_row_count` BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'rows that the backfill read, or the last one kept',
  `fill_row_estimate` BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'rows of the table when the backfill began, estimated',
  `fill_incarnation` VARCHAR(64) NOT NULL DEFAULT '' COMMENT 'run of the store that the backfill began in',
  `fill_rows_a_second` INT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'at most so many rows are read; 0: no limit',
  `fill_started_at` TIMESTAMP(6) NULL COMMENT 'when the backfill began',
  `filled_at` TIMESTAMP(6) NULL COMMENT 'when the last backfill finished',
  `loss_count` INT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'how often it could not be relied on any more',
  `proven_at` TIMESTAMP(6) NULL COMMENT 'through this moment the view was compared with its table, and equal',
  PRIMARY KEY (`id`),
  UNIQUE KEY `name_idx` (`name`, `pipeline_id`)
) {_OPTIONS} COMMENT='viewtail: the views and how far they are backfilled'
"""

FAN_OUT = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`fan_out` (
  `view_id` SMALLINT UNSIGNED NOT NULL COMMENT 'view.id',
  `what_hash` BINARY(16) NOT NULL COMMENT 'first half of the SHA-256 of `what`',
  `what` MEDIUMTEXT NOT NULL COMMENT 'the changed rows of another table, as the view names them',
  `changed_table` VARCHAR(160) NOT NULL COMMENT 'for people: that table',
  `changed_key` VARCHAR(1000) NOT NULL COMMENT 'for people: the keys of these rows',
  `version` BIGINT UNSIGNED NOT NULL COMMENT 'of the change that this pass brings to the entities',
  `committed_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'when that was committed',
  `next_version` BIGINT UNSIGNED NULL COMMENT 'of a change since the pass began: another pass follows; NULL: none does',
  `next_committed_at` TIMESTAMP(6) NULL COMMENT 'when that was committed',
  `page_cursor` MEDIUMTEXT NULL COMMENT 'where the pass goes on; NULL: at its beginning',
  `done_count` BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'entities that the pass has written',
  `estimate` BIGINT UNSIGNED NULL COMMENT 'about how many there are; NULL: not known',
  `written_upto` BIGINT UNSIGNED NULL
    COMMENT 'the pass is done, its last page has this version: kept until the store shows a later one',
  `incarnation` VARCHAR(64) NOT NULL DEFAULT '' COMMENT 'run of the store that the pass began in',
  PRIMARY KEY (`view_id`, `what_hash`)
) {_OPTIONS} COMMENT='viewtail: changed rows that many entities depend on, and how many of these are written'
"""

DEAD_LETTER = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`dead_letter` (
  `view_id` SMALLINT UNSIGNED NOT NULL COMMENT 'view.id',
  `key_hash` BINARY(16) NOT NULL COMMENT 'first half of the SHA-256 of the rendered key',
  `rendered_key` TEXT NOT NULL COMMENT 'the entity key; no other value of the row is kept',
  `version` BIGINT UNSIGNED NOT NULL COMMENT 'version that could not be applied',
  `reason` VARCHAR(2000) NOT NULL COMMENT 'why, without row values',
  `attempt_count` INT UNSIGNED NOT NULL DEFAULT 1 COMMENT 'how often it was refused',
  `first_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'first refusal',
  `last_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)
    COMMENT 'latest refusal',
  PRIMARY KEY (`view_id`, `key_hash`)
) {_OPTIONS} COMMENT='viewtail: keys that could not be applied'
"""

REBUILD = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`rebuild` (
  `view_name` VARCHAR(255) NOT NULL COMMENT 'store:name of the view',
  `pipeline_id` SMALLINT UNSIGNED NOT NULL COMMENT 'pipeline.id of the pipeline that keeps it',
  `copy` SMALLINT UNSIGNED NOT NULL COMMENT 'number of the copy beside the live one',
  `stage` VARCHAR(16) NOT NULL COMMENT 'building, swapping, moving, kept, returning, dropping or ended',
  `is_automatic` TINYINT(1) NOT NULL DEFAULT 0 COMMENT 'a changed declaration began it: swapped when compared',
  `compared` INT UNSIGNED NULL COMMENT 'view.loss_count of the copy beside when it was compared and found equal',
  `declined` VARCHAR(160) NULL
    COMMENT 'hashes of the declaration that an operator went back to, and from: that one waits to be asked for',
  `note` VARCHAR(2000) NULL COMMENT 'why what was asked for last could not be done',
  `is_hurried` TINYINT(1) NOT NULL DEFAULT 0 COMMENT 'the copy is filled and compared at full speed',
  `moved_upto` BIGINT UNSIGNED NULL COMMENT 'version up to which the copy was whole that is moved into place',
  `moved_count` BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'entities that were moved, as of some seconds ago',
  `started_by` VARCHAR(255) NOT NULL COMMENT 'user and host of the command',
  `keep_s` INT UNSIGNED NOT NULL COMMENT 'how long the other copy is kept after a swap, seconds',
  `started_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'when it was asked for',
  `swapped_at` TIMESTAMP(6) NULL COMMENT 'when readers got the other copy last',
  `kept_until` TIMESTAMP(6) NULL COMMENT 'when the copy beside is dropped',
  `ended_at` TIMESTAMP(6) NULL COMMENT 'when the copy beside was dropped',
  PRIMARY KEY (`view_name`, `pipeline_id`)
) {_OPTIONS} COMMENT='viewtail: second copies of views, and what is asked for them'
"""

WATERMARK = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`watermark` (
  `id` SMALLINT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'compact key',
  `name` VARCHAR(400) NOT NULL COMMENT 'who writes it: database of the offsets and pipeline',
  `token` CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'recognised again in the stream',
  `written_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)
    COMMENT 'when it was written',
  PRIMARY KEY (`id`),
  UNIQUE KEY `name_idx` (`name`)
) {_OPTIONS} COMMENT='viewtail: rows that mark now in the stream of changes'
"""

WATERMARK_PASSED = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`watermark_passed` (
  `token` CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'that a process waits for',
  `pipeline_id` SMALLINT UNSIGNED NOT NULL COMMENT 'pipeline.id of the pipeline that passed it',
  `version` BIGINT UNSIGNED NOT NULL COMMENT 'its place in the stream',
  `passed_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'when all before it was durable',
  PRIMARY KEY (`token`, `pipeline_id`),
  KEY `passed_at_idx` (`passed_at`)
) {_OPTIONS} COMMENT='viewtail: watermarks that another process than the pipeline waits for; kept for minutes'
"""

OPERATOR_RUN = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`operator_run` (
  `id` INT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'compact key',
  `kind` VARCHAR(16) NOT NULL
    COMMENT 'replay, verify, repair, redrive, rebuild, clean, mend, cascade, archive or restore',
  `view` VARCHAR(255) NOT NULL COMMENT 'store:name of the view; of archive and restore the table',
  `what` VARCHAR(2000) NOT NULL COMMENT 'which entities, as the operator asked for them',
  `fingerprint` CHAR(64) NOT NULL COMMENT 'hash of that and of the declaration: equal ones go on with each other',
  `operator` VARCHAR(255) NOT NULL COMMENT 'user and host that asked for it',
  `state` VARCHAR(16) NOT NULL COMMENT 'running, stopped, done, failed; marked: see the view',
  `progress` MEDIUMTEXT NOT NULL COMMENT 'how far it is, and what it has counted, as JSON',
  `result` VARCHAR(2000) NOT NULL DEFAULT '' COMMENT 'what came of it, in words',
  `started_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'when it was first asked for',
  `updated_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)
    COMMENT 'last change of this row',
  `ended_at` TIMESTAMP(6) NULL COMMENT 'when it was over',
  PRIMARY KEY (`id`),
  KEY `view_idx` (`view`, `kind`)
) {_OPTIONS} COMMENT='viewtail: what operators had done to views'
"""

STORE_TABLES = (
    *(SCHEMA_VERSION, DEPLOYMENT_IDENTITY, SOURCE, PIPELINE, PIPELINE_STATUS, PIPELINE_OWNER, PIPELINE_MEMBER),
    *(VIEW, FAN_OUT, DEAD_LETTER, REBUILD, WATERMARK_PASSED, OPERATOR_RUN),
)
SOURCE_TABLES = (WATERMARK,)


def table_of(ddl: str) -> str:
    """The table that a CREATE TABLE is of."""
    return ddl.split("`")[1]


def create(
    connection: pymysql.Connection[Any],
    address: MySQLAddress,
    database: str,
    tables: tuple[str, ...],
    role: str,
    known: Identity | None = None,
) -> None:
    """Create the database and its tables where they are missing, and bring them to this program's version.

    Tables without an identity get the one that is `known`, or a new one.
    """
    try:
        create_database(connection, database)
        with connection.cursor() as cursor:
            is_of_store = SCHEMA_VERSION in tables
            if is_of_store:
                migrations.migrate(cursor, database)  # refused before anything is made
            present = migrations.columns(cursor, database)
            collation = facts_of(connection).binary_collation
            for ddl in tables:
                if table_of(ddl) not in present:
                    cursor.execute(ddl.format(database=quote(database), collation=collation))
                if ddl is SCHEMA_VERSION:
                    migrations.begin(cursor, database)
            if is_of_store:
                deployments.make(cursor, database, address, known)
                migrations.finish(cursor, database)
        connection.commit()
    except pymysql.err.MySQLError as error:
        raise session_error(error, address, role) from None
