"""Firefox as it comes from the distribution, for Playwright: a program to run in the place of the browser.

Playwright drives such a Firefox by WebDriver BiDi, and asks it for what only later versions know: to emulate another
colour scheme, say, for every page. This stands between the two, and lets those wishes pass for granted.
"""

import asyncio
import json
import sys
from typing import Any

from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

_LISTENING = "WebDriver BiDi listening on "


async def main() -> int:
    """Run Firefox with the arguments of this process, behind an address of our own."""
    firefox = await asyncio.create_subprocess_exec(
        "/usr/bin/firefox-esr", *sys.argv[1:], stderr=asyncio.subprocess.PIPE
    )
    assert firefox.stderr is not None
    async for line in firefox.stderr:
        address = line.decode().strip().partition(_LISTENING)[2]
        if address:
            break
    else:
        return await firefox.wait()

    async def drive(playwright: ServerConnection) -> None:
        async with connect(f"{address}/session", max_size=None, compression=None, proxy=None) as browser:
            wishes: set[int] = set()
            there = asyncio.create_task(_pass_on(playwright, browser, wishes))
            await _answer(browser, playwright, wishes)
            await there

    async with serve(drive, "127.0.0.1", 0, max_size=None, compression=None) as server:
        port = server.sockets[0].getsockname()[1]
        print(f"{_LISTENING}ws://127.0.0.1:{port}", file=sys.stderr, flush=True)
        await firefox.stderr.read()  # who does not would stop it when the pipe is full
        return await firefox.wait()


async def _pass_on(playwright: Any, browser: Any, wishes: set[int]) -> None:
    async for text in playwright:
        message = json.loads(text)
        if message["method"].startswith("emulation."):
            wishes.add(message["id"])
        await browser.send(text)
    await browser.close()


async def _answer(browser: Any, playwright: Any, wishes: set[int]) -> None:
    async for text in browser:
        message = json.loads(text)
        if message.get("error") == "unknown command" and message["id"] in wishes:
            text = json.dumps({"type": "success", "id": message["id"], "result": {}})
        await playwright.send(text)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
