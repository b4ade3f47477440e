"""viewtail's tailer beside Debezium and Maxwell: the same rows of the same server, by turns, in one run."""
