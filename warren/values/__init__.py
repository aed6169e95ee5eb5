"""What users hand over and get: messages, records, conditions, settings."""
