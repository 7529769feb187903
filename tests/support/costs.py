"""Processor time of each test: the ten that take most are shown, and one that takes too much for its tier fails.

``--processor-limit SECONDS`` is the most that a test may take which is not marked ``slow``.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

#: Name of the property of a report that holds the processor time of its test in seconds.
PROPERTY = "processor_s"
SHOWN = 10
#: Processor time of `probe` on the machine whose seconds the limit counts: 2 cores at 2.5 GHz, nothing beside it.
PROBE_S = 0.020
PROC = Path("/proc")
TICK_S = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "fail a test that is not marked slow and takes more processor time than this, and does so again"
    parser.addoption("--processor-limit", type=float, default=None, metavar="SECONDS", help=text)


class Descendants:
    """Processor time of the processes below this one, where /proc tells; what has ended counts for its parent."""

    def __init__(self) -> None:
        self._ours: set[int] = set()
        self._foreign: set[int] = set()

    def processor_s(self) -> float:
        """Sum of what they and what they have waited for took."""
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            present = {int(name) for name in os.listdir(PROC) if name.isdecimal()}
        except (AttributeError, OSError):  # no child; or a system without these
            return 0.0
        self._ours &= present
        self._foreign &= present
        ours, total = self._ours | {os.getpid()}, 0.0
        for pid in sorted(present - self._foreign - {os.getpid()}):  # parents mostly come before their children
            with suppress(OSError):  # it has just ended
                fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
                if pid not in ours and int(fields[1]) not in ours:
                    self._foreign.add(pid)
                    continue
                ours.add(pid)
                self._ours.add(pid)
                total += sum(map(int, fields[11:15])) * TICK_S
        return total


DESCENDANTS = Descendants()


def processor_s() -> float:
    """Processor time so far of this process, of those that it has waited for, and of those that it has running."""
    if resource is None:
        return time.process_time()
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + DESCENDANTS.processor_s()


def slowness() -> float:
    """How many times slower this machine is at the moment than that of `PROBE_S`; 1 where it is faster."""
    return max(1.0, statistics.median(probe() for _ in range(5)) / PROBE_S)


def probe() -> float:
    """Processor time of this thread for a fixed piece of work of an interpreter: calls, dicts, numbers."""
    began, table = time.thread_time(), {}
    for number in range(60_000):
        table[number & 1023] = max(number, table.get(number & 511, 0)) + len(table)
    return time.thread_time() - began


class Watch:
    """Hooks that measure tests.

    The time of fixtures of a module or of the session is no test's. A test above the limit is run again, so that what
    comes once, such as an import, a compilation or a server's start, does not count; and the limit grows with the
    time that a fixed piece of work takes at that moment, on a slow machine or beside other work.
    """

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s
        self._is_in_fixture = False
        self._shared_s = 0.0

    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run a test as pytest does, and again where it is above the limit."""
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports, cost_s = self._run(item, nextitem)
        if self._is_above_limit(item, reports, cost_s):
            reports, cost_s = self._run(item, nextitem)
            if self._is_above_limit(item, reports, cost_s):
                reports[-1].outcome = "failed"
                reports[-1].longrepr = (
                    f"{item.nodeid} took {cost_s:.1f} s of processor time, twice; {self._limit_s:g} s are the most for "
                    "a test that is not marked slow: make it cheaper, or mark it (CONTRIBUTING.md, Tests)"
                )
        reports[-1].user_properties.append((PROPERTY, cost_s))
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _run(self, item: pytest.Item, nextitem: pytest.Item | None) -> tuple[list[pytest.TestReport], float]:
        began, self._shared_s = processor_s(), 0.0
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        return reports, max(0.0, processor_s() - began - self._shared_s)

    def _is_above_limit(self, item: pytest.Item, reports: list[pytest.TestReport], cost_s: float) -> bool:
        if self._limit_s is None or cost_s <= self._limit_s or item.get_closest_marker("slow") is not None:
            return False
        return all(report.passed for report in reports) and cost_s > self._limit_s * slowness()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, object, object]:
        """Measure what fixtures take that several tests share."""
        if fixturedef.scope == "function" or self._is_in_fixture:
            return (yield)
        self._is_in_fixture, began = True, processor_s()
        try:
            return (yield)
        finally:
            self._is_in_fixture = False
            self._shared_s += processor_s() - began


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Watch(config.getoption("--processor-limit")), "processor-time")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show the tests that took most, whichever of xdist's workers ran them."""
    reports = [
        report for kind in terminalreporter.stats.values() for report in kind if hasattr(report, "user_properties")
    ]
    costs = {report.nodeid: cost for report in reports for name, cost in report.user_properties if name == PROPERTY}
    if not costs:
        return
    terminalreporter.section(f"processor time of {len(costs)} tests: {sum(costs.values()):.0f} s, most in these")
    for name in sorted(costs, key=costs.__getitem__, reverse=True)[:SHOWN]:
        terminalreporter.line(f"{costs[name]:6.2f} s {name}")
