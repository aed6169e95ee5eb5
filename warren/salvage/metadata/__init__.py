"""A RabbitMQ's metadata, which holds its definitions: in Mnesia's files up to 3.13, in Khepri's from 4.0 on."""
