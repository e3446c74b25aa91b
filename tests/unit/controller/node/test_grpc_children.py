"""Processes are started from ones with live gRPC: none ends before it has begun, whichever loop starts it."""

import subprocess
import sys

PROGRAM = """
import asyncio, collections, sys
import uvloop
import controller
import grpc, grpc.aio

async def echo(_requests, context):
    while (message := await context.read()) is not grpc.aio.EOF:
        await context.write(message)

async def talk(port):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.stream_stream("/test/echo")()
        while True:
            await call.write(b"x")
            await call.read()

async def main():
    server = grpc.aio.server()
    methods = {"echo": grpc.stream_stream_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    talking = [asyncio.ensure_future(talk(port)) for _ in range(4)]
    codes = collections.Counter()
    for _ in range(80):
        process = await asyncio.create_subprocess_exec("true", start_new_session=True)
        codes[await process.wait()] += 1
    for one in talking:
        one.cancel()
    await asyncio.gather(*talking, return_exceptions=True)
    await server.stop(0)
    print(dict(codes))

uvloop.run(main())
"""


def test_no_child_ends_by_what_grpc_does_at_a_fork():
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert (ran.stdout, ran.returncode) == ("{0: 80}\n", 0), ran.stderr[-2_000:]
