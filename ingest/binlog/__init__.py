"""The binlog source: reads a MySQL or MariaDB binlog as a replica does.

connection.py logs in and asks for the dump (the only file that imports python-mysql-replication); dispatcher.py walks
the events; table_map.py and row_decoder.py turn rows into tuples; source.py joins them and reconnects.
"""
