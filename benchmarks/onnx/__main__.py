"""``python -m benchmarks.onnx``: ``python -m benchmarks onnx``, with its options."""

import sys

from benchmarks.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["onnx", *sys.argv[1:]]))
