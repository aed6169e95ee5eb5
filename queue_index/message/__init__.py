"""A message's bytes: properties, headers, containers, and AMQP 1.0."""
