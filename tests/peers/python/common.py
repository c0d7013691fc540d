"""What the client and the server on aioquic share: how they are told what to do, and how they answer."""

import argparse
import asyncio
import json
import sys

from aioquic.quic.configuration import QuicConfiguration


def arguments(**more: str) -> argparse.Namespace:
    """The command line of one side; `more` are flags of its own, each with its help."""
    parser = argparse.ArgumentParser()
    flags = {
        "address": "HOST:PORT of the server",
        "ca": "file with the cluster's CA, PEM",
        "cert": "file with this side's certificate chain, PEM",
        "key": "file with its private key, PEM",
    }
    for name, explanation in (flags | more).items():
        parser.add_argument(f"-{name}", required=True, help=explanation)
    parser.add_argument("-http", default="3", help="version of HTTP: 3, or over TCP 2 or 1.1")
    return parser.parse_args()


def configuration(told: argparse.Namespace, is_client: bool) -> QuicConfiguration:
    made = QuicConfiguration(is_client=is_client, alpn_protocols=["h3"])
    made.load_cert_chain(told.cert, told.key)
    made.load_verify_locations(told.ca)
    return made


def write_line(value: dict) -> None:
    """Writes a value as a line of JSON."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


async def standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=2**27)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader
