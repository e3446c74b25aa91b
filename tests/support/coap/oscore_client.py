"""aiocoap's whole client with OSCORE, whose context is in a directory as aiocoap keeps it."""

import json
from pathlib import Path

from aiocoap import Context

SECRET, SALT = "0102030405060708090a0b0c0d0e0f10", "9e7ca92223786340"


def provision(path: Path, *users: str) -> None:
    """Writes the gateway's file: the contexts of users, whose client ids are 01, 02 and so on."""
    contexts = [
        {"user": user, "client_id": f"{n:02x}", "server_id": "", "secret": SECRET, "salt": SALT}
        for n, user in enumerate(users, 1)
    ]
    path.write_text(json.dumps({"contexts": contexts}))


async def oscore_client(directory: Path, uri: str, *, client_id: str = "01", secret: str = SECRET) -> Context:
    """Returns a client that protects all it sends to a gateway."""
    directory.mkdir(exist_ok=True)
    settings = {"sender-id_hex": client_id, "recipient-id_hex": "", "secret_hex": secret, "salt_hex": SALT}
    (directory / "settings.json").write_text(json.dumps(settings))
    context = await Context.create_client_context()
    context.client_credentials.load_from_dict({f"{uri}/*": {"oscore": {"basedir": str(directory)}}})
    return context
