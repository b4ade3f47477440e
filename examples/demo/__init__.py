"""`python -m examples.demo`: real servers, real data, the real `viewtail run`, and a check of every row at the end."""
