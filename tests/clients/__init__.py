"""Other people's clients and their test suites, run against a real RabbitMQ and against ``warren serve``.

``make test-clients``, or ``python -m tests.clients [suite …]``. What the real server passes, warren has to pass.

Terms. A *suite* is the tests of one client library, or a program of ours that uses one; its tests are left as they
came, only addresses, credentials and certificates are set, by the suite's own settings. A *side* is one of the two
servers. Some suites have the address ``localhost:5672`` written into them: each suite runs in a network namespace of
its own, together with its server, so that both servers have the standard ports there, whatever else the machine runs.
"""
