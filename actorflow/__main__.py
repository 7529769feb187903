"""``python -m actorflow``: the command line."""

from actorflow.cli import script

if __name__ == "__main__":
    script()
