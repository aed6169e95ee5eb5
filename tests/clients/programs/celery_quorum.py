"""A plugin of pytest that makes the queues of Celery's tasks quorum queues, as its setting does."""

from celery.app.defaults import DEFAULTS

DEFAULTS["task_default_queue_type"] = "quorum"
