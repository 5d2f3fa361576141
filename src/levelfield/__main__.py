"""``python -m levelfield`` is the command line."""

from levelfield.cli import main

if __name__ == "__main__":
    main()
