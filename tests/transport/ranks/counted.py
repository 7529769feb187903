"""Requests that a rank which has ended has done its part of come through; how often all of them are looked at."""

from collections.abc import Callable

from mpi4py import MPI

from actorflow.transport.mpi.requests import Ended, Kind, Table

COUNT = 300
KIND = Kind((0,), True, ("receive", 0))


class Counted(Table):
    looks = 0

    def drop(self, which: Callable[[Kind], bool] = lambda _: True) -> list[Ended]:
        self.looks += 1
        return super().drop(which)


def main() -> None:
    table, codes = Counted(lambda: None), list[int]()
    buffers = [bytearray(1) for _ in range(COUNT + 2)]
    for tag, buffer in enumerate(buffers):
        table.start(KIND, lambda _, code: codes.append(code), MPI.COMM_SELF.Irecv, buffer, 0, tag)
    table.lose(0, {KIND.key: COUNT})
    for tag in range(COUNT):
        MPI.COMM_SELF.Send((b"x", MPI.BYTE), 0, tag)
        while len(codes) <= tag:
            table.poll()
    good = codes.count(0)
    print(f"{good} came, {len(codes) - good} failed, {len(table)} left, {table.looks} looks")


main()
