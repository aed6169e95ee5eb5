"""What ships with the project beside its code; :mod:`warren.demo.shipped` says what it is."""
