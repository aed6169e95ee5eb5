"""What is declared: queues, exchanges, bindings, policies, users and permissions; and routing by it."""
