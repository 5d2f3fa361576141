"""The command ``levelfield``, also as ``python -m levelfield``."""

import sys

from levelfield import interruption


def main() -> None:
    """Run a command. Ctrl-C and SIGTERM give a message at any time, even while it imports what it needs."""
    interruption.raise_at_once()
    try:
        from levelfield.cli import main as run

        run()
    except KeyboardInterrupt:
        print("levelfield: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
