CREATE DATABASE viewtail CHARACTER SET utf8mb4;
USE viewtail;
CREATE TABLE `dead_letter` (
  `view_id` smallint unsigned NOT NULL COMMENT 'view.id',
  `key_hash` binary(16) NOT NULL COMMENT 'first half of the SHA-256 of the rendered key',
  `rendered_key` text COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'the entity key; no other value of the row is kept',
  `version` bigint unsigned NOT NULL COMMENT 'version that could not be applied',
  `reason` varchar(2000) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'why, without row values',
  `attempt_count` int unsigned NOT NULL DEFAULT '1' COMMENT 'how often it was refused',
  `first_at` timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'first refusal',
  `last_at` timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6) COMMENT 'latest refusal',
  PRIMARY KEY (`view_id`,`key_hash`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail: keys that could not be applied';
INSERT INTO `dead_letter` (`view_id`, `key_hash`, `rendered_key`, `version`, `reason`, `attempt_count`, `first_at`, `last_at`) VALUES (5, 0x7902699be42c8a8e46fbbb4501726517, '7', 9007207844695930, 'the Redis key \'user:7\' holds something that viewtail did not write; it is left alone. Delete or rename it, then run: viewtail replay redis:user', 2, '2026-11-22 05:46:23.672143', '2026-11-22 05:46:29.630466');
CREATE TABLE `ix_email` (
  `id` int NOT NULL COMMENT 'entity key, shop.user.id',
  `email` varchar(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin DEFAULT NULL COMMENT 'indexed value, shop.user.email; NULL where there is none or the entity is gone',
  `version` bigint unsigned NOT NULL COMMENT 'version of the change that this row is from; only newer ones apply',
  PRIMARY KEY (`id`),
  KEY `value_idx` (`email`,`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail index table of shop.user; written by viewtail alone and made from the entity again at any time';
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (1, 'e1@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (2, 'e2@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (3, 'e3@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (4, 'e4@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (5, NULL, 9007207844696131);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (6, 'e6@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (7, 'parked', 9007207844695930);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (8, 'e8@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (9, 'e9@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (10, 'changed', 9007207844695820);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (11, 'changed', 9007207844695820);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (12, NULL, 9007207844696023);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (13, 'e13@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (14, 'e14@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (15, 'e15@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (16, 'e16@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (17, 'e17@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (18, 'e18@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (19, 'e19@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (20, NULL, 9007207844696131);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (21, 'e21@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (22, 'e22@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (23, 'e23@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (24, 'e24@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (25, 'e25@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (26, 'e26@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (27, 'e27@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (28, 'e28@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (29, 'e29@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (30, 'e30@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (31, 'e31@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (32, 'e32@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (33, 'e33@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (34, 'e34@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (35, 'e35@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (36, 'e36@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (37, 'e37@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (38, 'e38@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (39, 'e39@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (40, 'e40@x', 9007207844676467);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (50, 'é:{}%', 9007207844695718);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (51, NULL, 9007207844696131);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (60, 'e12@x', 9007207844696023);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (70, 'last', 9007207844696694);
CREATE TABLE `ix_even` (
  `id` int NOT NULL COMMENT 'entity key, shop.user.id',
  `n` int DEFAULT NULL COMMENT 'indexed value, shop.user.n; NULL where there is none or the entity is gone',
  `version` bigint unsigned NOT NULL COMMENT 'version of the change that this row is from; only newer ones apply',
  PRIMARY KEY (`id`),
  KEY `value_idx` (`n`,`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail index table of shop.user; written by viewtail alone and made from the entity again at any time';
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (2, 2, 9007207844684634);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (4, 4, 9007207844684634);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (5, NULL, 9007207844696131);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (6, 6, 9007207844684634);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (8, 8, 9007207844684634);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (10, NULL, 9007207844695820);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (11, 12, 9007207844695820);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (12, NULL, 9007207844696023);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (14, 14, 9007207844684634);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (16, 16, 9007207844684634);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (18, 18, 9007207844684634);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (20, NULL, 9007207844696131);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (22, 22, 9007207844684634);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (24, 24, 9007207844684634);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (26, 26, 9007207844684634);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (28, 28, 9007207844684634);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (30, 30, 9007207844684634);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (32, 32, 9007207844684634);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (34, 34, 9007207844684634);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (36, 36, 9007207844684634);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (38, 38, 9007207844684634);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (40, 40, 9007207844684634);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (50, 50, 9007207844695718);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (51, NULL, 9007207844696131);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (60, 12, 9007207844696023);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (70, 70, 9007207844696694);
CREATE TABLE `ix_gone` (
  `id` int NOT NULL COMMENT 'entity key, shop.gone.id',
  `v` varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin DEFAULT NULL COMMENT 'indexed value, shop.gone.v; NULL where there is none or the entity is gone',
  `version` bigint unsigned NOT NULL COMMENT 'version of the change that this row is from; only newer ones apply',
  PRIMARY KEY (`id`),
  KEY `value_idx` (`v`,`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail index table of shop.gone; written by viewtail alone and made from the entity again at any time';
INSERT INTO `ix_gone` (`id`, `v`, `version`) VALUES (1, 'a', 9007207844689319);
INSERT INTO `ix_gone` (`id`, `v`, `version`) VALUES (2, 'b', 9007207844689319);
CREATE TABLE `ix_half` (
  `id` int NOT NULL COMMENT 'entity key, shop.half_mysql.id',
  `v` varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin DEFAULT NULL COMMENT 'indexed value, shop.half_mysql.v; NULL where there is none or the entity is gone',
  `version` bigint unsigned NOT NULL COMMENT 'version of the change that this row is from; only newer ones apply',
  PRIMARY KEY (`id`),
  KEY `value_idx` (`v`,`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail index table of shop.half_mysql; written by viewtail alone and made from the entity again at any time';
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (1, 'v1', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (2, 'v2', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (3, 'v3', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (4, 'v4', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (5, 'v5', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (6, 'v6', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (7, 'v7', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (8, 'v8', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (9, 'v9', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (10, 'v10', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (11, 'v11', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (12, 'v12', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (13, 'v13', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (14, 'v14', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (15, 'v15', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (16, 'v16', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (17, 'v17', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (18, 'v18', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (19, 'v19', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (20, 'v20', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (21, 'v21', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (22, 'v22', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (23, 'v23', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (24, 'v24', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (25, 'v25', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (26, 'v26', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (27, 'v27', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (28, 'v28', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (29, 'v29', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (30, 'v30', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (31, 'v31', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (32, 'v32', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (33, 'v33', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (34, 'v34', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (35, 'v35', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (36, 'v36', 9007207844697062);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (37, 'v37', 9007207844697062);
CREATE TABLE `pipeline` (
  `id` smallint unsigned NOT NULL AUTO_INCREMENT COMMENT 'compact key',
  `name` varchar(64) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'name of the pipeline; one a store by default',
  `fence` int unsigned NOT NULL DEFAULT '0' COMMENT 'number of the owner; rises when somebody takes over',
  `epoch` smallint unsigned DEFAULT NULL COMMENT 'epoch of the offset',
  `binlog_file` varchar(255) COLLATE utf8mb4_0900_bin DEFAULT NULL COMMENT 'binlog file of the offset',
  `start_position` bigint unsigned DEFAULT NULL COMMENT 'byte at which the last durable transaction begins',
  `end_position` bigint unsigned DEFAULT NULL COMMENT 'byte after the last durable transaction',
  `gtid` varchar(128) COLLATE utf8mb4_0900_bin DEFAULT NULL COMMENT 'GTID of the last durable transaction',
  `gtid_base` mediumtext COLLATE utf8mb4_0900_bin COMMENT 'set of GTIDs that, grown to reach gtid, is all that was seen',
  `server_identity` varchar(64) COLLATE utf8mb4_0900_bin DEFAULT NULL COMMENT 'server whose binlog the offset is a place in',
  `saved_at` timestamp(6) NULL DEFAULT NULL COMMENT 'when the offset last moved',
  PRIMARY KEY (`id`),
  UNIQUE KEY `name_idx` (`name`)
) ENGINE=InnoDB AUTO_INCREMENT=4 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail: offset and fence of each pipeline';
INSERT INTO `pipeline` (`id`, `name`, `fence`, `epoch`, `binlog_file`, `start_position`, `end_position`, `gtid`, `gtid_base`, `server_identity`, `saved_at`) VALUES (1, 'mysql', 2, 1, '<file 1>', <start 1>, <end 1>, '<gtid 1>', '<base 1>', '<server>', '2026-11-22 05:46:34.205036');
INSERT INTO `pipeline` (`id`, `name`, `fence`, `epoch`, `binlog_file`, `start_position`, `end_position`, `gtid`, `gtid_base`, `server_identity`, `saved_at`) VALUES (2, 'elasticsearch', 2, 1, '<file 3>', <start 3>, <end 3>, '<gtid 3>', '<base 3>', '<server>', '2026-11-22 05:46:41.659821');
INSERT INTO `pipeline` (`id`, `name`, `fence`, `epoch`, `binlog_file`, `start_position`, `end_position`, `gtid`, `gtid_base`, `server_identity`, `saved_at`) VALUES (3, 'redis', 2, 1, '<file 2>', <start 2>, <end 2>, '<gtid 2>', '<base 2>', '<server>', '2026-11-22 05:46:37.415468');
CREATE TABLE `pipeline_status` (
  `pipeline_id` smallint unsigned NOT NULL COMMENT 'pipeline.id',
  `state` varchar(32) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'starting, running, standby, retrying, halted or stopped',
  `error` varchar(2000) COLLATE utf8mb4_0900_bin DEFAULT NULL COMMENT 'why it is not running well, and what to do',
  `lag_ms` bigint unsigned NOT NULL COMMENT 'age of the oldest change that is not durable yet, milliseconds',
  `rows_per_second` int unsigned NOT NULL COMMENT 'rows applied a second, over the last report',
  `applied_row_count` bigint unsigned NOT NULL COMMENT 'rows applied since this owner started',
  `reconnect_count` int unsigned NOT NULL COMMENT 'reconnects to the source since this owner started',
  `owner` varchar(255) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'host and process id of the owner',
  `updated_at` timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6) COMMENT 'when this was reported',
  PRIMARY KEY (`pipeline_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail: what each pipeline last reported';
INSERT INTO `pipeline_status` (`pipeline_id`, `state`, `error`, `lag_ms`, `rows_per_second`, `applied_row_count`, `reconnect_count`, `owner`, `updated_at`) VALUES (1, 'running', NULL, 0, 0, 0, 0, 'recorder:1', '2026-11-22 05:46:34.342501');
INSERT INTO `pipeline_status` (`pipeline_id`, `state`, `error`, `lag_ms`, `rows_per_second`, `applied_row_count`, `reconnect_count`, `owner`, `updated_at`) VALUES (2, 'running', 'Elasticsearch: the index of elasticsearch:half does not answer (no_shard_available_action_exception); viewtail tries again by itself', 0, 0, 0, 0, 'recorder:1', '2026-11-22 05:46:41.795521');
INSERT INTO `pipeline_status` (`pipeline_id`, `state`, `error`, `lag_ms`, `rows_per_second`, `applied_row_count`, `reconnect_count`, `owner`, `updated_at`) VALUES (3, 'running', NULL, 0, 0, 0, 0, 'recorder:1', '2026-11-22 05:46:37.370252');
CREATE TABLE `source` (
  `id` smallint unsigned NOT NULL AUTO_INCREMENT COMMENT 'compact key',
  `name` varchar(64) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'name of the source in the settings',
  `server_identity` varchar(64) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'server_uuid of the server that was read last',
  `binlog_base` varchar(255) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'binlog file name without its number',
  `epoch` smallint unsigned NOT NULL COMMENT 'number of the history; rises when coordinates stop being comparable',
  `created_at` timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'first seen',
  `updated_at` timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6) COMMENT 'last change of this row',
  PRIMARY KEY (`id`),
  UNIQUE KEY `name_idx` (`name`)
) ENGINE=InnoDB AUTO_INCREMENT=2 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail: the histories that versions come from';
INSERT INTO `source` (`id`, `name`, `server_identity`, `binlog_base`, `epoch`, `created_at`, `updated_at`) VALUES (1, 'default', '<server>', 'binlog', 1, '2026-11-22 05:46:22.756264', '2026-11-22 05:46:22.756264');
CREATE TABLE `view` (
  `id` smallint unsigned NOT NULL AUTO_INCREMENT COMMENT 'compact key',
  `name` varchar(255) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'store:name of the view',
  `pipeline_id` smallint unsigned NOT NULL COMMENT 'pipeline.id of the pipeline that keeps it',
  `fingerprint` char(64) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'hash of the declaration that the content was made with',
  `declaration` char(64) COLLATE utf8mb4_0900_bin NOT NULL DEFAULT '' COMMENT 'hash of the declaration alone, whatever its table is like',
  `version_kind` varchar(255) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'binlog, or the name of the version column',
  `state` varchar(16) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'new, filling, filled or halted',
  `reason` varchar(2000) COLLATE utf8mb4_0900_bin DEFAULT NULL COMMENT 'why it is halted, and what to do',
  `watermark_version` bigint unsigned DEFAULT NULL COMMENT 'of the running fill; of a finished one, its end',
  `fill_key` text COLLATE utf8mb4_0900_bin COMMENT 'primary key, as JSON, of the last row of the last finished chunk',
  `fill_row_count` bigint unsigned NOT NULL DEFAULT '0' COMMENT 'rows read by the fill',
  `fill_row_estimate` bigint unsigned NOT NULL DEFAULT '0' COMMENT 'rows of the table when the fill began, estimated',
  `fill_incarnation` varchar(64) COLLATE utf8mb4_0900_bin NOT NULL DEFAULT '' COMMENT 'run of the store that the fill began in',
  `fill_started_at` timestamp(6) NULL DEFAULT NULL COMMENT 'when the fill began',
  `filled_at` timestamp(6) NULL DEFAULT NULL COMMENT 'when the last fill finished',
  PRIMARY KEY (`id`),
  UNIQUE KEY `name_idx` (`name`)
) ENGINE=InnoDB AUTO_INCREMENT=12 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail: the views and how far they are filled';
INSERT INTO `view` (`id`, `name`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `state`, `reason`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_started_at`, `filled_at`) VALUES (1, 'mysql:ix_email', 1, '5cd75b98182ca1b819951a43860d7570df9554eac4456186e3b5002623bd97e6', '7748d34fc8518e91a698ea131324938886325b7f85b502a955443a4ce646f848', 'binlog', 'filled', NULL, 9007207844684064, '{\"order\":\"id integer\",\"key\":[40]}', 40, 40, '', '2026-11-22 05:46:23.617295', '2026-11-22 05:46:24.293603');
INSERT INTO `view` (`id`, `name`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `state`, `reason`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_started_at`, `filled_at`) VALUES (2, 'mysql:ix_even', 1, '58762bc8447858003bbf374368991dbd6e54c61a0000c5e65ba3803279c2c218', '012cfe1a70ae1a089a0564049bf768cee0e170ed6bcdb4944c5d652b5096574e', 'binlog', 'filled', NULL, 9007207844689146, '{\"order\":\"id integer\",\"key\":[40]}', 40, 40, '', '2026-11-22 05:46:24.354233', '2026-11-22 05:46:24.745015');
INSERT INTO `view` (`id`, `name`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `state`, `reason`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_started_at`, `filled_at`) VALUES (3, 'mysql:ix_gone', 1, '452eb1d1ddb69bd6be2882c4bd886f2738137a9675ff26f1911ce7785c071e68', '9388139157f0bf090919534ba5672a373aef81a8df03bfa672aca9daea691509', 'binlog', 'halted', 'shop.gone at binlog.000002:330633: column v was dropped: ALTER TABLE shop.gone DROP COLUMN v. When the table is as it should be, fill the views again: viewtail replay mysql:ix_gone', 9007207844689589, '{\"order\":\"id integer\",\"key\":[2]}', 2, 2, '', '2026-11-22 05:46:24.825358', '2026-11-22 05:46:24.863201');
INSERT INTO `view` (`id`, `name`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `state`, `reason`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_started_at`, `filled_at`) VALUES (4, 'elasticsearch:user', 2, '9c2b39993cc669d8f1f6b7df2d85b2f1ce7d4b18a69fce861621e1771f151c49', '94d364017f36606c870b800d8893ace48021a00a90072842cda6d72d3bd99040', 'binlog', 'filled', NULL, 9007207844692583, '{\"order\":\"id integer\",\"key\":[40]}', 40, 40, '', '2026-11-22 05:46:26.240517', '2026-11-22 05:46:28.064303');
INSERT INTO `view` (`id`, `name`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `state`, `reason`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_started_at`, `filled_at`) VALUES (5, 'redis:user', 3, 'e476d3e83975eca9e236ad3332a01dd5c8be35339770e11912cbffa15a3d3c0e', '832c1be705e742cadf5ff057a0daa01e06fc7c06f27bdafe02ce49c07a0951bf', 'binlog', 'filled', NULL, 9007207844681029, '{\"order\":\"id integer\",\"key\":[40]}', 40, 40, '<run>', '2026-11-22 05:46:23.605006', '2026-11-22 05:46:23.961737');
INSERT INTO `view` (`id`, `name`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `state`, `reason`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_started_at`, `filled_at`) VALUES (6, 'elasticsearch:even', 2, '79c5f24357b4fe1591f5480e14e60cf78ed5c72c0ccc9d2b736c4a0f745cc14a', '56326be599eac1930840a95d17be3073d47c0282604ad549943e68705f9b0dfa', 'binlog', 'filled', NULL, 9007207844695502, '{\"order\":\"id integer\",\"key\":[40]}', 40, 40, '', '2026-11-22 05:46:28.310990', '2026-11-22 05:46:29.280571');
INSERT INTO `view` (`id`, `name`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `state`, `reason`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_started_at`, `filled_at`) VALUES (7, 'redis:document', 3, 'a865024b6b10884fd8aa1b583897f850c69dbf9c362be3ee38bd920e94836658', 'f80764be03f99c98ab6f7117b6b3d4444a38dd788d3d99f6e2feef0151b08e26', 'binlog', 'filled', NULL, 9007207844686643, '{\"order\":\"id integer\",\"key\":[40]}', 40, 40, '<run>', '2026-11-22 05:46:24.039475', '2026-11-22 05:46:24.474535');
INSERT INTO `view` (`id`, `name`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `state`, `reason`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_started_at`, `filled_at`) VALUES (8, 'redis:moved', 3, '0e3db5cc7b338c4fe936e0dcaeaa0c1af2f16b7b3efa04dd1762c5c5e9f4800b', 'ca82dd1e0ebbc3485555e0d3617ead579fedd7bac836c181a79113c87530363b', 'binlog', 'halted', 'shop.moved at binlog.000002:332795: column v was renamed to w: ALTER TABLE shop.moved RENAME COLUMN v TO w. When the table is as it should be, fill the views again: viewtail replay redis:moved', 9007207844687605, '{\"order\":\"id integer\",\"key\":[2]}', 2, 2, '<run>', '2026-11-22 05:46:24.536003', '2026-11-22 05:46:24.574830');
INSERT INTO `view` (`id`, `name`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `state`, `reason`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_started_at`, `filled_at`) VALUES (9, 'mysql:ix_half', 1, '7467cb9b6b8800c7855e9a57b9bab703b11ceec5b4fa4715ce025a4bc6defd34', 'd4a3c0a45b2d83249e7b5336a9efa85f46ad9d0063eed96372c25eec25745a1e', 'binlog', 'filling', NULL, 9007207844697062, '{\"order\":\"id integer\",\"key\":[37]}', 37, 100, '', '2026-11-22 05:46:34.215977', NULL);
INSERT INTO `view` (`id`, `name`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `state`, `reason`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_started_at`, `filled_at`) VALUES (10, 'redis:half', 3, 'ea8e567fbae428509234cd6822bd0c5776b3f679b15eacaf12d2cedbccdfd8b1', '4fcad23a3566ba6f2f7fb2a9538a69e001aba8f3f252215b1513d3eb86392023', 'binlog', 'filling', NULL, 9007207844699954, '{\"order\":\"id integer\",\"key\":[33]}', 33, 100, '<run>', '2026-11-22 05:46:37.164132', NULL);
INSERT INTO `view` (`id`, `name`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `state`, `reason`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_started_at`, `filled_at`) VALUES (11, 'elasticsearch:half', 2, '9459305999636c179c28adb52458f23fd2cf9e6c985c0a910f6a33957a584c7f', 'fa5fddf1b2ae15270c112134cc6d19693c48a252186e999c48de49de321c1a7a', 'binlog', 'filling', NULL, 9007207844702451, '{\"order\":\"id integer\",\"key\":[37]}', 37, 100, '', '2026-11-22 05:46:41.663043', NULL);
CREATE TABLE `watermark` (
  `id` smallint unsigned NOT NULL AUTO_INCREMENT COMMENT 'compact key',
  `name` varchar(255) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'who writes it: database of the offsets and pipeline',
  `token` char(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'recognised again in the binlog',
  `written_at` timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6) COMMENT 'when it was written',
  PRIMARY KEY (`id`),
  UNIQUE KEY `name_idx` (`name`)
) ENGINE=InnoDB AUTO_INCREMENT=4 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail: rows that mark now in the stream of changes';
INSERT INTO `watermark` (`id`, `name`, `token`, `written_at`) VALUES (1, 'viewtail:mysql', 'bf9d534f95e7cdc58fd28d5dfa95bff9', '2026-11-22 05:46:33.998017');
INSERT INTO `watermark` (`id`, `name`, `token`, `written_at`) VALUES (2, 'viewtail:redis', 'a5f677ce33beb47c5dcb9c3d213b02cb', '2026-11-22 05:46:37.145735');
INSERT INTO `watermark` (`id`, `name`, `token`, `written_at`) VALUES (3, 'viewtail:elasticsearch', '478db83c4b84d5cf95b3ccfb9e752bd0', '2026-11-22 05:46:41.528428');
