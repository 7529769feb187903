"""check_transport; arguments: kind of loop, bytes of a chunk, shared or apart, idle or busy, leaves or frozen."""

import asyncio
import os
import signal
import sys
from functools import partial

import uvloop
from mpi4py import MPI

from actorflow.testing import check_transport
from actorflow.transport.mpi import MPITransport

kind, chunk, memory, waiting, end = sys.argv[1:]
factory = uvloop.new_event_loop if kind == "uvloop" else asyncio.new_event_loop
freeze = partial(os.kill, os.getpid(), signal.SIGSTOP) if end == "frozen" else None
# So long that a busy machine is not taken for a frozen rank.
transport = MPITransport(chunk_bytes=int(chunk), shared=memory == "shared", liveness_s=30 if freeze is None else 5)
with asyncio.Runner(loop_factory=factory) as runner:
    measure_idle = waiting == "idle"
    check = check_transport(transport, chunk_bytes=int(chunk), patience_s=40, measure_idle=measure_idle, freeze=freeze)
    report = runner.run(check)
sys.stdout.write(f"rank {transport.rank}: {len(report.passed)} hold, not checked: {sorted(report.skipped)}\n")
sys.stdout.flush()
if freeze is not None:  # MPI would wait for the rank that is frozen
    if transport.rank:
        MPI.COMM_WORLD.send(None, 0)
        MPI.COMM_WORLD.recv(source=0)
    for rank in range(1, transport.size - 1):
        MPI.COMM_WORLD.recv(source=rank)
    MPI.COMM_WORLD.Abort(3)
