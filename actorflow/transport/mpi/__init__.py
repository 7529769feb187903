"""Ranks as the processes of an MPI job.

Importing this package initializes MPI: `actorflow.world` does it when a program asks for its ranks. All calls of MPI
are made on the event loop's thread.
"""

from actorflow.transport.mpi.library import end_job_on_exceptions
from actorflow.transport.mpi.transport import CHUNK_BYTES, MPITransport

__all__ = ["CHUNK_BYTES", "MPITransport", "end_job_on_exceptions"]
