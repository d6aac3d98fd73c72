"""``python -m pipesim`` is the command line."""

from pipesim.cli import main

if __name__ == "__main__":
    main()
