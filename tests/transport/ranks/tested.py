"""What a table finds to have ended, be its requests few or many: all but the last, and one that got too much."""

from mpi4py import MPI

from actorflow.transport.mpi.requests import Kind, Table

comm = MPI.COMM_WORLD.Dup()
comm.Set_errhandler(MPI.ERRORS_RETURN)


def found(count: int) -> list[tuple[int, int, str]]:
    """Which has ended, with how many bytes, and what MPI says of it."""
    table, seen = Table(lambda: None), list[tuple[int, int, str]]()
    buffers = [bytearray(i + 1) for i in range(count)]

    def start(i: int) -> None:
        def ended(size: int, code: int) -> None:
            is_good, is_truncated = code == 0, MPI.Get_error_class(code) == MPI.ERR_TRUNCATE
            seen.append((i, size if is_good else 0, "truncated" if is_truncated else str(code)))

        table.start(Kind((0,), True), ended, comm.Irecv, buffers[i], 0, i)

    for i in range(count):
        start(i)
    too_much = count // 2
    sends = [comm.Isend((bytes(i + 1 + (i == too_much)), MPI.BYTE), 0, i) for i in range(count - 1)]
    while len(table) > 1:
        table.poll()
    MPI.Request.Waitall(sends)
    assert not table.poll(), "nothing more has come"
    table.drop()
    return sorted(seen)


for count in (1, 2, 4, 5, 40):
    expected = [(i, 0, "truncated") if i == count // 2 else (i, i + 1, "0") for i in range(count - 1)]
    assert found(count) == expected, (count, found(count))
print("as expected")
