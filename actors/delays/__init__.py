"""The actor of a vhost's delayed messages."""
