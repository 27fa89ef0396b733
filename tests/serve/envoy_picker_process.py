"""A picker in a process of its own, to be killed: ``python envoy_picker_process.py ADDRESS WORKER_URL...``."""

from __future__ import annotations

import asyncio
import sys

from envoy_rig import make_driver

from equipoise.serve.envoy.ext_proc import PickerServer
from equipoise.serve.envoy.picker import Picker


async def main(address: str, *urls: str) -> None:
    async with PickerServer(Picker(make_driver(urls)), address):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
