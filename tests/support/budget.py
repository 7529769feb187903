"""Part of the tests, as far as some seconds go: files in an order that a seed draws, so that all get their turn."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

NOT_RUN = "not_run"


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "start no test when so many seconds have passed, and take the files in an order drawn from --seed"
    parser.addoption("--seconds", type=float, default=None, help=text)
    parser.addoption("--seed", default="", metavar="TEXT", help="what the order of --seconds is drawn from")
    # Set below, and handed to xdist's workers with all other options, so that they stop at the same time.
    parser.addoption("--stop-at", type=float, default=None, help="as --seconds, but the time of the system's clock")


class Budget:
    """Hooks that end a run in time."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._not_run = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Draw the order of the files; within each the order stays, and with it what its tests share."""
        files = list(dict.fromkeys(item.path for item in items))
        random.Random(self._config.getoption("--seed")).shuffle(files)
        place = {file: number for number, file in enumerate(files)}
        items.sort(key=lambda item: place[item.path])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> bool | None:
        """Run no test when the time is over."""
        if time.time() < self._config.getoption("--stop-at"):
            return None
        self._not_run += 1
        return True

    def pytest_sessionfinish(self) -> None:
        """Tell xdist's controller."""
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[NOT_RUN] = self._not_run

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Sum up what workers did not run."""
        self._not_run += getattr(node, "workeroutput", {}).get(NOT_RUN, 0)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say how much was left out."""
        terminalreporter.line(
            f"{self._not_run} tests were not run: {self._config.getoption('--seconds'):g} s were over"
        )


def pytest_configure(config: pytest.Config) -> None:
    seconds = config.getoption("--seconds")
    if seconds is None:
        return
    if config.option.stop_at is None:
        config.option.stop_at = time.time() + seconds
    config.pluginmanager.register(Budget(config), "budget")
