"""Faults that are planted in the package, one at a time, and the kind of program that finds each."""

from __future__ import annotations

import inspect
import pkgutil
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.testing.simulated_programs import KINDS


@dataclass(frozen=True)
class Planted:
    """A fault.

    Attributes:
        kind: Of the program that finds it.
        where: The function, below ``actorflow.``.
        before: A part of its source, which is there once.
        after: What is there instead.
    """

    kind: str
    where: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.where.rpartition(':')[2]}: {' '.join(self.before.split())[:40]}"


_BUDGET, _ATTEMPTS = "actors.budget:Budget", "actors.attempts:OpAttempts"
_BATCHER, _SLOTS = "runtime.batched:Batcher", "runtime.sessions:Slots"
_PEERS, _WORLD = "ranks.peers:Peers", "transport.local:LocalWorld"
_FILE = "checkpoint.file"

FAULTS = [
    # Memory that frames may take.
    Planted("budgets", f"{_BUDGET}.close", "self.shared[place] -= taken", "pass"),
    Planted("budgets", f"{_BUDGET}.close", "if entry[3] is not frame", ""),
    Planted("budgets", f"{_BUDGET}.retry", "self._parked.append(entry)", "pass"),
    Planted("budgets", f"{_BUDGET}._count_freed", "self.shared[taken[0]] -= taken[1]", "pass"),
    Planted("budgets", f"{_BUDGET}._fits", "not (frame is oldest and actor.index == account.next)", "True"),
    Planted("budgets", f"{_BUDGET}._fits", "self.shared[place] + need > capacity", "0 > capacity"),
    Planted("budgets", f"{_BUDGET}.ended", "self.retry()", "pass"),
    # Calls of ops.
    Planted("budgets", f"{_ATTEMPTS}.end", "timer.cancel()", "pass"),
    Planted("runs", f"{_ATTEMPTS}._again", "self._actor.begin(frame)", "pass"),
    Planted("runs", "actors.frame:Frame._let_go", "listener.skip(self)", "pass"),
    Planted("runs", "actors.frame:Frame.settle", "self.outstanding.pop(actor, None)", "pass"),
    Planted("runs", "actors.op:OpActor._account_failed",
            "frame.trace.add_failed(end_ns, elapsed_ns, key, frame.number, in_brief(error))", "pass"),
    Planted("runs", "actors.op:OpActor._succeeded", "self.account(frame, elapsed_ns, end_ns, key)", "pass"),
    # Variables.
    Planted("variables", "actors.frame:Frame._let_go", "turn.leave()", "pass"),
    Planted("variables", "actors.blob:Turn.leave", "turn._reached and turn._left", "turn._left"),
    Planted("variables", "actors.blob:_arrived", "if frame.atomic:", "if False:"),
    Planted("variables", "actors.blob:VariableUse.enter", "before is None or before.passed", "True"),
    Planted("variables", "actors.blob:VariableUse.enter", "variable.last = frame", "frame"),
    # Streams, and ops that emit.
    Planted("streams", "runtime.stream:_Feeder._take", "self.frames.append(", "self.frames.appendleft("),
    Planted("streams", "runtime.stream:_Feeder.refill", ") < self.in_flight", ") <= self.in_flight"),
    Planted("emissions", "runtime.emissions:EmissionCall._stop", "self._close()", "pass"),
    Planted("emissions", "runtime.emissions:EmissionCall.ask", "self.room.set_result(None)", "pass"),
    # Batched runs.
    Planted("batches", "runtime.rows:Rows.joined", "_pieces(requests)", "_pieces(requests[::-1])"),
    Planted("batches", "runtime.rows:Rows.parts", "stop = start + request.rows", "stop = start + requests[0].rows"),
    Planted("batches", f"{_BATCHER}._move", "self._waiting_rows -= before - origin.rows", "pass"),
    Planted("batches", "runtime.rows:Rows.parts", "if not is_wanted:", "if False:"),
    Planted("batches", f"{_BATCHER}._compute", "requests[half:], requests[:half]", "(requests[:half],)"),
    Planted("batches", f"{_BATCHER}.give_up", "and not place.requests", ""),
    Planted("batches", f"{_BATCHER}._ended", "self._look_soon()", "pass"),
    # Sessions.
    Planted("sessions", f"{_SLOTS}.take", "< self._most", "<= self._most"),
    Planted("sessions", f"{_SLOTS}.free", "self.sessions.add(following)", "pass"),
    Planted("sessions", "runtime.sessions:Session._close", "self._slots.free(self)", "pass"),
    Planted("sessions", f"{_BATCHER}._run", "session.commit(", "requests[0].order > 0.004 and session.commit("),
    Planted("iterations", f"{_BATCHER}._deliver", "and ends[ahead.until][start]", "and len(ahead.found) < 2 and ends"),
    Planted("iterations", "runtime.rows:Ahead.add", "self.tell()", "pass"),
    Planted("iterations", f"{_BATCHER}._deliver", "each.place is batch and", "each.ahead is not None and"),
    Planted("iterations", "runtime.rows:Ahead.rewind", "self.found.clear()", "pass"),
    Planted("sessions", "runtime.sessions:Session._expire", "now_s if self._calls else", ""),
    # Pipelines.
    Planted("pipelines", "pipeline.calls.order:InOrder.accept", "slots.append(slot)", "slots.appendleft(slot)"),
    Planted("pipelines", "pipeline.calls.call:CallActor.step", "inbox.source.wake()", "pass"),
    Planted("pipelines", "pipeline.calls.call:CallActor._begin", "self.finish(self._stage_error(", "str(("),
    Planted("pipelines", "pipeline.stages.stage:StageActor.finish", "self.out.owner.wake()", "pass"),
    Planted("merges", "pipeline.stages.join:_MergeByTimeActor.next_item",
            "not self.has_ended(inbox) or self.is_over", "self.is_over"),
    Planted("merges", "pipeline.stages.passing:_NewestActor.step", "waiting.clear()", "pass"),
    # Runs that go on without what has failed.
    Planted("parts", "actors.frame:Frame.go_on_without", "self.announce(actor.followers, None)", "pass"),
    Planted("parts", "actors.frame:Frame.go_on_without", "self.budget.ended(self, actor)", "pass"),
    # New weights, and gradients.
    Planted("swaps", "runtime.engine:Engine.swap",
            "resources.swap(variable, value)",
            "resources.swap(variable, value)\n            await asyncio.sleep(1e-3)"),
    Planted("gradients", "runtime.bodies:BodyActor._conclude_call",
            "frame.ready.append((_Settled(self), frame))", "pass"),
    # Ranks.
    Planted("ranks", f"{_WORLD}.tell_others", "self.tell(transport.rank, error)", "pass"),
    Planted("ranks", f"{_WORLD}.thaw", "stream.added()", "pass"),
    Planted("ranks", "ranks.edges:Exchange.send", "serial % WINDOW", "0"),
    Planted("ranks", f"{_PEERS}._heard_agreed", "answer.set_result(None)", "pass"),
    Planted("ranks", "ranks.edges:Exchange.receive", "serial % WINDOW", "0"),
    Planted("crossings", f"{_PEERS}._full", "serial - oldest >= WINDOW", "False"),
    Planted("crossings", f"{_PEERS}._after_end", "if serial >= end:", "if False:"),
    Planted("crossings", f"{_PEERS}._heard_ended", "[frame for frame in self._frames if frame >= serial]", "[]"),
    Planted("crossings", f"{_PEERS}._heard_stopped", "if serial >= self._done.frames:", "if False:"),
    # Accelerators.
    Planted("accelerators", "actors.frame:Frame.announce", "if fence is not None:", "if False:"),
    Planted("accelerators", "devices.stream:StreamLane.wait_until", "self.stream.wait(other.mark(number))", "pass"),
    # Files.
    Planted("checkpoints", f"{_FILE}:write_atomically", "_sync(temporary, os.O_RDWR)", "pass"),
    Planted("checkpoints", f"{_FILE}:write_atomically", "_sync(path.parent, os.O_RDONLY)", "pass"),
    Planted("checkpoints", "checkpoint.folder:Checkpoints._save", "await snap",
            "self._prune(frozenset(range(99)))\n        await snap"),
    Planted("checkpoints", "checkpoint.folder:Checkpoints._prune", "[-self.keep]", "[0]"),
    Planted("lying_disks", "checkpoint.folder:Checkpoints.load", "if not fallback:", "if True:"),
    # Lazy arrays.
    Planted("arrays", "array.sessions:Session._end", "self._go_on()", "pass"),
    Planted("arrays", "array.jobs:Run._compute_some", "produced[i].value = value", "produced[0].value = value"),
    Planted("arrays", "runtime.service:Service.kept", "self.graphs.get(key)", "next(iter(self.graphs.values()), None)"),
    # Servers.
    Planted("serving", "serve.account:Share.__exit__", "self.keep(0)", "pass"),
    Planted("serving", "serve.app:Service._counted", "self.in_flight -= 1", "pass"),
    Planted("sequences", "serve.models:Hosted._step", "known[sequence.id] = session", "known[0] = session"),
]  # fmt: skip


@contextmanager
def plant(fault: Planted) -> Iterator[None]:
    """Have a function with a fault in the place of the right one."""
    path, _, last = fault.where.rpartition("." if "." in fault.where.rpartition(":")[2] else ":")
    owner: Any = pkgutil.resolve_name(f"actorflow.{path}")
    right = vars(owner)[last]
    source = textwrap.dedent(inspect.getsource(right))
    assert source.count(fault.before) == 1, (source.count(fault.before), str(fault))
    code = source.replace(fault.before, fault.after)
    made: dict[str, Any] = {}
    # Compiled as this module is: with annotations that are not evaluated.
    exec(compile(code, inspect.getsourcefile(right) or "", "exec"), right.__globals__, made)
    before, right.__code__ = right.__code__, made[last].__code__  # whoever refers to the function, too
    try:
        yield
    finally:
        right.__code__ = before


def first_seed(fault: Planted, most: int) -> int | None:
    """The first seed under which a planted fault is found."""
    kind = KINDS[fault.kind]
    for seed in range(most):
        try:
            kind.simulate(seed)
        except Exception:  # noqa: BLE001  it does not hold what it promises
            return seed
    return None
