"""`headgate cluster users`: users who may connect, and their rights, on all proxies."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import typer

from controller.api.commands import DeleteUser, SetUser
from gateway.cli.cluster.controllers import ConfigOption, ControllersOption, ask
from gateway.cli.cluster.passwords import PasswordFileOption, hashed_password

app = typer.Typer(help="Users who may connect, and their rights, on all proxies.", no_args_is_help=True)

AllowOption = Annotated[
    list[str] | None, typer.Option("--allow", help="ACTION,...:FILTER, such as publish:devices/+/up. Any number.")
]
DenyOption = Annotated[list[str] | None, typer.Option("--deny", help="The same; wins over every --allow.")]
OtherwiseOption = Annotated[
    str | None,
    typer.Option("--otherwise", help="allow or deny, where no rule speaks.", show_default="deny, with an --allow"),
]


@app.command("set")
def set_user(
    name: Annotated[str, typer.Argument(help="The name that clients give.")],
    password_file: PasswordFileOption = None,
    config: ConfigOption = None,
    controllers: ControllersOption = None,
    *,
    trusted_gateway: Annotated[bool, typer.Option("--trusted-gateway", help="May speak for other devices.")] = False,
    allow: AllowOption = None,
    deny: DenyOption = None,
    otherwise: OtherwiseOption = None,
) -> None:
    """Add a user, or give one another password. Only hashes of it are kept: argon2id's, and a verifier for SCRAM.

    A user that is there keeps its rules unless others are given.
    """
    from controller.api.client import User  # noqa: PLC0415 - here and below: imports of this command alone
    from gateway.domain.access_settings import ACCESS  # noqa: PLC0415
    from gateway.domain.identity import check_user_name  # noqa: PLC0415
    from gateway.security.auth import TRUSTED_GATEWAY  # noqa: PLC0415
    from store.base.process_errors import ConfigError  # noqa: PLC0415

    try:
        check_user_name(name)
    except ValueError as error:
        raise ConfigError(f"NAME: {error}") from error
    rules = rules_of(allow, deny, otherwise)
    password = hashed_password(password_file)

    async def change(controller: Any) -> bool:
        before = await _known(controller, name)
        kept = {} if before is None else {ACCESS: before.rights[ACCESS]} if ACCESS in before.rights else {}
        rights = {TRUSTED_GATEWAY: trusted_gateway, **(kept if rules is None else {ACCESS: rules})}
        await controller.do(SetUser(user=User(name=name, password=password, rights=rights)))
        return before is not None and bool(before.rights.get(TRUSTED_GATEWAY)) and not trusted_gateway

    lost = ask(config, controllers, change)
    typer.echo(
        f"user {name} is set" + ("; it may not speak for other devices any more: --trusted-gateway" if lost else "")
    )


@app.command("rules")
def set_rules(
    name: Annotated[str, typer.Argument()],
    config: ConfigOption = None,
    controllers: ControllersOption = None,
    *,
    allow: AllowOption = None,
    deny: DenyOption = None,
    otherwise: OtherwiseOption = None,
    none: Annotated[bool, typer.Option("--none", help="No rules of its own any more.")] = False,
) -> None:
    """Set a user's rights, in place of the ones before; they count at once. Without options: print them."""
    import msgspec  # noqa: PLC0415

    from gateway.domain.access_settings import ACCESS  # noqa: PLC0415
    from store.base.process_errors import ConfigError  # noqa: PLC0415

    rules = rules_of(allow, deny, otherwise)
    if none and rules is not None:
        raise ConfigError("--none: there are rules besides; write one or the other")

    async def change(controller: Any) -> Mapping[str, Any]:
        user = await _known(controller, name)
        if user is None:
            raise ConfigError(f"there is no user {name}; `headgate cluster users set {name}` makes one")
        rights = {key: value for key, value in user.rights.items() if key != ACCESS}
        if rules is not None:
            rights[ACCESS] = rules
        elif not none:
            return dict(user.rights)
        await controller.do(SetUser(user=msgspec.structs.replace(user, rights=rights)))
        return rights

    found = ask(config, controllers, change).get(ACCESS)
    for line in _shown(found):
        typer.echo(line)


@app.command("list")
def list_users(config: ConfigOption = None, controllers: ControllersOption = None) -> None:
    """The users' names."""

    async def found(controller: Any) -> Sequence[Any]:
        return list(controller.users())

    from gateway.domain.access_settings import ACCESS  # noqa: PLC0415

    for user in ask(config, controllers, found):
        rights = [name for name, held in user.rights.items() if held is True]
        rights += ["rules"] if ACCESS in user.rights else []
        typer.echo(f"{user.name} ({', '.join(rights)})" if rights else user.name)


@app.command("remove")
def remove_user(
    name: Annotated[str, typer.Argument()], config: ConfigOption = None, controllers: ControllersOption = None
) -> None:
    """Remove a user on all proxies and close the user's connections."""
    from store.base.process_errors import ConfigError  # noqa: PLC0415

    async def change(controller: Any) -> None:
        if await _known(controller, name) is None:
            raise ConfigError(f"there is no user {name}")
        await controller.do(DeleteUser(name=name))

    ask(config, controllers, change)
    typer.echo(f"user {name} is removed")


async def _known(controller: Any, name: str) -> Any:
    """Returns a user, None where there is none, after all commands acknowledged before, whichever controller is asked.

    A controller that is behind might else answer with an older user, without its rules perhaps.
    """
    await controller.barrier()
    return controller.user(name)


def rules_of(
    allow: Sequence[str] | None, deny: Sequence[str] | None, otherwise: str | None
) -> Mapping[str, Any] | None:
    """Returns the rules that options say, as a user's rights hold them; None for none. Raises `ConfigError`."""
    from gateway.domain.access_settings import OwnAccess, read_permission, rights_of  # noqa: PLC0415
    from store.base.process_errors import ConfigError  # noqa: PLC0415

    if not allow and not deny and otherwise is None:
        return None
    default: Literal["allow", "deny"] = "deny" if allow or not deny else "allow"
    if otherwise is not None:
        if otherwise not in ("allow", "deny"):
            raise ConfigError(f"--otherwise: {otherwise!r} is neither allow nor deny")
        default = "allow" if otherwise == "allow" else "deny"
    try:
        rules = [read_permission("allow", one) for one in allow or ()] + [
            read_permission("deny", one) for one in deny or ()
        ]
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return rights_of(OwnAccess(otherwise=default, rules=tuple(rules)))


def _shown(rules: Any) -> Sequence[str]:
    """Rules as options say them."""
    if rules is None:
        return ["no rules of its own"]
    lines = [
        f"--{one['effect']} {','.join(one['actions'])}:{pattern}"
        for one in rules["rules"]
        for pattern in one["filters"]
    ]
    for one in rules.get("vhosts", ()):
        words = [f"{name} {one[name]!r}" for name in ("configure", "write", "read")]
        lines.append(f"vhost {one['vhost']!r}: {', '.join(words)}")
    return [*lines, f"--otherwise {rules['otherwise']}"]
