"""A queue as its users see it: deliveries, settlements, limits, expiry, dead letters, retries; and its turn."""
