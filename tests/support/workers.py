"""Hooks for xdist's workers: one that dies ends the run, and is named; and each prepares a share of the tests."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite

TESTS = Path(__file__).parents[1]


def pytest_configure(config: pytest.Config) -> None:
    """Start no worker in place of one that has died; and see `_die_alone`."""
    if getattr(config.option, "maxworkerrestart", "") is None:  # xdist is there, and was not told otherwise
        config.option.maxworkerrestart = "0"
    for plugin in config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "WorkerInteractor":
            _die_alone(plugin.channel.gateway._io)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Rewrite the assertions of a share of the files before they are collected, in the first run of a new checkout.

    Each worker collects all tests: left to themselves, all would rewrite each file, at the same time.
    """
    given = getattr(session.config, "workerinput", None)
    if given is None or sys.dont_write_bytecode or session.config.rootpath != TESTS.parent:
        return
    state = session.config.stash[rewrite.assertstate_key]
    number, count = int(given["workerid"].removeprefix("gw")), given["workercount"]
    for path in sorted(TESTS.rglob("test_*.py"))[number::count]:
        folder = rewrite.get_cache_dir(path)
        pyc = folder / f"{path.stem}{rewrite.PYC_TAIL}"
        if not pyc.exists() and rewrite.try_makedirs(folder):
            source, code = rewrite._rewrite_test(path, session.config)
            rewrite._write_pyc(state, code, source, pyc)


def _die_alone(connection: Any) -> None:
    """Forked children do not keep a worker's connection open: its end is how xdist learns that the worker has died."""

    def let_go() -> None:
        nothing = os.open(os.devnull, os.O_RDWR)
        for file in (connection.infile, connection.outfile):
            os.dup2(nothing, file.fileno())
        os.close(nothing)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=let_go)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodeready(node: Any) -> None:
    """Let nobody fail over a worker that dies while it is told what to do next: `pytest_testnodedown` comes then."""
    send = node.sendcommand

    def send_if_alive(name: str, **arguments: Any) -> None:
        with suppress(OSError):
            send(name, **arguments)

    node.sendcommand = send_if_alive


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object | None) -> None:
    """End the run when a worker of xdist dies, whatever it was doing.

    Left to itself, xdist 3.8 gives the tests of the dead worker's file, with the one that killed it, to the next
    worker. That dies as well, or waits for ever: a worker starts a test only when it has been told what comes after it.
    """
    if error:
        distribution = node.config.pluginmanager.getplugin("dsession")
        distribution.shouldstop = distribution.shouldstop or f"worker {node.gateway.id} died: {error}"
        distribution.triggershutdown()  # from here on no worker is given more tests
