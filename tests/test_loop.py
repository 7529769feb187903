"""Programs on a loop of their own."""

from __future__ import annotations

import asyncio

import pytest

import actorflow as af


def test_run_gives_what_the_program_returns() -> None:
    async def main() -> str:
        await asyncio.sleep(0)
        return "done"

    assert af.run(main()) == "done"


async def test_run_inside_a_loop_says_what_to_do_and_leaves_nothing_behind() -> None:
    async def main() -> None:
        raise AssertionError

    program = main()
    with pytest.raises(RuntimeError, match=r"a notebook.*: await main\(\)"):
        af.run(program)
    assert program.cr_frame is None  # closed: no warning that it was never awaited
    await asyncio.sleep(0)  # the loop goes on
