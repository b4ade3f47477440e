"""The views of `views.py` that need no search, fed through Kafka, and the topics that feed them.

The tailer (`viewtail run --role tail`) publishes the topics; projectors (`--role project`) keep the other views.
"""

from examples.geo.views import city, country, tables_and_keys
from viewtail import Topic

PARTITIONS = 4

topics = [
    Topic("geo.city", city, partitions=PARTITIONS),
    Topic("geo.country", country, partitions=PARTITIONS),
]

views = [*tables_and_keys, *topics]
