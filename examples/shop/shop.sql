CREATE DATABASE IF NOT EXISTS shop CHARACTER SET utf8mb4;
CREATE TABLE shop.user (
  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY COMMENT 'Compact key',
  username VARCHAR(64) NOT NULL COMMENT 'Name that the user chose',
  email VARCHAR(255) NULL COMMENT 'Address for invoices; NULL: none was given',
  is_active BOOL NOT NULL DEFAULT TRUE COMMENT 'Whether the user may log in',
  order_count INT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'Orders so far',
  created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'When the user registered'
) COMMENT 'Who may log in';
INSERT INTO shop.user (username, email) VALUES ('Ada', 'ada@example.org'), ('Grace', 'grace@example.org');
