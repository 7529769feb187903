"""One suite that every transport must pass, whether it comes with this package or from elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from actorflow.testing.conformance.report import (
    Checked,
    ConformanceError,
    Deviation,
    NotApplicable,
    Report,
    Requirement,
)
from actorflow.testing.transport.edges import EDGES
from actorflow.testing.transport.ends import ENDS
from actorflow.testing.transport.groups import GROUPS
from actorflow.testing.transport.notes import NOTES
from actorflow.testing.transport.peers import Peers
from actorflow.transport import Transport

__all__ = ["check_transport"]

#: Each builds on those before it, so what breaks first is closest to what is wrong.
_TOPICS = (EDGES, NOTES, GROUPS, ENDS)


async def check_transport(
    transport: Transport,
    *,
    chunk_bytes: int = 1 << 22,
    patience_s: float = 30.0,
    measure_idle: bool = False,
    freeze: Callable[[], object] | None = None,
) -> Report:
    """Check that a transport does what `actorflow.transport.Transport` asks for.

    ::

        print(await check_transport(MPITransport()))

    All ranks call this at the same time, with the same arguments; each checks its own part. The transport is closed
    at the end.

    Args:
        transport: New, with nothing under way.
        chunk_bytes: A size about which messages may be sent otherwise than about others; larger ones are tried.
        patience_s: After how many seconds something that has not happened counts as never happening.
        measure_idle: Whether to check that waiting takes no processor time, too; it takes a second.
        freeze: Makes this rank stand still, for good or for longer than the transport's ``liveness_s``, which is to be
            short; it is called on the last rank alone. Without it, that rank leaves before the others instead.
    Returns:
        All requirements, with what was not checked and why.
    Raises:
        ConformanceError: an `AssertionError`, for the first requirement that the transport breaks on this rank.
    """
    peers = Peers(transport, asyncio.get_running_loop(), chunk_bytes, patience_s, measure_idle, freeze)
    who = f"rank {transport.rank} of {transport.size} over {transport.name}"
    try:
        requirements = [requirement for topic in _TOPICS for requirement in topic.requirements]
        checks = []
        for number, requirement in enumerate(requirements):
            if peers.is_out:
                checks.append(Checked(requirement.name, requirement.text, "this rank has ended before the others"))
                continue
            peers.begin(number)
            checks.append(Checked(requirement.name, requirement.text, await _skipped(peers, requirement, who)))
        return Report(who, type(transport), tuple(checks))
    finally:
        transport.close()


async def _skipped(peers: Peers, requirement: Requirement, who: str) -> str:
    """Check one requirement; why it does not apply, if it does not."""
    try:
        async with asyncio.timeout(peers.patience_s):
            await requirement.check(peers)
    except NotApplicable as reason:
        return str(reason)
    except Deviation as found:
        raise ConformanceError(who, requirement, found.expected, found.actual) from None
    except TimeoutError:
        expected = f"an end within {peers.patience_s:g} s"
        raise ConformanceError(who, requirement, expected, f"waiting for {peers.waiting()}") from None
    except Exception as error:
        raise ConformanceError(who, requirement, "no exception", f"{type(error).__name__}: {error}") from error
    return ""
