"""viewtail's own tables: one DDL a table, created when missing, in one database of the store's MySQL server.

They pass `viewtail lint`; where they leave its guideline, a comment in the statement silences the rule, and says why.
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
  `version` SMALLINT UNSIGNED NOT NULL COMMENT 'That all tables here came to',
  -- It is read before any migration: the name stays. viewtail: ignore VT106
  `since` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'When they did',
  PRIMARY KEY (`version`)
) {_OPTIONS} COMMENT='viewtail: The form of its own tables; the largest version counts'
"""

DEPLOYMENT_IDENTITY = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`deployment_identity` (
  `number` TINYINT UNSIGNED NOT NULL COMMENT 'Always 1: these tables are of one deployment',
  `id` CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Places in shared stores carry it',
  `title` VARCHAR(255) NOT NULL COMMENT 'For people: the database, and the server where it was made',
  `created_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'When it was made',
  PRIMARY KEY (`number`)
) {_OPTIONS} COMMENT='viewtail: Who this deployment is'
"""

SOURCE = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`source` (
  `id` SMALLINT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'Compact key',
  `name` VARCHAR(255) NOT NULL COMMENT 'The word default, or the topic that is read',
  `description` VARCHAR(1024) NOT NULL COMMENT 'What the server that was read last says of itself',
  `epoch` SMALLINT UNSIGNED NOT NULL COMMENT 'Number of the history; rises when coordinates stop being comparable',
  `created_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'First seen',
  `updated_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)
    COMMENT 'Last change of this row',
  PRIMARY KEY (`id`),
  UNIQUE KEY `name_key` (`name`)
) {_OPTIONS} COMMENT='viewtail: The histories that versions come from'
"""

PIPELINE = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`pipeline` (
  `id` SMALLINT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'Compact key',
  `name` VARCHAR(320) NOT NULL COMMENT 'Name of the pipeline; one a store by default',
  `source` VARCHAR(255) NOT NULL DEFAULT 'default' COMMENT 'The source that it reads: source.name',
  `partition_number` SMALLINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'Which part of the source, from 0',
  `store` VARCHAR(64) NOT NULL DEFAULT '' COMMENT 'The store that it writes',
  `fence` INT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'Number of the owner; rises when somebody takes over',
  `position` MEDIUMTEXT NULL COMMENT 'The offset: all up to here is durable; as the source writes it',
  `saved_at` TIMESTAMP(6) NULL COMMENT 'When the offset last moved',
  `paused_at` TIMESTAMP(6) NULL COMMENT 'When an operator paused it; NULL: it is not paused',
  `paused_by` VARCHAR(255) NULL COMMENT 'User and host of who paused it',
  `pause_reason` VARCHAR(1000) NULL COMMENT 'Why, if that was said',
  `paused_lag_ms` BIGINT UNSIGNED NULL COMMENT 'Its lag when it was paused, as it last reported it, milliseconds',
  PRIMARY KEY (`id`),
  UNIQUE KEY `name_key` (`name`)
) {_OPTIONS} COMMENT='viewtail: Offset and fence of each pipeline'
"""

PIPELINE_STATUS = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`pipeline_status` (
  `pipeline_id` SMALLINT UNSIGNED NOT NULL COMMENT 'Its pipeline: pipeline.id',
  `state` VARCHAR(32) NOT NULL COMMENT 'One of starting, running, standby, retrying, halted or stopped',
  `error` VARCHAR(2000) NULL COMMENT 'Why it is not running well, and what to do',
  `lag_ms` BIGINT UNSIGNED NOT NULL COMMENT 'Age of the oldest change that is not durable yet, milliseconds',
  `rows_per_second` INT UNSIGNED NOT NULL COMMENT 'Rows applied a second, over the last report',
  `applied_row_count` BIGINT UNSIGNED NOT NULL COMMENT 'Rows applied since this owner started',
  `reconnect_count` INT UNSIGNED NOT NULL COMMENT 'Reconnects to the source since this owner started',
  `owner` VARCHAR(255) NOT NULL COMMENT 'Host and process id of the owner',
  `updated_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)
    COMMENT 'When this was reported',
  PRIMARY KEY (`pipeline_id`)
) {_OPTIONS} COMMENT='viewtail: What each pipeline last reported'
"""

PIPELINE_OWNER = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`pipeline_owner` (
  `pipeline_id` SMALLINT UNSIGNED NOT NULL COMMENT 'Its pipeline: pipeline.id',
  `fence` INT UNSIGNED NOT NULL COMMENT 'The number that this owner had',
  `name` VARCHAR(255) NOT NULL COMMENT 'Host and process id of the owner',
  `taken_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'When it took the pipeline',
  `given_up_at` TIMESTAMP(6) NULL COMMENT 'When it gave it up, or saw that another has it; NULL: it may not know',
  PRIMARY KEY (`pipeline_id`, `fence`)
) {_OPTIONS} COMMENT='viewtail: The last owners of each pipeline, for people'
"""

PIPELINE_MEMBER = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`pipeline_member` (
  `name` VARCHAR(255) NOT NULL COMMENT 'Host and process id',
  `store` VARCHAR(64) NOT NULL COMMENT 'Whose pipelines it runs, or stands by for',
  `is_in_group` TINYINT(1) NOT NULL COMMENT 'Whether it shares out partitions with others, in a consumer group',
  `lock_name` VARCHAR(64) NOT NULL COMMENT 'Lock that a session of the process holds while it lives',
  `started_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'When it came',
  -- Some rows, and no other index. viewtail: ignore VT302
  PRIMARY KEY (`name`)
) {_OPTIONS} COMMENT='viewtail: The processes that run pipelines or stand by'
"""

VIEW = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`view` (
  `id` SMALLINT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'Compact key',
  `name` VARCHAR(255) NOT NULL COMMENT 'Name of the view, as store:name; ~number behind it: a copy beside the live one',
  `copy` SMALLINT UNSIGNED NOT NULL DEFAULT 1 COMMENT 'Number of this copy of the view; it tells its place',
  `pipeline_id` SMALLINT UNSIGNED NOT NULL COMMENT 'The pipeline that keeps it: pipeline.id',
  `fingerprint` CHAR(64) NOT NULL COMMENT 'Hash of the declaration that the content was made with',
  `declaration` CHAR(64) NOT NULL COMMENT 'Hash of the declaration alone, whatever its table is like',
  `version_kind` VARCHAR(255) NOT NULL COMMENT 'The word binlog, or the name of the version column',
  -- A list that nobody searches. viewtail: ignore VT103
  `columns` MEDIUMTEXT NULL COMMENT 'JSON: columns that a topic of all of them has, and had until it was filled',
  -- A list that nobody searches. viewtail: ignore VT103
  `places` TEXT NOT NULL COMMENT 'Where it is in its store, and was, as JSON',
  `is_place_ours` TINYINT(1) NOT NULL DEFAULT 0 COMMENT 'Whether this deployment has begun to fill its place',
  `state` VARCHAR(16) NOT NULL COMMENT 'One of new, filling, filled, halted or paused',
  `reason` VARCHAR(2000) NULL COMMENT 'Why it is halted, and what to do; why it is paused, if that was said',
  `paused_at` TIMESTAMP(6) NULL COMMENT 'When an operator paused it; NULL: it is not paused',
  `paused_by` VARCHAR(255) NULL COMMENT 'User and host of who paused it',
  `watermark_version` BIGINT UNSIGNED NULL COMMENT 'Of the running backfill; of a finished one, its end',
  `fill_key` TEXT NULL COMMENT 'Primary key, as JSON, of the last row of the last finished chunk',
  `fill_row_count` BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'Rows that the backfill read, or the last one kept',
  `fill_row_estimate` BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'Rows of the table when the backfill began, estimated',
  `fill_incarnation` VARCHAR(64) NOT NULL DEFAULT '' COMMENT 'Run of the store that the backfill began in',
  `fill_rows_a_second` INT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'At most so many rows are read; 0: no limit',
  `fill_started_at` TIMESTAMP(6) NULL COMMENT 'When the backfill began',
  `filled_at` TIMESTAMP(6) NULL COMMENT 'When the last backfill finished',
  `loss_count` INT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'How often it could not be relied on any more',
  `proven_at` TIMESTAMP(6) NULL COMMENT 'Through this moment the view was compared with its table, and equal',
  PRIMARY KEY (`id`),
  UNIQUE KEY `name_key` (`name`, `pipeline_id`)
) {_OPTIONS} COMMENT='viewtail: The views and how far they are backfilled'
"""

FAN_OUT = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`fan_out` (
  `view_id` SMALLINT UNSIGNED NOT NULL COMMENT 'Its view: view.id',
  `what_hash` BINARY(16) NOT NULL COMMENT 'First half of the SHA-256 of `what`',
  `what` MEDIUMTEXT NOT NULL COMMENT 'The changed rows of another table, as the view names them',
  `changed_table` VARCHAR(160) NOT NULL COMMENT 'For people: that table',
  `changed_key` VARCHAR(1000) NOT NULL COMMENT 'For people: the keys of these rows',
  `version` BIGINT UNSIGNED NOT NULL COMMENT 'Of the change that this pass brings to the entities',
  `committed_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'When that was committed',
  `next_version` BIGINT UNSIGNED NULL COMMENT 'Of a change since the pass began: another pass follows; NULL: none does',
  `next_committed_at` TIMESTAMP(6) NULL COMMENT 'When that was committed',
  `page_cursor` MEDIUMTEXT NULL COMMENT 'Where the pass goes on; NULL: at its beginning',
  `done_count` BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'Entities that the pass has written',
  `estimate` BIGINT UNSIGNED NULL COMMENT 'About how many there are; NULL: not known',
  `written_upto` BIGINT UNSIGNED NULL
    COMMENT 'The pass is done, its last page has this version: kept until the store shows a later one',
  `incarnation` VARCHAR(64) NOT NULL DEFAULT '' COMMENT 'Run of the store that the pass began in',
  PRIMARY KEY (`view_id`, `what_hash`)
) {_OPTIONS} COMMENT='viewtail: Changed rows that many entities depend on, and how many of these are written'
"""

DEAD_LETTER = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`dead_letter` (
  `view_id` SMALLINT UNSIGNED NOT NULL COMMENT 'Its view: view.id',
  `key_hash` BINARY(16) NOT NULL COMMENT 'First half of the SHA-256 of the rendered key',
  `rendered_key` TEXT NOT NULL COMMENT 'The entity key; no other value of the row is kept',
  `version` BIGINT UNSIGNED NOT NULL COMMENT 'Version that could not be applied',
  `reason` VARCHAR(2000) NOT NULL COMMENT 'Why, without row values',
  `attempt_count` INT UNSIGNED NOT NULL DEFAULT 1 COMMENT 'How often it was refused',
  `first_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'First refusal',
  `last_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)
    COMMENT 'Latest refusal',
  PRIMARY KEY (`view_id`, `key_hash`)
) {_OPTIONS} COMMENT='viewtail: Keys that could not be applied'
"""

VIEW_PART = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`view_part` (
  `id` INT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'Compact key',
  `view_id` SMALLINT UNSIGNED NOT NULL COMMENT 'Its view: view.id',
  `part` VARCHAR(400) NOT NULL COMMENT 'Values of the braces, rendered as a key is',
  `given` VARCHAR(400) NOT NULL COMMENT 'For people: these values, as --part takes them',
  `table_name` VARCHAR(160) NOT NULL COMMENT 'The table, as schema.table',
  `state` VARCHAR(16) NOT NULL COMMENT 'One of paused or resumed',
  `reason` VARCHAR(1000) NULL COMMENT 'Why it is paused, if one was given',
  `paused_by` VARCHAR(255) NOT NULL COMMENT 'User and host of who paused it',
  `paused_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'Since when it is paused',
  PRIMARY KEY (`id`),
  UNIQUE KEY `view_part_key` (`view_id`, `part`)
) {_OPTIONS} COMMENT='viewtail: Tables of many that are paused in a view, or resumed and not right yet'
"""

INCIDENT = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`pipeline_incident` (
  `id` INT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'Compact key',
  `kind` VARCHAR(16) NOT NULL COMMENT 'One of down, halted, behind, view_halted, parked or margin',
  `pipeline_name` VARCHAR(320) NOT NULL COMMENT 'Name of the pipeline',
  `view_name` VARCHAR(255) NOT NULL DEFAULT '' COMMENT 'Name of the view, as store:name; empty: it is the pipeline',
  `began_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'When it was first seen',
  `told_at` TIMESTAMP(6) NULL COMMENT 'When people were told; NULL: not yet',
  `over_at` TIMESTAMP(6) NULL COMMENT 'Since when it is not seen any more; NULL: it lasts',
  PRIMARY KEY (`id`),
  UNIQUE KEY `incident_key` (`kind`, `pipeline_name`, `view_name`)
) {_OPTIONS} COMMENT='viewtail: What is not well, and whether people were told'
"""

REBUILD = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`rebuild` (
  `view_name` VARCHAR(255) NOT NULL COMMENT 'Name of the view, as store:name',
  `pipeline_id` SMALLINT UNSIGNED NOT NULL COMMENT 'The pipeline that keeps it: pipeline.id',
  `copy` SMALLINT UNSIGNED NOT NULL COMMENT 'Number of the copy beside the live one',
  `stage` VARCHAR(16) NOT NULL COMMENT 'One of building, swapping, moving, kept, returning, dropping or ended',
  `is_automatic` TINYINT(1) NOT NULL DEFAULT 0 COMMENT 'A changed declaration began it: swapped when compared',
  `compared` INT UNSIGNED NULL COMMENT 'The view.loss_count of the copy beside when it was compared and found equal',
  `declined` VARCHAR(160) NULL
    COMMENT 'Hashes of the declaration that an operator went back to, and from: that one waits to be asked for',
  `note` VARCHAR(2000) NULL COMMENT 'Why what was asked for last could not be done',
  `is_hurried` TINYINT(1) NOT NULL DEFAULT 0 COMMENT 'The copy is filled and compared at full speed',
  `moved_upto` BIGINT UNSIGNED NULL COMMENT 'Version up to which the copy was whole that is moved into place',
  `moved_count` BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'Entities that were moved, as of some seconds ago',
  `started_by` VARCHAR(255) NOT NULL COMMENT 'User and host of the command',
  `keep_s` INT UNSIGNED NOT NULL COMMENT 'How long the other copy is kept after a swap, seconds',
  `started_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'When it was asked for',
  `swapped_at` TIMESTAMP(6) NULL COMMENT 'When readers got the other copy last',
  -- The moment at which it ends, as people say it. viewtail: ignore VT106
  `kept_until` TIMESTAMP(6) NULL COMMENT 'When the copy beside is dropped',
  `ended_at` TIMESTAMP(6) NULL COMMENT 'When the copy beside was dropped',
  -- A row a view at most, and no other index. viewtail: ignore VT302
  PRIMARY KEY (`view_name`, `pipeline_id`)
) {_OPTIONS} COMMENT='viewtail: Second copies of views, and what is asked for them'
"""

WATERMARK = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`watermark` (
  `id` SMALLINT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'Compact key',
  `name` VARCHAR(400) NOT NULL COMMENT 'Who writes it: database of the offsets and pipeline',
  `token` CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Recognised again in the stream',
  `written_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)
    COMMENT 'When it was written',
  PRIMARY KEY (`id`),
  -- Several deployments share this table on a source, so it is never altered. viewtail: ignore VT108
  UNIQUE KEY `name_idx` (`name`)
) {_OPTIONS} COMMENT='viewtail: Rows that mark now in the stream of changes'
"""

WATERMARK_PASSED = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`watermark_passed` (
  `token` CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'That a process waits for',
  `pipeline_id` SMALLINT UNSIGNED NOT NULL COMMENT 'The pipeline that passed it: pipeline.id',
  `version` BIGINT UNSIGNED NOT NULL COMMENT 'Its place in the stream',
  `passed_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'When all before it was durable',
  -- Rows are kept for minutes. viewtail: ignore VT302
  PRIMARY KEY (`token`, `pipeline_id`),
  KEY `passed_at_idx` (`passed_at`)
) {_OPTIONS} COMMENT='viewtail: Watermarks that another process than the pipeline waits for; kept for minutes'
"""

OPERATOR_RUN = f"""
CREATE TABLE IF NOT EXISTS {{database}}.`operator_run` (
  `id` INT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'Compact key',
  `kind` VARCHAR(16) NOT NULL
    COMMENT 'One of replay, verify, repair, redrive, rebuild, clean, mend, cascade, archive or restore',
  `view` VARCHAR(255) NOT NULL COMMENT 'Name of the view, as store:name; of archive and restore the table',
  `what` VARCHAR(2000) NOT NULL COMMENT 'Which entities, as the operator asked for them',
  `fingerprint` CHAR(64) NOT NULL COMMENT 'Hash of that and of the declaration: equal ones go on with each other',
  `operator` VARCHAR(255) NOT NULL COMMENT 'User and host that asked for it',
  `state` VARCHAR(16) NOT NULL COMMENT 'One of running, stopped, done, failed; marked: see the view',
  `progress` MEDIUMTEXT NOT NULL COMMENT 'How far it is, and what it has counted, as JSON',
  `result` VARCHAR(2000) NOT NULL DEFAULT '' COMMENT 'What came of it, in words',
  `started_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'When it was first asked for',
  `updated_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)
    COMMENT 'Last change of this row',
  `ended_at` TIMESTAMP(6) NULL COMMENT 'When it was over',
  PRIMARY KEY (`id`),
  KEY `view_idx` (`view`, `kind`)
) {_OPTIONS} COMMENT='viewtail: What operators had done to views'
"""

STORE_TABLES = (
    *(SCHEMA_VERSION, DEPLOYMENT_IDENTITY, SOURCE, PIPELINE, PIPELINE_STATUS, PIPELINE_OWNER, PIPELINE_MEMBER),
    *(VIEW, FAN_OUT, DEAD_LETTER, VIEW_PART, REBUILD, WATERMARK_PASSED, OPERATOR_RUN, INCIDENT),
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
