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
INSERT INTO `dead_letter` (`view_id`, `key_hash`, `rendered_key`, `version`, `reason`, `attempt_count`, `first_at`, `last_at`) VALUES (4, 0x7902699be42c8a8e46fbbb4501726517, '7', 9007207844696703, 'the Redis key \'user:7\' holds something that viewtail did not write; it is left alone. Delete or rename it, then run: viewtail replay redis:user', 2, '2026-11-23 05:34:59.232905', '2026-11-23 05:35:05.865113');
CREATE TABLE `ix_email` (
  `id` int NOT NULL COMMENT 'entity key, shop.user.id',
  `email` varchar(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin DEFAULT NULL COMMENT 'indexed value, shop.user.email; NULL where there is none or the entity is gone',
  `version` bigint unsigned NOT NULL COMMENT 'version of the change that this row is from; only newer ones apply',
  PRIMARY KEY (`id`),
  KEY `value_idx` (`email`,`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail index table of shop.user; written by viewtail alone and made from the entity again at any time';
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (1, 'e1@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (2, 'e2@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (3, 'e3@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (4, 'e4@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (5, NULL, 9007207844696912);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (6, 'e6@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (7, 'parked', 9007207844696703);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (8, 'e8@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (9, 'e9@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (10, 'changed', 9007207844696554);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (11, 'changed', 9007207844696554);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (12, NULL, 9007207844696797);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (13, 'e13@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (14, 'e14@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (15, 'e15@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (16, 'e16@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (17, 'e17@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (18, 'e18@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (19, 'e19@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (20, NULL, 9007207844696912);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (21, 'e21@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (22, 'e22@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (23, 'e23@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (24, 'e24@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (25, 'e25@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (26, 'e26@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (27, 'e27@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (28, 'e28@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (29, 'e29@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (30, 'e30@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (31, 'e31@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (32, 'e32@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (33, 'e33@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (34, 'e34@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (35, 'e35@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (36, 'e36@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (37, 'e37@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (38, 'e38@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (39, 'e39@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (40, 'e40@x', 9007207844679858);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (50, 'é:{}%', 9007207844696445);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (51, NULL, 9007207844696912);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (60, 'e12@x', 9007207844696797);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (70, 'last', 9007207844697417);
CREATE TABLE `ix_even` (
  `id` int NOT NULL COMMENT 'entity key, shop.user.id',
  `n` int DEFAULT NULL COMMENT 'indexed value, shop.user.n; NULL where there is none or the entity is gone',
  `version` bigint unsigned NOT NULL COMMENT 'version of the change that this row is from; only newer ones apply',
  PRIMARY KEY (`id`),
  KEY `value_idx` (`n`,`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail index table of shop.user; written by viewtail alone and made from the entity again at any time';
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (2, 2, 9007207844677153);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (4, 4, 9007207844677153);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (5, NULL, 9007207844696912);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (6, 6, 9007207844677153);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (8, 8, 9007207844677153);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (10, NULL, 9007207844696554);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (11, 12, 9007207844696554);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (12, NULL, 9007207844696797);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (14, 14, 9007207844677153);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (16, 16, 9007207844677153);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (18, 18, 9007207844677153);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (20, NULL, 9007207844696912);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (22, 22, 9007207844677153);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (24, 24, 9007207844677153);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (26, 26, 9007207844677153);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (28, 28, 9007207844677153);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (30, 30, 9007207844677153);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (32, 32, 9007207844677153);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (34, 34, 9007207844677153);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (36, 36, 9007207844677153);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (38, 38, 9007207844677153);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (40, 40, 9007207844677153);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (50, 50, 9007207844696445);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (51, NULL, 9007207844696912);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (60, 12, 9007207844696797);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (70, 70, 9007207844697417);
CREATE TABLE `ix_gone` (
  `id` int NOT NULL COMMENT 'entity key, shop.gone.id',
  `v` varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin DEFAULT NULL COMMENT 'indexed value, shop.gone.v; NULL where there is none or the entity is gone',
  `version` bigint unsigned NOT NULL COMMENT 'version of the change that this row is from; only newer ones apply',
  PRIMARY KEY (`id`),
  KEY `value_idx` (`v`,`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail index table of shop.gone; written by viewtail alone and made from the entity again at any time';
INSERT INTO `ix_gone` (`id`, `v`, `version`) VALUES (1, 'a', 9007207844679858);
INSERT INTO `ix_gone` (`id`, `v`, `version`) VALUES (2, 'b', 9007207844679858);
CREATE TABLE `ix_half` (
  `id` int NOT NULL COMMENT 'entity key, shop.half_mysql.id',
  `v` varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin DEFAULT NULL COMMENT 'indexed value, shop.half_mysql.v; NULL where there is none or the entity is gone',
  `version` bigint unsigned NOT NULL COMMENT 'version of the change that this row is from; only newer ones apply',
  PRIMARY KEY (`id`),
  KEY `value_idx` (`v`,`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail index table of shop.half_mysql; written by viewtail alone and made from the entity again at any time';
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (1, 'v1', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (2, 'v2', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (3, 'v3', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (4, 'v4', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (5, 'v5', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (6, 'v6', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (7, 'v7', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (8, 'v8', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (9, 'v9', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (10, 'v10', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (11, 'v11', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (12, 'v12', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (13, 'v13', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (14, 'v14', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (15, 'v15', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (16, 'v16', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (17, 'v17', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (18, 'v18', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (19, 'v19', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (20, 'v20', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (21, 'v21', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (22, 'v22', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (23, 'v23', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (24, 'v24', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (25, 'v25', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (26, 'v26', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (27, 'v27', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (28, 'v28', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (29, 'v29', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (30, 'v30', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (31, 'v31', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (32, 'v32', 9007207844697855);
INSERT INTO `ix_half` (`id`, `v`, `version`) VALUES (33, 'v33', 9007207844697855);
CREATE TABLE `pipeline` (
  `id` smallint unsigned NOT NULL AUTO_INCREMENT COMMENT 'compact key',
  `name` varchar(320) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'name of the pipeline; one a store by default',
  `source` varchar(255) COLLATE utf8mb4_0900_bin NOT NULL DEFAULT 'default' COMMENT 'source.name of the source that it reads',
  `partition_number` smallint unsigned NOT NULL DEFAULT '0' COMMENT 'which part of the source, from 0',
  `store` varchar(64) COLLATE utf8mb4_0900_bin NOT NULL DEFAULT '' COMMENT 'the store that it writes',
  `fence` int unsigned NOT NULL DEFAULT '0' COMMENT 'number of the owner; rises when somebody takes over',
  `position` mediumtext COLLATE utf8mb4_0900_bin COMMENT 'the offset: all up to here is durable; as the source writes it',
  `saved_at` timestamp(6) NULL DEFAULT NULL COMMENT 'when the offset last moved',
  PRIMARY KEY (`id`),
  UNIQUE KEY `name_idx` (`name`)
) ENGINE=InnoDB AUTO_INCREMENT=4 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail: offset and fence of each pipeline';
INSERT INTO `pipeline` (`id`, `name`, `source`, `partition_number`, `store`, `fence`, `position`, `saved_at`) VALUES (1, 'mysql', 'default', 0, 'mysql', 2, '{\"epoch\":1,\"file\":\"<file 2>\",\"end\":<end 2>,\"start\":<start 2>,\"gtid\":\"<gtid 2>\",\"gtid_base\":\"<base 2>\",\"server\":\"<server>\"}', '2026-11-23 05:35:11.916416');
INSERT INTO `pipeline` (`id`, `name`, `source`, `partition_number`, `store`, `fence`, `position`, `saved_at`) VALUES (2, 'redis', 'default', 0, 'redis', 2, '{\"epoch\":1,\"file\":\"<file 3>\",\"end\":<end 3>,\"start\":<start 3>,\"gtid\":\"<gtid 3>\",\"gtid_base\":\"<base 3>\",\"server\":\"<server>\"}', '2026-11-23 05:35:16.997800');
INSERT INTO `pipeline` (`id`, `name`, `source`, `partition_number`, `store`, `fence`, `position`, `saved_at`) VALUES (3, 'elasticsearch', 'default', 0, 'elasticsearch', 2, '{\"epoch\":1,\"file\":\"<file 4>\",\"end\":<end 4>,\"start\":<start 4>,\"gtid\":\"<gtid 4>\",\"gtid_base\":\"<base 4>\",\"server\":\"<server>\"}', '2026-11-23 05:35:22.090056');
CREATE TABLE `pipeline_member` (
  `name` varchar(255) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'host and process id',
  `store` varchar(64) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'whose pipelines it runs, or stands by for',
  `is_in_group` tinyint(1) NOT NULL COMMENT 'whether it shares out partitions with others, in a consumer group',
  `lock_name` varchar(64) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'lock that a session of the process holds while it lives',
  `started_at` timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'when it came',
  PRIMARY KEY (`name`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail: the processes that run pipelines or stand by';
INSERT INTO `pipeline_member` (`name`, `store`, `is_in_group`, `lock_name`, `started_at`) VALUES ('recorder:1347', 'mysql', 0, 'viewtail:viewtail:member:recorder:1347', '2026-11-23 05:34:59.677394');
INSERT INTO `pipeline_member` (`name`, `store`, `is_in_group`, `lock_name`, `started_at`) VALUES ('recorder:1349', 'redis', 0, 'viewtail:viewtail:member:recorder:1349', '2026-11-23 05:35:00.000030');
INSERT INTO `pipeline_member` (`name`, `store`, `is_in_group`, `lock_name`, `started_at`) VALUES ('recorder:1351', 'elasticsearch', 0, 'viewtail:viewtail:member:recorder:1351', '2026-11-23 05:34:59.112157');
INSERT INTO `pipeline_member` (`name`, `store`, `is_in_group`, `lock_name`, `started_at`) VALUES ('recorder:1871', 'mysql', 0, 'viewtail:viewtail:member:recorder:1871', '2026-11-23 05:35:11.449915');
INSERT INTO `pipeline_member` (`name`, `store`, `is_in_group`, `lock_name`, `started_at`) VALUES ('recorder:2010', 'redis', 0, 'viewtail:viewtail:member:recorder:2010', '2026-11-23 05:35:16.603208');
INSERT INTO `pipeline_member` (`name`, `store`, `is_in_group`, `lock_name`, `started_at`) VALUES ('recorder:2134', 'elasticsearch', 0, 'viewtail:viewtail:member:recorder:2134', '2026-11-23 05:35:19.995750');
CREATE TABLE `pipeline_owner` (
  `pipeline_id` smallint unsigned NOT NULL COMMENT 'pipeline.id',
  `fence` int unsigned NOT NULL COMMENT 'the number that this owner had',
  `name` varchar(255) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'host and process id of the owner',
  `taken_at` timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'when it took the pipeline',
  `given_up_at` timestamp(6) NULL DEFAULT NULL COMMENT 'when it gave it up, or saw that another has it; NULL: it may not know',
  PRIMARY KEY (`pipeline_id`,`fence`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail: the last owners of each pipeline, for people';
INSERT INTO `pipeline_owner` (`pipeline_id`, `fence`, `name`, `taken_at`, `given_up_at`) VALUES (1, 1, 'recorder:1347', '2026-11-23 05:34:58.386621', NULL);
INSERT INTO `pipeline_owner` (`pipeline_id`, `fence`, `name`, `taken_at`, `given_up_at`) VALUES (1, 2, 'recorder:1871', '2026-11-23 05:35:11.595579', NULL);
INSERT INTO `pipeline_owner` (`pipeline_id`, `fence`, `name`, `taken_at`, `given_up_at`) VALUES (2, 1, 'recorder:1349', '2026-11-23 05:34:58.605079', NULL);
INSERT INTO `pipeline_owner` (`pipeline_id`, `fence`, `name`, `taken_at`, `given_up_at`) VALUES (2, 2, 'recorder:2010', '2026-11-23 05:35:16.853672', NULL);
INSERT INTO `pipeline_owner` (`pipeline_id`, `fence`, `name`, `taken_at`, `given_up_at`) VALUES (3, 1, 'recorder:1351', '2026-11-23 05:34:59.741306', NULL);
INSERT INTO `pipeline_owner` (`pipeline_id`, `fence`, `name`, `taken_at`, `given_up_at`) VALUES (3, 2, 'recorder:2134', '2026-11-23 05:35:20.406502', NULL);
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
INSERT INTO `pipeline_status` (`pipeline_id`, `state`, `error`, `lag_ms`, `rows_per_second`, `applied_row_count`, `reconnect_count`, `owner`, `updated_at`) VALUES (1, 'running', NULL, 0, 0, 0, 0, 'recorder:1871', '2026-11-23 05:35:11.951631');
INSERT INTO `pipeline_status` (`pipeline_id`, `state`, `error`, `lag_ms`, `rows_per_second`, `applied_row_count`, `reconnect_count`, `owner`, `updated_at`) VALUES (2, 'running', NULL, 0, 3, 2, 0, 'recorder:2010', '2026-11-23 05:35:17.098116');
INSERT INTO `pipeline_status` (`pipeline_id`, `state`, `error`, `lag_ms`, `rows_per_second`, `applied_row_count`, `reconnect_count`, `owner`, `updated_at`) VALUES (3, 'running', NULL, 15332, 0, 0, 0, 'recorder:2134', '2026-11-23 05:35:21.001183');
CREATE TABLE `source` (
  `id` smallint unsigned NOT NULL AUTO_INCREMENT COMMENT 'compact key',
  `name` varchar(255) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'default, or the topic that is read',
  `description` varchar(1024) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'what the server that was read last says of itself',
  `epoch` smallint unsigned NOT NULL COMMENT 'number of the history; rises when coordinates stop being comparable',
  `created_at` timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'first seen',
  `updated_at` timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6) COMMENT 'last change of this row',
  PRIMARY KEY (`id`),
  UNIQUE KEY `name_idx` (`name`)
) ENGINE=InnoDB AUTO_INCREMENT=2 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail: the histories that versions come from';
INSERT INTO `source` (`id`, `name`, `description`, `epoch`, `created_at`, `updated_at`) VALUES (1, 'default', '<server> with binlogs binlog.*', 1, '2026-11-23 05:34:58.305501', '2026-11-23 05:34:58.305501');
CREATE TABLE `view` (
  `id` smallint unsigned NOT NULL AUTO_INCREMENT COMMENT 'compact key',
  `name` varchar(255) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'store:name of the view',
  `pipeline_id` smallint unsigned NOT NULL COMMENT 'pipeline.id of the pipeline that keeps it',
  `fingerprint` char(64) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'hash of the declaration that the content was made with',
  `declaration` char(64) COLLATE utf8mb4_0900_bin NOT NULL DEFAULT '' COMMENT 'hash of the declaration alone, whatever its table is like',
  `version_kind` varchar(255) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'binlog, or the name of the version column',
  `state` varchar(16) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'new, filling, filled or halted',
  `reason` varchar(2000) COLLATE utf8mb4_0900_bin DEFAULT NULL COMMENT 'why it is halted, and what to do',
  `watermark_version` bigint unsigned DEFAULT NULL COMMENT 'of the running backfill; of a finished one, its end',
  `fill_key` text COLLATE utf8mb4_0900_bin COMMENT 'primary key, as JSON, of the last row of the last finished chunk',
  `fill_row_count` bigint unsigned NOT NULL DEFAULT '0' COMMENT 'rows that the backfill read, or the last one kept',
  `fill_row_estimate` bigint unsigned NOT NULL DEFAULT '0' COMMENT 'rows of the table when the backfill began, estimated',
  `fill_incarnation` varchar(64) COLLATE utf8mb4_0900_bin NOT NULL DEFAULT '' COMMENT 'run of the store that the backfill began in',
  `fill_started_at` timestamp(6) NULL DEFAULT NULL COMMENT 'when the backfill began',
  `filled_at` timestamp(6) NULL DEFAULT NULL COMMENT 'when the last backfill finished',
  PRIMARY KEY (`id`),
  UNIQUE KEY `name_idx` (`name`,`pipeline_id`)
) ENGINE=InnoDB AUTO_INCREMENT=12 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail: the views and how far they are backfilled';
INSERT INTO `view` (`id`, `name`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `state`, `reason`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_started_at`, `filled_at`) VALUES (1, 'mysql:ix_email', 1, '5cd75b98182ca1b819951a43860d7570df9554eac4456186e3b5002623bd97e6', '7748d34fc8518e91a698ea131324938886325b7f85b502a955443a4ce646f848', 'binlog', 'filled', NULL, 9007207844690116, '{\"order\":\"id integer\",\"key\":[40],\"kept\":40}', 40, 40, '', '2026-11-23 05:34:59.496183', '2026-11-23 05:35:00.362381');
INSERT INTO `view` (`id`, `name`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `state`, `reason`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_started_at`, `filled_at`) VALUES (2, 'mysql:ix_even', 1, 'd5e2772f6504fd131e49db6b027e1a6e2af10dcde60c3a4469f11e8c1fc374fc', '012cfe1a70ae1a089a0564049bf768cee0e170ed6bcdb4944c5d652b5096574e', 'binlog', 'filled', NULL, 9007207844689684, '{\"order\":\"id integer\",\"key\":[40],\"kept\":20}', 20, 40, '', '2026-11-23 05:34:59.447101', '2026-11-23 05:35:00.349537');
INSERT INTO `view` (`id`, `name`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `state`, `reason`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_started_at`, `filled_at`) VALUES (3, 'mysql:ix_gone', 1, '452eb1d1ddb69bd6be2882c4bd886f2738137a9675ff26f1911ce7785c071e68', '9388139157f0bf090919534ba5672a373aef81a8df03bfa672aca9daea691509', 'binlog', 'halted', 'shop.gone at binlog.000002:343764: column v was dropped: ALTER TABLE shop.gone DROP COLUMN v. When the table is as it should be, backfill the views of this table again: viewtail replay mysql:ix_gone', 9007207844682344, '{\"order\":\"id integer\",\"key\":[2],\"kept\":2}', 2, 2, '', '2026-11-23 05:34:59.571216', '2026-11-23 05:34:59.873486');
INSERT INTO `view` (`id`, `name`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `state`, `reason`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_started_at`, `filled_at`) VALUES (4, 'redis:user', 2, 'e476d3e83975eca9e236ad3332a01dd5c8be35339770e11912cbffa15a3d3c0e', '832c1be705e742cadf5ff057a0daa01e06fc7c06f27bdafe02ce49c07a0951bf', 'binlog', 'filled', NULL, 9007207844686395, '{\"order\":\"id integer\",\"key\":[40],\"kept\":39}', 39, 40, '<run>', '2026-11-23 05:34:59.047913', '2026-11-23 05:35:00.236049');
INSERT INTO `view` (`id`, `name`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `state`, `reason`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_started_at`, `filled_at`) VALUES (5, 'redis:document', 2, 'de832e6469bf52272c083b6054e61b02cc99f0e1f62dd8dace482231c068cf42', 'f80764be03f99c98ab6f7117b6b3d4444a38dd788d3d99f6e2feef0151b08e26', 'binlog', 'filled', NULL, 9007207844686297, '{\"order\":\"id integer\",\"key\":[40],\"kept\":40}', 40, 40, '<run>', '2026-11-23 05:34:59.071074', '2026-11-23 05:35:00.215652');
INSERT INTO `view` (`id`, `name`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `state`, `reason`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_started_at`, `filled_at`) VALUES (6, 'redis:moved', 2, '0e3db5cc7b338c4fe936e0dcaeaa0c1af2f16b7b3efa04dd1762c5c5e9f4800b', 'ca82dd1e0ebbc3485555e0d3617ead579fedd7bac836c181a79113c87530363b', 'binlog', 'halted', 'shop.moved at binlog.000002:346073: column v was renamed to w: ALTER TABLE shop.moved RENAME COLUMN v TO w. When the table is as it should be, backfill the views of this table again: viewtail replay redis:moved', 9007207844677716, '{\"order\":\"id integer\",\"key\":[2],\"kept\":2}', 2, 2, '<run>', '2026-11-23 05:34:59.048230', '2026-11-23 05:34:59.141690');
INSERT INTO `view` (`id`, `name`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `state`, `reason`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_started_at`, `filled_at`) VALUES (7, 'elasticsearch:user', 3, '9c2b39993cc669d8f1f6b7df2d85b2f1ce7d4b18a69fce861621e1771f151c49', '94d364017f36606c870b800d8893ace48021a00a90072842cda6d72d3bd99040', 'binlog', 'filled', NULL, 9007207844696189, '{\"order\":\"id integer\",\"key\":[40],\"kept\":40}', 40, 40, '', '2026-11-23 05:35:02.412793', '2026-11-23 05:35:05.395647');
INSERT INTO `view` (`id`, `name`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `state`, `reason`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_started_at`, `filled_at`) VALUES (8, 'elasticsearch:even', 3, 'e27cf799a857137ea3d6d90a5e0b3dffc69bd43342b9f32ce7c81a1627a38006', '56326be599eac1930840a95d17be3073d47c0282604ad549943e68705f9b0dfa', 'binlog', 'filled', NULL, 9007207844694480, '{\"order\":\"id integer\",\"key\":[40],\"kept\":20}', 20, 40, '', '2026-11-23 05:35:02.415820', '2026-11-23 05:35:04.533694');
INSERT INTO `view` (`id`, `name`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `state`, `reason`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_started_at`, `filled_at`) VALUES (9, 'mysql:ix_half', 1, '7467cb9b6b8800c7855e9a57b9bab703b11ceec5b4fa4715ce025a4bc6defd34', 'd4a3c0a45b2d83249e7b5336a9efa85f46ad9d0063eed96372c25eec25745a1e', 'binlog', 'filling', NULL, 9007207844697855, '{\"order\":\"id integer\",\"key\":[33],\"kept\":33}', 33, 100, '', '2026-11-23 05:35:11.934516', NULL);
INSERT INTO `view` (`id`, `name`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `state`, `reason`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_started_at`, `filled_at`) VALUES (10, 'redis:half', 2, 'ea8e567fbae428509234cd6822bd0c5776b3f679b15eacaf12d2cedbccdfd8b1', '4fcad23a3566ba6f2f7fb2a9538a69e001aba8f3f252215b1513d3eb86392023', 'binlog', 'filling', NULL, 9007207844700523, '{\"order\":\"id integer\",\"key\":[33],\"kept\":33}', 33, 100, '<run>', '2026-11-23 05:35:17.009625', NULL);
INSERT INTO `view` (`id`, `name`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `state`, `reason`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_started_at`, `filled_at`) VALUES (11, 'elasticsearch:half', 3, '9459305999636c179c28adb52458f23fd2cf9e6c985c0a910f6a33957a584c7f', 'fa5fddf1b2ae15270c112134cc6d19693c48a252186e999c48de49de321c1a7a', 'binlog', 'filling', NULL, 9007207844703082, '{\"order\":\"id integer\",\"key\":[31],\"kept\":31}', 31, 100, '', '2026-11-23 05:35:21.093792', NULL);
CREATE TABLE `watermark` (
  `id` smallint unsigned NOT NULL AUTO_INCREMENT COMMENT 'compact key',
  `name` varchar(400) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'who writes it: database of the offsets and pipeline',
  `token` char(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'recognised again in the stream',
  `written_at` timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6) COMMENT 'when it was written',
  PRIMARY KEY (`id`),
  UNIQUE KEY `name_idx` (`name`)
) ENGINE=InnoDB AUTO_INCREMENT=4 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail: rows that mark now in the stream of changes';
INSERT INTO `watermark` (`id`, `name`, `token`, `written_at`) VALUES (1, 'viewtail:mysql', '68d7b7153d0251ca2cda86c37fe993c8', '2026-11-23 05:35:11.730001');
INSERT INTO `watermark` (`id`, `name`, `token`, `written_at`) VALUES (2, 'viewtail:redis', '1a55d1bf55e88ce646a2426858e8b768', '2026-11-23 05:35:16.963661');
INSERT INTO `watermark` (`id`, `name`, `token`, `written_at`) VALUES (3, 'viewtail:elasticsearch', '670d8e742ce87560cd20e456d0967f23', '2026-11-23 05:35:20.956660');
