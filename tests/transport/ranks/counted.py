"""Requests that a rank which has ended has done its part of come through; how often all of them are looked at."""

from collections.abc import Callable
from functools import partial

from mpi4py import MPI

from actorflow.transport.mpi.requests import Entry, Table

COUNT = 300
KIND = ("receive", 0)


class Counted(Table):
    looks = 0

    def drop(self, which: Callable[[Entry], bool] = lambda _: True) -> list[Entry]:
        self.looks += 1
        return super().drop(which)


def main() -> None:
    table, codes = Counted(lambda: None), list[int]()
    buffers = [bytearray(1) for _ in range(COUNT + 2)]
    for tag, buffer in enumerate(buffers):
        entry = Entry((0,), True, lambda _, code: codes.append(code), KIND)
        table.start(partial(MPI.COMM_SELF.Irecv, (buffer, MPI.BYTE), 0, tag), entry)
    table.lose(0, {KIND: COUNT})
    for tag in range(COUNT):
        MPI.COMM_SELF.Send((b"x", MPI.BYTE), 0, tag)
        while len(codes) <= tag:
            table.poll()
    good = codes.count(0)
    print(f"{good} came, {len(codes) - good} failed, {len(table)} left, {table.looks} looks")


main()
