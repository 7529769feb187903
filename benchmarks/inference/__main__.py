"""``python -m benchmarks.inference``: ``python -m benchmarks inference``, with its options."""

import sys

from benchmarks.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["inference", *sys.argv[1:]]))
