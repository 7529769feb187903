"""``python -m benchmarks.training``: ``python -m benchmarks training``, with its options."""

import sys

from benchmarks.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["training", *sys.argv[1:]]))
