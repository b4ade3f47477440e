"""viewtail's own tables as they were while an offset was binlog coordinates in six columns."""

from __future__ import annotations

SOURCE = """
CREATE TABLE IF NOT EXISTS {database}.`source` (
  `id` SMALLINT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'compact key',
  `name` VARCHAR(64) NOT NULL COMMENT 'name of the source in the settings',
  `server_identity` VARCHAR(64) NOT NULL COMMENT 'server_uuid of the server that was read last',
  `binlog_base` VARCHAR(255) NOT NULL COMMENT 'binlog file name without its number',
  `epoch` SMALLINT UNSIGNED NOT NULL COMMENT 'number of the history; rises when coordinates stop being comparable',
  `created_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'first seen',
  `updated_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)
    COMMENT 'last change of this row',
  PRIMARY KEY (`id`),
  UNIQUE KEY `name_idx` (`name`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE={collation} COMMENT='viewtail: the histories that versions come from'
"""

PIPELINE = """
CREATE TABLE IF NOT EXISTS {database}.`pipeline` (
  `id` SMALLINT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'compact key',
  `name` VARCHAR(64) NOT NULL COMMENT 'name of the pipeline; one a store by default',
  `fence` INT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'number of the owner; rises when somebody takes over',
  `epoch` SMALLINT UNSIGNED NULL COMMENT 'epoch of the offset',
  `binlog_file` VARCHAR(255) NULL COMMENT 'binlog file of the offset',
  `start_position` BIGINT UNSIGNED NULL COMMENT 'byte at which the last durable transaction begins',
  `end_position` BIGINT UNSIGNED NULL COMMENT 'byte after the last durable transaction',
  `gtid` VARCHAR(128) NULL COMMENT 'GTID of the last durable transaction',
  `gtid_base` MEDIUMTEXT NULL COMMENT 'set of GTIDs that, grown to reach gtid, is all that was seen',
  `server_identity` VARCHAR(64) NULL COMMENT 'server whose binlog the offset is a place in',
  `saved_at` TIMESTAMP(6) NULL COMMENT 'when the offset last moved',
  PRIMARY KEY (`id`),
  UNIQUE KEY `name_idx` (`name`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE={collation} COMMENT='viewtail: offset and fence of each pipeline'
"""

PIPELINE_STATUS = """
CREATE TABLE IF NOT EXISTS {database}.`pipeline_status` (
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
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE={collation} COMMENT='viewtail: what each pipeline last reported'
"""

VIEW = """
CREATE TABLE IF NOT EXISTS {database}.`view` (
  `id` SMALLINT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'compact key',
  `name` VARCHAR(255) NOT NULL COMMENT 'store:name of the view',
  `pipeline_id` SMALLINT UNSIGNED NOT NULL COMMENT 'pipeline.id of the pipeline that keeps it',
  `fingerprint` CHAR(64) NOT NULL COMMENT 'hash of the declaration that the content was made with',
  `declaration` CHAR(64) NOT NULL DEFAULT '' COMMENT 'hash of the declaration alone, whatever its table is like',
  `version_kind` VARCHAR(255) NOT NULL COMMENT 'binlog, or the name of the version column',
  `state` VARCHAR(16) NOT NULL COMMENT 'new, filling, filled or halted',
  `reason` VARCHAR(2000) NULL COMMENT 'why it is halted, and what to do',
  `watermark_version` BIGINT UNSIGNED NULL COMMENT 'of the running fill; of a finished one, its end',
  `fill_key` TEXT NULL COMMENT 'primary key, as JSON, of the last row of the last finished chunk',
  `fill_row_count` BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'rows read by the fill',
  `fill_row_estimate` BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'rows of the table when the fill began, estimated',
  `fill_incarnation` VARCHAR(64) NOT NULL DEFAULT '' COMMENT 'run of the store that the fill began in',
  `fill_started_at` TIMESTAMP(6) NULL COMMENT 'when the fill began',
  `filled_at` TIMESTAMP(6) NULL COMMENT 'when the last fill finished',
  PRIMARY KEY (`id`),
  UNIQUE KEY `name_idx` (`name`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE={collation} COMMENT='viewtail: the views and how far they are filled'
"""

DEAD_LETTER = """
CREATE TABLE IF NOT EXISTS {database}.`dead_letter` (
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
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE={collation} COMMENT='viewtail: keys that could not be applied'
"""

TABLES = (SOURCE, PIPELINE, PIPELINE_STATUS, VIEW, DEAD_LETTER)
