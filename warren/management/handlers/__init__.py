"""The handlers of the management API's requests, by what they are about."""
