"""Jogchat: users, companies and schools, with an index table for each column that they are looked up by."""
