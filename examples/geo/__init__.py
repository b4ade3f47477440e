"""The world's cities and countries, with Kafka between: `python -m examples.geo`, or `make demo-kafka`."""
