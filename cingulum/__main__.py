"""The entry of `cingulum`, and of `python -m cingulum` for processes that we start with our own Python.

It imports nothing by itself, so that Ctrl-C is answered in words also while the command is being imported.
"""

import signal
import sys


def main() -> None:
    """Run the command line."""
    try:
        from cingulum.cli import app
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(128 + signal.SIGINT)
    app.main()


if __name__ == "__main__":
    main()
