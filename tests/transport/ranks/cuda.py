"""Test whether this MPI reads the memory of CUDA devices, and an array that says where its memory is."""

import sys

import numpy as np

import actorflow as af
from actorflow.transport.mpi.library import bytes_on_device, library


class OnDevice:
    """Stand-in for an array of a CUDA device; the address is one of the host, so that it can be read here."""

    def __init__(self, array: np.ndarray) -> None:
        self.nbytes = array.nbytes
        self.__cuda_array_interface__ = {"data": (array.ctypes.data, False)}


world = af.world()
array = np.arange(6, dtype=np.float32)
same = bytes_on_device(OnDevice(array)) == memoryview(array).cast("B")
asked = any(hasattr(library(), name) for name in ("MPIX_Query_cuda_support", "MPIX_GPU_query_support"))
sys.stdout.write(
    f"rank {world.rank}: asked {asked}, cpu {world.takes('cpu')}, cuda {world.takes('cuda')}, same {same}\n"
)
