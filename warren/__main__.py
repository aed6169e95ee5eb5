"""``python -m warren``: the command ``warren``."""

from warren.cli import main

if __name__ == "__main__":
    main()
