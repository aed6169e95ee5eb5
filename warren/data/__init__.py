"""What ships with the project beside its code; :mod:`warren.demo.shipped`, :mod:`warren.demo.queue_types` and
:mod:`warren.demo.shipped_store` say what it is."""
