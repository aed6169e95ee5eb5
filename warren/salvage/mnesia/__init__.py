"""Mnesia's files, which hold the definitions of a RabbitMQ up to 3.13."""
