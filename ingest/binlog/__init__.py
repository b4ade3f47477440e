"""The tailer: a MySQL binlog read as a replica reads it.

connection.py logs in and asks for the dump (the only file that imports python-mysql-replication); dispatcher.py walks
the events; table_map.py and row_decoder.py turn rows into tuples; source.py joins them and reconnects.
"""
