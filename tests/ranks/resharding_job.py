"""A training that goes on from its last checkpoint: arguments are the scheme, the folder, the last step.

Each rank writes what it has then to ``values-RANK.npz`` in the folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import actorflow as af
from tests.ranks.resharding import Training

scheme, folder, until = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])


async def main() -> None:
    training = Training(af.world(), scheme, folder / "checkpoints")
    losses = await training.run(until)
    np.savez(folder / f"values-{af.world().rank}.npz", losses=losses, **training.values())
    sys.stdout.write(f"rank {af.world().rank} went on behind step {training.begun}\n")
    sys.stdout.flush()


af.run(main())
