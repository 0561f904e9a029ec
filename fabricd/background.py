"""Work that must not run in the event loop."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T], *, name: str = "work") -> T:
    """Return what the function returns, run in a thread of its own that nobody waits for at the daemon's end.

    ``asyncio.to_thread`` is no choice for what may hang: the loop waits for its threads when it ends.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type] # a T: there was no error

    def work() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = function()
        except BaseException as caught:  # noqa: BLE001 - carried over to whoever awaits
            error = caught
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(deliver, result, error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return await done
