"""Real browsers for the tests: one of each for all of a process, driven from a thread of its own."""

import asyncio
import importlib.util
import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.effort import FULL

__all__ = ["LIGHT", "Elsewhere", "Page", "browse", "browse_firefox"]

CHROMIUM = Path("/usr/bin/chromium")
SHELL = Path("/usr/lib/chromium/chromium-headless-shell")
#: Chromium without all that is around a page takes two thirds of the time; `make test-exhaustive` takes what users do.
LIGHT = SHELL if SHELL.exists() and not FULL else CHROMIUM
FIREFOX = Path("/usr/bin/firefox-esr")
ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--log-level=3",
    # What only serves who types an address: two pages of its own for each profile, and a process for the next page.
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup,SpareRendererForSitePerProcess",
    # Lets a test speak of a foreign site without leaving this machine.
    "--host-resolver-rules=MAP evil.example 127.0.0.1",
]
#: What browsers say of a connection that there is not.
COMES_BACK = "ERR_CONNECTION_REFUSED", "can’t establish a connection to the server"
#: Only a failing test waits this long.
PATIENCE_S = 45.0


class Elsewhere:
    """Something of Playwright's, which belongs to another loop: coroutines run there and are awaited here.

    Playwright's objects know the loop that they were made on, each test has a loop of its own, and starting Playwright
    anew takes longer than most tests.
    """

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._target = target
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        return self._method(value) if inspect.ismethod(value) else self._shown(value)

    def _method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            coroutine = _call(method, arguments, options)
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            if inspect.iscoroutinefunction(method):
                return self._awaited(future)
            return self._shown(future.result(PATIENCE_S))

        return call

    async def _awaited(self, future: Future[Any]) -> Any:
        return self._shown(await asyncio.wrap_future(future))

    def _shown(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._shown(item) for item in value]
        return Elsewhere(value, self._loop) if type(value).__module__.startswith("playwright.") else value


async def _call(method: Callable[..., Any], arguments: Iterable[Any], options: dict[str, Any]) -> Any:
    result = method(*map(_there, arguments), **{name: _there(value) for name, value in options.items()})
    return await result if inspect.iscoroutine(result) else result


def _there(value: Any) -> Any:
    return value._target if isinstance(value, Elsewhere) else value


@contextmanager
def browse(profile: Path, program: Path = CHROMIUM) -> Iterator[tuple[Elsewhere, int]]:
    """Start Chromium and connect to it; skips where there is none, but for CI, where that is a failure.

    Yields the browser and the id of its process.
    """
    _demand(program)
    command = [program, "--headless", "--remote-debugging-port=0", f"--user-data-dir={profile}", *ARGS, "about:blank"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = next((line.split()[-1] for line in process.stderr if "DevTools listening on" in line), None)
        assert address is not None, "the browser ended at once"
        # Who does not read what it says would stop it when the pipe is full.
        reader = threading.Thread(target=process.stderr.read)
        reader.start()
        try:
            with _driven(lambda playwright: playwright.chromium.connect_over_cdp(address)) as browser:
                yield browser, process.pid
        finally:
            process.terminate()
            reader.join()


@contextmanager
def browse_firefox(folder: Path) -> Iterator[Elsewhere]:
    """Start Firefox; skips or fails as `browse` does."""
    _demand(FIREFOX)
    program = folder / "firefox"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("firefox.py")} "$@"\n')
    program.chmod(0o755)
    with _driven(
        lambda playwright: playwright.firefox.launch(channel="moz-firefox", executable_path=program)
    ) as browser:
        yield browser


def _demand(program: Path) -> None:
    missing = None
    if importlib.util.find_spec("playwright") is None:
        missing = "playwright is not installed"
    elif not program.exists():
        missing = f"{program} is not there: install Debian's {program.name}"
    if missing:
        if os.environ.get("CI") == "true":
            pytest.fail(f"browser tests must run in CI, but {missing}")
        pytest.skip(missing)


@contextmanager
def _driven(begin: Callable[[Any], Coroutine[Any, Any, Any]]) -> Iterator[Elsewhere]:
    """A browser that Playwright drives in a thread of its own."""
    from playwright.async_api import async_playwright

    loop = asyncio.SelectorEventLoop()
    thread = threading.Thread(target=loop.run_forever, name="playwright")
    thread.start()

    def there(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(PATIENCE_S)

    try:
        playwright = there(async_playwright().start())
        try:
            browser = there(begin(playwright))
            yield Elsewhere(browser, loop)
            there(browser.close())
        finally:
            there(playwright.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class Page:
    """A browser's page, and everything that it said and complained of."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.said: list[str] = []
        self._is_left = False
        self.complaints: list[str] = []
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self._complained(str(error)))

    def _heard(self, message: Any) -> None:
        self.said.append(f"{message.type}: {message.text}")
        if message.type in {"error", "warning"}:
            self._complained(message.text)

    def _complained(self, text: str) -> None:
        # A page that is still open when its server has ended tries to come back: the browser's word, not the page's.
        # Playwright's own styles, which it has pictures taken with, are against the page's policy.
        if not self._is_left and not any(part in text for part in COMES_BACK):
            self.complaints.append(text)

    async def open(self, url: str) -> None:
        await self.page.goto(url)
        await self.until("actorflow.connection === 'live' && !actorflow.isBusy && actorflow.framesDrawn > 0")

    async def look(self, expression: str) -> Any:
        """A value of the page; `actorflow` is its window to tests."""
        return await self.page.evaluate(f"() => ({expression})")

    async def until(self, expression: str) -> None:
        """Wait until an expression is true. (Playwright's own wait evaluates text, which the page's policy forbids.)"""
        script = f"""async () => {{
            while (!(window.actorflow && ({expression}))) await new Promise((go) => setTimeout(go, 15));
        }}"""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self.page.evaluate(script)
        except TimeoutError:
            pytest.fail(f"the page never came to {expression}; it complained of {self.complaints}")

    async def redrawn(self) -> None:
        """Wait until what was asked for is drawn."""
        await self.look("new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))")

    async def show(self, tab: str) -> None:
        """Show a tab of the panel."""
        await self.page.click(f"#tab-{tab}")

    async def click_node(self, name: str) -> None:
        """Click a node or a closed scope."""
        await self.page.mouse.click(*await self.middle_of(name))

    async def middle_of(self, name: str) -> tuple[float, float]:
        """Position of a node or a scope in the window."""
        x, y = await self.look(f"actorflow.placeOf({name!r})")
        box = await self.page.locator("#graph").bounding_box()
        return box["x"] + x, box["y"] + y

    async def is_emptied(self) -> bool:
        """Leave nothing of a test to the next one; returns whether that can be: it is there, and alone."""
        if self.page.is_closed() or len(self.page.context.pages) > 1:
            return False
        if self.page.url.startswith("http"):
            await self.page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
        await self.page.goto("about:blank")
        await self.page.context.clear_cookies()
        await self.page.mouse.move(0, 0)
        self.said, self.complaints, self._is_left = [], [], False
        return True

    async def leave(self, picture: Path | None, failed: bool) -> None:
        """End the test, and keep what the page looks like and, of a test that failed, what it said."""
        self._is_left = True
        if picture is None:
            return
        picture.parent.mkdir(parents=True, exist_ok=True)
        if failed:
            complaints = [f"complaint: {text}" for text in self.complaints]
            picture.with_suffix(".txt").write_text("\n".join([*self.said, *complaints, ""]))
        if not self.page.is_closed():
            picture.write_bytes(await self.page.screenshot(full_page=True, scale="css"))
