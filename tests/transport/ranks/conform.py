"""check_transport over MPI; arguments: kind of loop, bytes of a chunk, shared or apart, idle or busy."""

import asyncio
import sys

import uvloop

from actorflow.testing import check_transport
from actorflow.transport.mpi import MPITransport

kind, chunk, memory, waiting = sys.argv[1:]
factory = uvloop.new_event_loop if kind == "uvloop" else asyncio.new_event_loop
transport = MPITransport(chunk_bytes=int(chunk), shared=memory == "shared")
with asyncio.Runner(loop_factory=factory) as runner:
    check = check_transport(transport, chunk_bytes=int(chunk), patience_s=40, measure_idle=waiting == "idle")
    report = runner.run(check)
sys.stdout.write(f"rank {transport.rank}: {len(report.passed)} hold, not checked: {sorted(report.skipped)}\n")
