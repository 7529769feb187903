"""``python -m benchmarks.service``: ``python -m benchmarks service``, with its options."""

import sys

from benchmarks.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["service", *sys.argv[1:]]))
