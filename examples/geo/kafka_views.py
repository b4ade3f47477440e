"""The views of `views.py`, fed through Kafka, and the topics that feed them.

The tailer (`viewtail run --role tail`) publishes the topics; projectors (`--role project`) keep the other views.
"""

from examples.geo import views as keys_and_tables
from examples.geo.views import city, country
from viewtail import Topic

PARTITIONS = 4

topics = [
    Topic("geo.city", city, partitions=PARTITIONS),
    Topic("geo.country", country, partitions=PARTITIONS),
]

views = [*keys_and_tables.views, *topics]
