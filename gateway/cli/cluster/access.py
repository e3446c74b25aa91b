"""`headgate access`: a client's rights, and the rules that decide them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.cluster.controllers import ask_of

EXIT_DENIED = 1
app = typer.Typer(help="Access rules.", no_args_is_help=True)

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="The TOML file.", show_default="headgate.toml, if it is there")
]


@app.command()
def check(
    action: Annotated[str, typer.Argument(help="publish, subscribe or manage.")],
    address: Annotated[str, typer.Argument(help="An address, or with subscribe a filter.")],
    *,
    user: Annotated[str, typer.Option("--user", help="The name; none: an anonymous client.")] = "",
    client_id: Annotated[str, typer.Option("--client-id", help="MQTT's client identifier.")] = "",
    device: Annotated[
        str, typer.Option("--device", help="What a certificate or token says.", show_default="USER")
    ] = "",
    protocol: Annotated[str, typer.Option("--protocol", help="By which the client comes.")] = "mqtt",
    config: ConfigOption = None,
    controllers: Annotated[
        str | None,
        typer.Option("--controllers", help="host:port,... that know the user's own rules.", show_default="the file's"),
    ] = None,
) -> None:
    """Say whether a client may do something, and by which rule. The exit code is 1 where it may not."""
    from gateway.config.config import load  # noqa: PLC0415
    from gateway.domain.access import AccessRules, Identity  # noqa: PLC0415 - only this command needs it
    from gateway.domain.access_settings import ACCESS, ACTIONS, own_access  # noqa: PLC0415
    from gateway.domain.filters import is_filter  # noqa: PLC0415
    from store.base.process_errors import ConfigError  # noqa: PLC0415

    if action not in ACTIONS:
        raise ConfigError(f"{action!r} is none of {', '.join(ACTIONS)}")
    settings = load(config)

    async def found(controller: Any) -> Any:
        return controller.user(user)

    known = None
    if user and (controllers is not None or settings.cluster.controllers):
        known = ask_of(settings.cluster, controllers, found)
    said = None if known is None else known.rights.get(ACCESS)
    own = None if said is None else own_access(said)
    identity = Identity(name=user, client_id=client_id, device=device or user, protocol=protocol)
    access = AccessRules(settings.access).access(identity, own)
    if access is None:
        typer.echo("allowed: no rule restricts this client")
        return
    if action == "subscribe" and is_filter(address):
        allowed, why = access.reaches("subscribe", address), "some of its addresses may be read"
        why = why if allowed else "none of its addresses may be read"
    else:
        allowed, origin = access.explain(action, address)
        why = _shown(settings.access, own, origin) if origin else "no rule speaks of it, and the default counts"
    typer.echo(f"{'allowed' if allowed else 'denied'}: {why}")
    if not allowed:
        raise typer.Exit(EXIT_DENIED)


def _shown(config: Any, own: Any, origin: str) -> str:
    """Returns a rule as it was written; of rights by name, as RabbitMQ has them, where they are."""
    rules = {f"access.rules[{i}]": rule for i, rule in enumerate(config.rules)}
    rule = rules.get(origin)
    if origin.startswith("rule "):
        rule = own.rules[int(origin.split(" ")[1])]
    return origin if rule is None else f"{origin}: {rule.effect} {', '.join(rule.actions)} {' '.join(rule.filters)}"
