CREATE DATABASE IF NOT EXISTS shop CHARACTER SET utf8mb4;
CREATE TABLE shop.user (
  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  username VARCHAR(64) NOT NULL,
  email VARCHAR(255) NULL,
  is_active BOOL NOT NULL DEFAULT TRUE,
  order_count INT UNSIGNED NOT NULL DEFAULT 0,
  created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
);
INSERT INTO shop.user (username, email) VALUES ('Ada', 'ada@example.org'), ('Grace', 'grace@example.org');
