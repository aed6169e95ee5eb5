"""How the tests run Java."""

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For processes that live for seconds: to compile well takes longer than it spares. Spark takes half the time."""
