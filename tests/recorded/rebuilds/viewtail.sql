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
INSERT INTO `dead_letter` (`view_id`, `key_hash`, `rendered_key`, `version`, `reason`, `attempt_count`, `first_at`, `last_at`) VALUES (4, 0x7902699be42c8a8e46fbbb4501726517, '7', 9007207844700336, 'the Redis key \'user:7\' holds something that viewtail did not write; it is left alone. Delete or rename it, then run: viewtail replay redis:user', 3, '2026-11-23 06:15:13.891601', '2026-11-23 06:15:19.704175');
CREATE TABLE `ix_email` (
  `id` int NOT NULL COMMENT 'entity key, shop.user.id',
  `email` varchar(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin DEFAULT NULL COMMENT 'indexed value, shop.user.email; NULL where there is none or the entity is gone',
  `version` bigint unsigned NOT NULL COMMENT 'version of the change that this row is from; only newer ones apply',
  PRIMARY KEY (`id`),
  KEY `value_idx` (`email`,`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail index table of shop.user; written by viewtail alone and made from the entity again at any time';
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (1, 'e1@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (2, 'e2@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (3, 'e3@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (4, 'e4@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (5, NULL, 9007207844700711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (6, 'e6@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (7, 'parked', 9007207844700336);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (8, 'e8@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (9, 'e9@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (10, 'changed', 9007207844700216);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (11, 'changed', 9007207844700216);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (12, NULL, 9007207844700490);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (13, 'e13@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (14, 'e14@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (15, 'e15@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (16, 'e16@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (17, 'e17@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (18, 'e18@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (19, 'e19@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (20, NULL, 9007207844700711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (21, 'e21@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (22, 'e22@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (23, 'e23@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (24, 'e24@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (25, 'e25@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (26, 'e26@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (27, 'e27@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (28, 'e28@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (29, 'e29@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (30, 'e30@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (31, 'e31@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (32, 'e32@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (33, 'e33@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (34, 'e34@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (35, 'e35@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (36, 'e36@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (37, 'e37@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (38, 'e38@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (39, 'e39@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (40, 'e40@x', 9007207844677711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (50, 'é:{}%', 9007207844700103);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (51, NULL, 9007207844700711);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (60, 'e12@x', 9007207844700490);
INSERT INTO `ix_email` (`id`, `email`, `version`) VALUES (70, 'last', 9007207844701160);
CREATE TABLE `ix_email__viewtail_2` (
  `id` int NOT NULL COMMENT 'entity key, shop.user.id',
  `email` varchar(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin DEFAULT NULL COMMENT 'indexed value, shop.user.email; NULL where there is none or the entity is gone',
  `version` bigint unsigned NOT NULL COMMENT 'version of the change that this row is from; only newer ones apply',
  PRIMARY KEY (`id`),
  KEY `value_idx` (`email`,`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail index table of shop.user; written by viewtail alone and made from the entity again at any time';
INSERT INTO `ix_email__viewtail_2` (`id`, `email`, `version`) VALUES (1, 'e1@x', 9007207844711367);
INSERT INTO `ix_email__viewtail_2` (`id`, `email`, `version`) VALUES (2, 'e2@x', 9007207844711367);
INSERT INTO `ix_email__viewtail_2` (`id`, `email`, `version`) VALUES (3, 'e3@x', 9007207844711367);
INSERT INTO `ix_email__viewtail_2` (`id`, `email`, `version`) VALUES (4, 'e4@x', 9007207844711367);
INSERT INTO `ix_email__viewtail_2` (`id`, `email`, `version`) VALUES (6, 'e6@x', 9007207844711367);
INSERT INTO `ix_email__viewtail_2` (`id`, `email`, `version`) VALUES (7, 'parked', 9007207844711367);
INSERT INTO `ix_email__viewtail_2` (`id`, `email`, `version`) VALUES (8, 'e8@x', 9007207844711367);
INSERT INTO `ix_email__viewtail_2` (`id`, `email`, `version`) VALUES (9, 'e9@x', 9007207844711367);
INSERT INTO `ix_email__viewtail_2` (`id`, `email`, `version`) VALUES (10, 'changed', 9007207844711367);
INSERT INTO `ix_email__viewtail_2` (`id`, `email`, `version`) VALUES (11, 'changed', 9007207844711367);
INSERT INTO `ix_email__viewtail_2` (`id`, `email`, `version`) VALUES (13, 'e13@x', 9007207844711367);
INSERT INTO `ix_email__viewtail_2` (`id`, `email`, `version`) VALUES (14, 'e14@x', 9007207844711367);
INSERT INTO `ix_email__viewtail_2` (`id`, `email`, `version`) VALUES (15, 'e15@x', 9007207844711367);
INSERT INTO `ix_email__viewtail_2` (`id`, `email`, `version`) VALUES (16, 'e16@x', 9007207844711367);
INSERT INTO `ix_email__viewtail_2` (`id`, `email`, `version`) VALUES (17, 'e17@x', 9007207844711367);
CREATE TABLE `ix_even` (
  `id` int NOT NULL COMMENT 'entity key, shop.user.id',
  `n` int DEFAULT NULL COMMENT 'indexed value, shop.user.n; NULL where there is none or the entity is gone',
  `version` bigint unsigned NOT NULL COMMENT 'version of the change that this row is from; only newer ones apply',
  PRIMARY KEY (`id`),
  KEY `value_idx` (`n`,`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail index table of shop.user; written by viewtail alone and made from the entity again at any time';
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (2, 2, 9007207844681367);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (4, 4, 9007207844681367);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (5, NULL, 9007207844700711);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (6, 6, 9007207844681367);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (8, 8, 9007207844681367);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (10, NULL, 9007207844700216);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (11, 12, 9007207844700216);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (12, NULL, 9007207844700490);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (14, 14, 9007207844681367);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (16, 16, 9007207844681367);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (18, 18, 9007207844681367);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (20, NULL, 9007207844700711);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (22, 22, 9007207844681367);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (24, 24, 9007207844681367);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (26, 26, 9007207844681367);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (28, 28, 9007207844681367);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (30, 30, 9007207844681367);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (32, 32, 9007207844681367);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (34, 34, 9007207844681367);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (36, 36, 9007207844681367);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (38, 38, 9007207844681367);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (40, 40, 9007207844681367);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (50, 50, 9007207844700103);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (51, NULL, 9007207844700711);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (60, 12, 9007207844700490);
INSERT INTO `ix_even` (`id`, `n`, `version`) VALUES (70, 70, 9007207844701160);
CREATE TABLE `ix_gone` (
  `id` int NOT NULL COMMENT 'entity key, shop.gone.id',
  `v` varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin DEFAULT NULL COMMENT 'indexed value, shop.gone.v; NULL where there is none or the entity is gone',
  `version` bigint unsigned NOT NULL COMMENT 'version of the change that this row is from; only newer ones apply',
  PRIMARY KEY (`id`),
  KEY `value_idx` (`v`,`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail index table of shop.gone; written by viewtail alone and made from the entity again at any time';
INSERT INTO `ix_gone` (`id`, `v`, `version`) VALUES (1, 'a', 9007207844681367);
INSERT INTO `ix_gone` (`id`, `v`, `version`) VALUES (2, 'b', 9007207844681367);
CREATE TABLE `operator_run` (
  `id` int unsigned NOT NULL AUTO_INCREMENT COMMENT 'compact key',
  `kind` varchar(16) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'replay, verify or repair',
  `view` varchar(255) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'store:name of the view',
  `what` varchar(2000) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'which entities, as the operator asked for them',
  `fingerprint` char(64) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'hash of that and of the declaration: equal ones go on with each other',
  `operator` varchar(255) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'user and host that asked for it',
  `state` varchar(16) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'running, stopped, done or failed',
  `progress` mediumtext COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'how far it is, and what it has counted, as JSON',
  `result` varchar(2000) COLLATE utf8mb4_0900_bin NOT NULL DEFAULT '' COMMENT 'what came of it, in words',
  `started_at` timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'when it was first asked for',
  `updated_at` timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6) COMMENT 'last change of this row',
  `ended_at` timestamp(6) NULL DEFAULT NULL COMMENT 'when it was over',
  PRIMARY KEY (`id`),
  KEY `view_idx` (`view`,`kind`)
) ENGINE=InnoDB AUTO_INCREMENT=3 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail: what operators had done to views';
INSERT INTO `operator_run` (`id`, `kind`, `view`, `what`, `fingerprint`, `operator`, `state`, `progress`, `result`, `started_at`, `updated_at`, `ended_at`) VALUES (1, 'rebuild', 'elasticsearch:user~2', 'compare before the swap', 'b908b0a75ac34898d04e7c0492474d9cae123391da1a4ed749eb8d65705f4b1d', 'root@recorder', 'done', '{\"order\":\"id integer\",\"began_at\":\"2026-11-23 06:15:20.921120\",\"watermark\":9007207844705564,\"is_through\":true,\"losses\":1,\"after\":\"{\\\"order\\\":\\\"id integer\\\",\\\"key\\\":[70],\\\"kept\\\":0}\",\"counts\":{\"rows\":40,\"shown\":40,\"passed_over\":0,\"repaired\":0,\"parked\":0,\"changing\":0,\"foreign\":0,\"behind\":0,\"differing\":{}},\"parked\":[]}', '40 rows compared: none differs', '2026-11-23 06:15:20.916162', '2026-11-23 06:15:21.256544', '2026-11-23 06:15:21.256544');
INSERT INTO `operator_run` (`id`, `kind`, `view`, `what`, `fingerprint`, `operator`, `state`, `progress`, `result`, `started_at`, `updated_at`, `ended_at`) VALUES (2, 'rebuild', 'redis:document~2', 'compare before the swap', 'f8d5769b02ddf96583ff5705014c10de8b4e63f48974caecaf0dc945f4e5f46b', 'root@recorder', 'done', '{\"order\":\"id integer\",\"began_at\":\"2026-11-23 06:15:25.361742\",\"watermark\":9007207844710543,\"is_through\":true,\"losses\":0,\"after\":\"{\\\"order\\\":\\\"id integer\\\",\\\"key\\\":[70],\\\"kept\\\":0}\",\"counts\":{\"rows\":40,\"shown\":40,\"passed_over\":0,\"repaired\":0,\"parked\":0,\"changing\":0,\"foreign\":0,\"behind\":0,\"differing\":{}},\"parked\":[]}', '40 rows compared: none differs', '2026-11-23 06:15:25.356868', '2026-11-23 06:15:25.401596', '2026-11-23 06:15:25.401596');
CREATE TABLE `pipeline` (
  `id` smallint unsigned NOT NULL AUTO_INCREMENT COMMENT 'compact key',
  `name` varchar(320) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'name of the pipeline; one a store by default',
  `source` varchar(255) COLLATE utf8mb4_0900_bin NOT NULL DEFAULT 'default' COMMENT 'source.name of the source that it reads',
  `partition_number` smallint unsigned NOT NULL DEFAULT '0' COMMENT 'which part of the source, from 0',
  `store` varchar(64) COLLATE utf8mb4_0900_bin NOT NULL DEFAULT '' COMMENT 'the store that it writes',
  `fence` int unsigned NOT NULL DEFAULT '0' COMMENT 'number of the owner; rises when somebody takes over',
  `position` mediumtext COLLATE utf8mb4_0900_bin COMMENT 'the offset: all up to here is durable; as the source writes it',
  `saved_at` timestamp(6) NULL DEFAULT NULL COMMENT 'when the offset last moved',
  `paused_at` timestamp(6) NULL DEFAULT NULL COMMENT 'when an operator paused it; NULL: it is not paused',
  `paused_by` varchar(255) COLLATE utf8mb4_0900_bin DEFAULT NULL COMMENT 'user and host of who paused it',
  `pause_reason` varchar(1000) COLLATE utf8mb4_0900_bin DEFAULT NULL COMMENT 'why, if that was said',
  `paused_lag_ms` bigint unsigned DEFAULT NULL COMMENT 'its lag when it was paused, as it last reported it, milliseconds',
  PRIMARY KEY (`id`),
  UNIQUE KEY `name_idx` (`name`)
) ENGINE=InnoDB AUTO_INCREMENT=4 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail: offset and fence of each pipeline';
INSERT INTO `pipeline` (`id`, `name`, `source`, `partition_number`, `store`, `fence`, `position`, `saved_at`, `paused_at`, `paused_by`, `pause_reason`, `paused_lag_ms`) VALUES (1, 'mysql', 'default', 0, 'mysql', 3, '{\"epoch\":1,\"file\":\"<file 3>\",\"end\":<end 3>,\"start\":<start 3>,\"gtid\":\"<gtid 3>\",\"gtid_base\":\"<base 3>\",\"server\":\"<server>\"}', '2026-11-23 06:15:28.965464', NULL, NULL, NULL, NULL);
INSERT INTO `pipeline` (`id`, `name`, `source`, `partition_number`, `store`, `fence`, `position`, `saved_at`, `paused_at`, `paused_by`, `pause_reason`, `paused_lag_ms`) VALUES (2, 'redis', 'default', 0, 'redis', 4, '{\"epoch\":1,\"file\":\"<file 2>\",\"end\":<end 2>,\"start\":<start 2>,\"gtid\":\"<gtid 2>\",\"gtid_base\":\"<base 2>\",\"server\":\"<server>\"}', '2026-11-23 06:15:25.871276', NULL, NULL, NULL, NULL);
INSERT INTO `pipeline` (`id`, `name`, `source`, `partition_number`, `store`, `fence`, `position`, `saved_at`, `paused_at`, `paused_by`, `pause_reason`, `paused_lag_ms`) VALUES (3, 'elasticsearch', 'default', 0, 'elasticsearch', 4, '{\"epoch\":1,\"file\":\"<file 1>\",\"end\":<end 1>,\"start\":<start 1>,\"gtid\":\"<gtid 1>\",\"gtid_base\":\"<base 1>\",\"server\":\"<server>\"}', '2026-11-23 06:15:21.186148', NULL, NULL, NULL, NULL);
CREATE TABLE `pipeline_member` (
  `name` varchar(255) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'host and process id',
  `store` varchar(64) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'whose pipelines it runs, or stands by for',
  `is_in_group` tinyint(1) NOT NULL COMMENT 'whether it shares out partitions with others, in a consumer group',
  `lock_name` varchar(64) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'lock that a session of the process holds while it lives',
  `started_at` timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'when it came',
  PRIMARY KEY (`name`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail: the processes that run pipelines or stand by';
INSERT INTO `pipeline_member` (`name`, `store`, `is_in_group`, `lock_name`, `started_at`) VALUES ('recorder:1038', 'redis', 0, 'viewtail:viewtail:member:recorder:1038', '2026-11-23 06:15:24.759463');
INSERT INTO `pipeline_member` (`name`, `store`, `is_in_group`, `lock_name`, `started_at`) VALUES ('recorder:1118', 'mysql', 0, 'viewtail:viewtail:member:recorder:1118', '2026-11-23 06:15:28.696148');
INSERT INTO `pipeline_member` (`name`, `store`, `is_in_group`, `lock_name`, `started_at`) VALUES ('recorder:455', 'mysql', 0, 'viewtail:viewtail:member:recorder:455', '2026-11-23 06:15:14.969391');
INSERT INTO `pipeline_member` (`name`, `store`, `is_in_group`, `lock_name`, `started_at`) VALUES ('recorder:457', 'redis', 0, 'viewtail:viewtail:member:recorder:457', '2026-11-23 06:15:13.264853');
INSERT INTO `pipeline_member` (`name`, `store`, `is_in_group`, `lock_name`, `started_at`) VALUES ('recorder:459', 'elasticsearch', 0, 'viewtail:viewtail:member:recorder:459', '2026-11-23 06:15:13.221666');
INSERT INTO `pipeline_member` (`name`, `store`, `is_in_group`, `lock_name`, `started_at`) VALUES ('recorder:906', 'mysql', 0, 'viewtail:viewtail:member:recorder:906', '2026-11-23 06:15:19.718052');
INSERT INTO `pipeline_member` (`name`, `store`, `is_in_group`, `lock_name`, `started_at`) VALUES ('recorder:908', 'redis', 0, 'viewtail:viewtail:member:recorder:908', '2026-11-23 06:15:19.479972');
INSERT INTO `pipeline_member` (`name`, `store`, `is_in_group`, `lock_name`, `started_at`) VALUES ('recorder:910', 'elasticsearch', 0, 'viewtail:viewtail:member:recorder:910', '2026-11-23 06:15:19.784647');
CREATE TABLE `pipeline_owner` (
  `pipeline_id` smallint unsigned NOT NULL COMMENT 'pipeline.id',
  `fence` int unsigned NOT NULL COMMENT 'the number that this owner had',
  `name` varchar(255) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'host and process id of the owner',
  `taken_at` timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'when it took the pipeline',
  `given_up_at` timestamp(6) NULL DEFAULT NULL COMMENT 'when it gave it up, or saw that another has it; NULL: it may not know',
  PRIMARY KEY (`pipeline_id`,`fence`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail: the last owners of each pipeline, for people';
INSERT INTO `pipeline_owner` (`pipeline_id`, `fence`, `name`, `taken_at`, `given_up_at`) VALUES (1, 1, 'recorder:455', '2026-11-23 06:15:13.444762', NULL);
INSERT INTO `pipeline_owner` (`pipeline_id`, `fence`, `name`, `taken_at`, `given_up_at`) VALUES (1, 2, 'recorder:906', '2026-11-23 06:15:19.804389', NULL);
INSERT INTO `pipeline_owner` (`pipeline_id`, `fence`, `name`, `taken_at`, `given_up_at`) VALUES (1, 3, 'recorder:1118', '2026-11-23 06:15:28.802041', NULL);
INSERT INTO `pipeline_owner` (`pipeline_id`, `fence`, `name`, `taken_at`, `given_up_at`) VALUES (2, 1, 'recorder:457', '2026-11-23 06:15:13.667989', NULL);
INSERT INTO `pipeline_owner` (`pipeline_id`, `fence`, `name`, `taken_at`, `given_up_at`) VALUES (2, 2, 'recorder:908', '2026-11-23 06:15:19.649489', NULL);
INSERT INTO `pipeline_owner` (`pipeline_id`, `fence`, `name`, `taken_at`, `given_up_at`) VALUES (2, 3, 'recorder:1038', '2026-11-23 06:15:24.838097', '2026-11-23 06:15:26.955167');
INSERT INTO `pipeline_owner` (`pipeline_id`, `fence`, `name`, `taken_at`, `given_up_at`) VALUES (3, 1, 'recorder:459', '2026-11-23 06:15:13.898524', NULL);
INSERT INTO `pipeline_owner` (`pipeline_id`, `fence`, `name`, `taken_at`, `given_up_at`) VALUES (3, 2, 'recorder:910', '2026-11-23 06:15:19.938811', '2026-11-23 06:15:22.757598');
INSERT INTO `pipeline_owner` (`pipeline_id`, `fence`, `name`, `taken_at`, `given_up_at`) VALUES (3, 4, 'recorder:910', '2026-11-23 06:15:22.965391', NULL);
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
INSERT INTO `pipeline_status` (`pipeline_id`, `state`, `error`, `lag_ms`, `rows_per_second`, `applied_row_count`, `reconnect_count`, `owner`, `updated_at`) VALUES (1, 'starting', NULL, 0, 0, 0, 0, 'recorder:1118', '2026-11-23 06:15:28.810068');
INSERT INTO `pipeline_status` (`pipeline_id`, `state`, `error`, `lag_ms`, `rows_per_second`, `applied_row_count`, `reconnect_count`, `owner`, `updated_at`) VALUES (2, 'running', NULL, 0, 0, 0, 0, 'recorder:1038', '2026-11-23 06:15:25.257396');
INSERT INTO `pipeline_status` (`pipeline_id`, `state`, `error`, `lag_ms`, `rows_per_second`, `applied_row_count`, `reconnect_count`, `owner`, `updated_at`) VALUES (3, 'running', NULL, 0, 0, 0, 0, 'recorder:910', '2026-11-23 06:15:23.295618');
CREATE TABLE `rebuild` (
  `view_name` varchar(255) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'store:name of the view',
  `pipeline_id` smallint unsigned NOT NULL COMMENT 'pipeline.id of the pipeline that keeps it',
  `copy` smallint unsigned NOT NULL COMMENT 'number of the copy beside the live one',
  `stage` varchar(16) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'building, swapping, kept, returning, dropping or ended',
  `is_automatic` tinyint(1) NOT NULL DEFAULT '0' COMMENT 'a changed declaration began it: swapped when filled',
  `note` varchar(2000) COLLATE utf8mb4_0900_bin DEFAULT NULL COMMENT 'why what was asked for last could not be done',
  `started_by` varchar(255) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'user and host of the command',
  `keep_s` int unsigned NOT NULL COMMENT 'how long the other copy is kept after a swap, seconds',
  `started_at` timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'when it was asked for',
  `swapped_at` timestamp(6) NULL DEFAULT NULL COMMENT 'when readers got the other copy last',
  `kept_until` timestamp(6) NULL DEFAULT NULL COMMENT 'when the copy beside is dropped',
  `ended_at` timestamp(6) NULL DEFAULT NULL COMMENT 'when the copy beside was dropped',
  PRIMARY KEY (`view_name`,`pipeline_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail: second copies of views, and what is asked for them';
INSERT INTO `rebuild` (`view_name`, `pipeline_id`, `copy`, `stage`, `is_automatic`, `note`, `started_by`, `keep_s`, `started_at`, `swapped_at`, `kept_until`, `ended_at`) VALUES ('elasticsearch:user', 3, 1, 'kept', 0, NULL, 'root@recorder', 86400, '2026-11-23 06:15:18.733522', '2026-11-23 06:15:22.954546', '2026-11-24 06:15:22.954546', NULL);
INSERT INTO `rebuild` (`view_name`, `pipeline_id`, `copy`, `stage`, `is_automatic`, `note`, `started_by`, `keep_s`, `started_at`, `swapped_at`, `kept_until`, `ended_at`) VALUES ('mysql:ix_email', 1, 2, 'building', 0, NULL, 'root@recorder', 86400, '2026-11-23 06:15:28.237762', NULL, NULL, NULL);
INSERT INTO `rebuild` (`view_name`, `pipeline_id`, `copy`, `stage`, `is_automatic`, `note`, `started_by`, `keep_s`, `started_at`, `swapped_at`, `kept_until`, `ended_at`) VALUES ('redis:document', 2, 2, 'swapping', 0, NULL, 'root@recorder', 86400, '2026-11-23 06:15:24.262625', NULL, NULL, NULL);
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
INSERT INTO `source` (`id`, `name`, `description`, `epoch`, `created_at`, `updated_at`) VALUES (1, 'default', '<server> with binlogs binlog.*', 1, '2026-11-23 06:15:13.401282', '2026-11-23 06:15:13.401282');
CREATE TABLE `view` (
  `id` smallint unsigned NOT NULL AUTO_INCREMENT COMMENT 'compact key',
  `name` varchar(255) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'store:name of the view; ~number behind it: a copy beside the live one',
  `copy` smallint unsigned NOT NULL DEFAULT '1' COMMENT 'number of this copy of the view; it tells its place',
  `pipeline_id` smallint unsigned NOT NULL COMMENT 'pipeline.id of the pipeline that keeps it',
  `fingerprint` char(64) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'hash of the declaration that the content was made with',
  `declaration` char(64) COLLATE utf8mb4_0900_bin NOT NULL DEFAULT '' COMMENT 'hash of the declaration alone, whatever its table is like',
  `version_kind` varchar(255) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'binlog, or the name of the version column',
  `places` text COLLATE utf8mb4_0900_bin COMMENT 'where it is in its store, and was, as JSON; NULL: an earlier viewtail kept it',
  `state` varchar(16) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'new, filling, filled, halted or paused',
  `reason` varchar(2000) COLLATE utf8mb4_0900_bin DEFAULT NULL COMMENT 'why it is halted, and what to do; why it is paused, if that was said',
  `paused_at` timestamp(6) NULL DEFAULT NULL COMMENT 'when an operator paused it; NULL: it is not paused',
  `paused_by` varchar(255) COLLATE utf8mb4_0900_bin DEFAULT NULL COMMENT 'user and host of who paused it',
  `watermark_version` bigint unsigned DEFAULT NULL COMMENT 'of the running backfill; of a finished one, its end',
  `fill_key` text COLLATE utf8mb4_0900_bin COMMENT 'primary key, as JSON, of the last row of the last finished chunk',
  `fill_row_count` bigint unsigned NOT NULL DEFAULT '0' COMMENT 'rows that the backfill read, or the last one kept',
  `fill_row_estimate` bigint unsigned NOT NULL DEFAULT '0' COMMENT 'rows of the table when the backfill began, estimated',
  `fill_incarnation` varchar(64) COLLATE utf8mb4_0900_bin NOT NULL DEFAULT '' COMMENT 'run of the store that the backfill began in',
  `fill_rows_a_second` int unsigned NOT NULL DEFAULT '0' COMMENT 'at most so many rows are read; 0: no limit',
  `fill_started_at` timestamp(6) NULL DEFAULT NULL COMMENT 'when the backfill began',
  `filled_at` timestamp(6) NULL DEFAULT NULL COMMENT 'when the last backfill finished',
  `loss_count` int unsigned NOT NULL DEFAULT '0' COMMENT 'how often it could not be relied on any more',
  `proven_at` timestamp(6) NULL DEFAULT NULL COMMENT 'through this moment the view was compared with its table, and equal',
  PRIMARY KEY (`id`),
  UNIQUE KEY `name_idx` (`name`,`pipeline_id`)
) ENGINE=InnoDB AUTO_INCREMENT=12 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail: the views and how far they are backfilled';
INSERT INTO `view` (`id`, `name`, `copy`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `places`, `state`, `reason`, `paused_at`, `paused_by`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_rows_a_second`, `fill_started_at`, `filled_at`, `loss_count`, `proven_at`) VALUES (1, 'mysql:ix_email', 1, 1, '5cd75b98182ca1b819951a43860d7570df9554eac4456186e3b5002623bd97e6', '7748d34fc8518e91a698ea131324938886325b7f85b502a955443a4ce646f848', 'binlog', '[{\"entity\":\"shop.user\"}]', 'filled', NULL, NULL, NULL, 9007207844692611, '{\"order\":\"id integer\",\"key\":[40],\"kept\":40}', 40, 40, '', 0, '2026-11-23 06:15:13.954568', '2026-11-23 06:15:14.417381', 0, NULL);
INSERT INTO `view` (`id`, `name`, `copy`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `places`, `state`, `reason`, `paused_at`, `paused_by`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_rows_a_second`, `fill_started_at`, `filled_at`, `loss_count`, `proven_at`) VALUES (2, 'mysql:ix_even', 1, 1, 'd5e2772f6504fd131e49db6b027e1a6e2af10dcde60c3a4469f11e8c1fc374fc', '012cfe1a70ae1a089a0564049bf768cee0e170ed6bcdb4944c5d652b5096574e', 'binlog', '[{\"entity\":\"shop.user\"}]', 'filled', NULL, NULL, NULL, 9007207844693077, '{\"order\":\"id integer\",\"key\":[40],\"kept\":20}', 20, 40, '', 0, '2026-11-23 06:15:13.957603', '2026-11-23 06:15:14.487392', 0, NULL);
INSERT INTO `view` (`id`, `name`, `copy`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `places`, `state`, `reason`, `paused_at`, `paused_by`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_rows_a_second`, `fill_started_at`, `filled_at`, `loss_count`, `proven_at`) VALUES (3, 'mysql:ix_gone', 1, 1, '452eb1d1ddb69bd6be2882c4bd886f2738137a9675ff26f1911ce7785c071e68', '9388139157f0bf090919534ba5672a373aef81a8df03bfa672aca9daea691509', 'binlog', '[{\"entity\":\"shop.gone\"}]', 'halted', 'shop.gone at binlog.000002:404091: column v was dropped: ALTER TABLE shop.gone DROP COLUMN v. When the table is as it should be, backfill the views of this table again: viewtail replay mysql:ix_gone', NULL, NULL, 9007207844683829, '{\"order\":\"id integer\",\"key\":[2],\"kept\":2}', 2, 2, '', 0, '2026-11-23 06:15:13.957509', '2026-11-23 06:15:14.094627', 1, NULL);
INSERT INTO `view` (`id`, `name`, `copy`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `places`, `state`, `reason`, `paused_at`, `paused_by`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_rows_a_second`, `fill_started_at`, `filled_at`, `loss_count`, `proven_at`) VALUES (4, 'redis:user', 1, 2, 'e476d3e83975eca9e236ad3332a01dd5c8be35339770e11912cbffa15a3d3c0e', '832c1be705e742cadf5ff057a0daa01e06fc7c06f27bdafe02ce49c07a0951bf', 'binlog', '[{\"entity\":\"shop.user\",\"shape\":\"user:{INTEGER}\",\"kind\":\"hash\"}]', 'filled', NULL, NULL, NULL, 9007207844690052, '{\"order\":\"id integer\",\"key\":[40],\"kept\":39}', 39, 40, '<run>', 0, '2026-11-23 06:15:13.794413', '2026-11-23 06:15:14.265919', 0, NULL);
INSERT INTO `view` (`id`, `name`, `copy`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `places`, `state`, `reason`, `paused_at`, `paused_by`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_rows_a_second`, `fill_started_at`, `filled_at`, `loss_count`, `proven_at`) VALUES (5, 'redis:document', 1, 2, 'de832e6469bf52272c083b6054e61b02cc99f0e1f62dd8dace482231c068cf42', 'f80764be03f99c98ab6f7117b6b3d4444a38dd788d3d99f6e2feef0151b08e26', 'binlog', '[{\"entity\":\"shop.user\",\"shape\":\"document:{INTEGER}\",\"kind\":\"json\"}]', 'filled', NULL, NULL, NULL, 9007207844689862, '{\"order\":\"id integer\",\"key\":[40],\"kept\":40}', 40, 40, '<run>', 0, '2026-11-23 06:15:13.797963', '2026-11-23 06:15:14.261332', 0, NULL);
INSERT INTO `view` (`id`, `name`, `copy`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `places`, `state`, `reason`, `paused_at`, `paused_by`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_rows_a_second`, `fill_started_at`, `filled_at`, `loss_count`, `proven_at`) VALUES (6, 'redis:moved', 1, 2, '0e3db5cc7b338c4fe936e0dcaeaa0c1af2f16b7b3efa04dd1762c5c5e9f4800b', 'ca82dd1e0ebbc3485555e0d3617ead579fedd7bac836c181a79113c87530363b', 'binlog', '[{\"entity\":\"shop.moved\",\"shape\":\"moved:{INTEGER}\",\"kind\":\"hash\"}]', 'halted', 'shop.moved at binlog.000002:406624: column v was renamed to w: ALTER TABLE shop.moved RENAME COLUMN v TO w. When the table is as it should be, backfill the views of this table again: viewtail replay redis:moved', NULL, NULL, 9007207844678871, '{\"order\":\"id integer\",\"key\":[2],\"kept\":2}', 2, 2, '<run>', 0, '2026-11-23 06:15:13.792392', '2026-11-23 06:15:13.871041', 1, NULL);
INSERT INTO `view` (`id`, `name`, `copy`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `places`, `state`, `reason`, `paused_at`, `paused_by`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_rows_a_second`, `fill_started_at`, `filled_at`, `loss_count`, `proven_at`) VALUES (7, 'elasticsearch:user~1', 1, 3, '9c2b39993cc669d8f1f6b7df2d85b2f1ce7d4b18a69fce861621e1771f151c49', '94d364017f36606c870b800d8893ace48021a00a90072842cda6d72d3bd99040', 'binlog', '[{\"entity\":\"shop.user\"}]', 'filled', NULL, NULL, NULL, 9007207844699948, '{\"order\":\"id integer\",\"key\":[40],\"kept\":40}', 40, 40, '', 0, '2026-11-23 06:15:16.677817', '2026-11-23 06:15:17.540860', 1, NULL);
INSERT INTO `view` (`id`, `name`, `copy`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `places`, `state`, `reason`, `paused_at`, `paused_by`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_rows_a_second`, `fill_started_at`, `filled_at`, `loss_count`, `proven_at`) VALUES (8, 'elasticsearch:even', 1, 3, 'e27cf799a857137ea3d6d90a5e0b3dffc69bd43342b9f32ce7c81a1627a38006', '56326be599eac1930840a95d17be3073d47c0282604ad549943e68705f9b0dfa', 'binlog', '[{\"entity\":\"shop.user\"}]', 'filled', NULL, NULL, NULL, 9007207844696593, '{\"order\":\"id integer\",\"key\":[40],\"kept\":20}', 20, 40, '', 0, '2026-11-23 06:15:15.740912', '2026-11-23 06:15:16.516535', 1, NULL);
INSERT INTO `view` (`id`, `name`, `copy`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `places`, `state`, `reason`, `paused_at`, `paused_by`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_rows_a_second`, `fill_started_at`, `filled_at`, `loss_count`, `proven_at`) VALUES (9, 'elasticsearch:user', 2, 3, '9c2b39993cc669d8f1f6b7df2d85b2f1ce7d4b18a69fce861621e1771f151c49', '94d364017f36606c870b800d8893ace48021a00a90072842cda6d72d3bd99040', 'binlog', '[{\"entity\":\"shop.user\"}]', 'filled', NULL, NULL, NULL, 9007207844705268, '{\"order\":\"id integer\",\"key\":[70],\"kept\":40}', 40, 40, '', 0, '2026-11-23 06:15:20.183538', '2026-11-23 06:15:20.709734', 1, '2026-11-23 06:15:20.921120');
INSERT INTO `view` (`id`, `name`, `copy`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `places`, `state`, `reason`, `paused_at`, `paused_by`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_rows_a_second`, `fill_started_at`, `filled_at`, `loss_count`, `proven_at`) VALUES (10, 'redis:document~2', 2, 2, 'de832e6469bf52272c083b6054e61b02cc99f0e1f62dd8dace482231c068cf42', 'f80764be03f99c98ab6f7117b6b3d4444a38dd788d3d99f6e2feef0151b08e26', 'binlog', '[{\"entity\":\"shop.user\",\"shape\":\"document:{INTEGER}\",\"kind\":\"json\"}]', 'filled', NULL, NULL, NULL, 9007207844710361, '{\"order\":\"id integer\",\"key\":[70],\"kept\":40}', 40, 40, '<run>', 0, '2026-11-23 06:15:24.871966', '2026-11-23 06:15:24.946704', 0, '2026-11-23 06:15:25.361742');
INSERT INTO `view` (`id`, `name`, `copy`, `pipeline_id`, `fingerprint`, `declaration`, `version_kind`, `places`, `state`, `reason`, `paused_at`, `paused_by`, `watermark_version`, `fill_key`, `fill_row_count`, `fill_row_estimate`, `fill_incarnation`, `fill_rows_a_second`, `fill_started_at`, `filled_at`, `loss_count`, `proven_at`) VALUES (11, 'mysql:ix_email~2', 2, 1, '5cd75b98182ca1b819951a43860d7570df9554eac4456186e3b5002623bd97e6', '7748d34fc8518e91a698ea131324938886325b7f85b502a955443a4ce646f848', 'binlog', '[{\"entity\":\"shop.user\"}]', 'filling', NULL, NULL, NULL, 9007207844711367, '{\"order\":\"id integer\",\"key\":[17],\"kept\":15}', 15, 40, '', 0, '2026-11-23 06:15:28.969000', NULL, 0, NULL);
CREATE TABLE `watermark` (
  `id` smallint unsigned NOT NULL AUTO_INCREMENT COMMENT 'compact key',
  `name` varchar(400) COLLATE utf8mb4_0900_bin NOT NULL COMMENT 'who writes it: database of the offsets and pipeline',
  `token` char(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'recognised again in the stream',
  `written_at` timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6) COMMENT 'when it was written',
  PRIMARY KEY (`id`),
  UNIQUE KEY `name_idx` (`name`)
) ENGINE=InnoDB AUTO_INCREMENT=5 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail: rows that mark now in the stream of changes';
INSERT INTO `watermark` (`id`, `name`, `token`, `written_at`) VALUES (1, 'viewtail:mysql', 'c1d7c3d8d9d58dd7afefef686a99090f', '2026-11-23 06:15:28.865633');
INSERT INTO `watermark` (`id`, `name`, `token`, `written_at`) VALUES (2, 'viewtail:redis', '35982fc6c547b2e6d6dd4619774cfd21', '2026-11-23 06:15:24.944757');
INSERT INTO `watermark` (`id`, `name`, `token`, `written_at`) VALUES (3, 'viewtail:elasticsearch', 'fe784707b702798b0f4b591b7d705a40', '2026-11-23 06:15:20.706275');
INSERT INTO `watermark` (`id`, `name`, `token`, `written_at`) VALUES (4, 'viewtail:asker:0', 'ask2ce8a1b729cd9219784aa153e911c', '2026-11-23 06:15:25.363231');
CREATE TABLE `watermark_passed` (
  `token` char(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'that a process waits for',
  `pipeline_id` smallint unsigned NOT NULL COMMENT 'pipeline.id of the pipeline that passed it',
  `version` bigint unsigned NOT NULL COMMENT 'its place in the stream',
  `passed_at` timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'when all before it was durable',
  PRIMARY KEY (`token`,`pipeline_id`),
  KEY `passed_at_idx` (`passed_at`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_bin COMMENT='viewtail: watermarks that another process than the pipeline waits for; kept for minutes';
INSERT INTO `watermark_passed` (`token`, `pipeline_id`, `version`, `passed_at`) VALUES ('ask017064d6c9e56b5f8060c7648fb0e', 1, 9007207844705564, '2026-11-23 06:15:20.930918');
INSERT INTO `watermark_passed` (`token`, `pipeline_id`, `version`, `passed_at`) VALUES ('ask017064d6c9e56b5f8060c7648fb0e', 2, 9007207844705564, '2026-11-23 06:15:20.931164');
INSERT INTO `watermark_passed` (`token`, `pipeline_id`, `version`, `passed_at`) VALUES ('ask017064d6c9e56b5f8060c7648fb0e', 3, 9007207844705564, '2026-11-23 06:15:20.927817');
INSERT INTO `watermark_passed` (`token`, `pipeline_id`, `version`, `passed_at`) VALUES ('ask2ce8a1b729cd9219784aa153e911c', 1, 9007207844710543, '2026-11-23 06:15:28.969710');
INSERT INTO `watermark_passed` (`token`, `pipeline_id`, `version`, `passed_at`) VALUES ('ask2ce8a1b729cd9219784aa153e911c', 2, 9007207844710543, '2026-11-23 06:15:25.366454');
