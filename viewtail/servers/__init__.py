"""MySQL and MariaDB: facts of each kind of server, sessions, privileges, pipelined statements."""
