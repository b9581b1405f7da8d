"""The wait for a descriptor, such as of a socket or of a process, that nothing but its news ends."""

import asyncio


async def readable(descriptor: int) -> None:
    """Wait until a descriptor has something to read, or is at its end; nothing else may wait for it meanwhile."""
    loop, is_readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, is_readable.set)
    try:
        await is_readable.wait()
    finally:
        loop.remove_reader(descriptor)
