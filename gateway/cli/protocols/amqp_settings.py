"""`headgate amqp policies`, `set-policy` and `clear-policy`: settings that operators change while a gateway runs."""

from collections.abc import Sequence
from typing import Annotated

import typer

from gateway.cli.protocols.amqp_listing import add_listing, remote_amqp, table_of, table_text
from gateway.cli.remote.options import at_admin_port
from gateway.domain.vhosts import DEFAULT_VHOST
from gateway.ops.amqp_report import ClearPolicy, PolicyReport
from gateway.remote.amqp import RemoteAmqp

InVhostOption = Annotated[str, typer.Option("--vhost", "-p", help="The virtual host that it is for.")]
OperatorOption = Annotated[
    bool, typer.Option("--operator", help="An operator's policy: limits, whatever users declare.")
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    add_listing(
        app,
        "policies",
        "List the policies, those of the configuration included.",
        RemoteAmqp.policies,
        columns=("vhost", "name", "pattern", "apply to", "definition", "priority", "kind"),
        row=_policy_row,
        numbers=("priority",),
    )
    app.command("set-policy")(set_policy)
    app.command("clear-policy")(clear_policy)


def _policy_row(one: PolicyReport) -> Sequence[str]:
    kind = "operator's" if one.operator else "user's"
    kind += ", configured" if one.configured else ""
    return one.vhost, one.name, one.pattern, one.apply_to, table_text(one.definition), str(one.priority), kind


@at_admin_port
def set_policy(
    name: Annotated[str, typer.Argument(help="The name; the policy of this name is replaced.")],
    pattern: Annotated[str, typer.Argument(help="A regular expression that is found in the names that it is for.")],
    definition: Annotated[str, typer.Argument(help='JSON, such as {"max-length": 1000, "overflow": "drop-head"}.')],
    *,
    at: str,
    vhost: InVhostOption = DEFAULT_VHOST,
    apply_to: Annotated[str, typer.Option("--apply-to", help="queues, streams, exchanges, all ...")] = "all",
    priority: Annotated[int, typer.Option("--priority", help="Of several that match, the highest applies alone.")] = 0,
    operator: OperatorOption = False,
) -> None:
    """Set a policy for the queues and exchanges whose names match, those that are there and those that come."""
    policy = PolicyReport(
        vhost=vhost,
        name=name,
        pattern=pattern,
        apply_to=apply_to,
        definition=table_of(definition),
        priority=priority,
        operator=operator,
    )
    with remote_amqp(at) as amqp:
        amqp.set_policy(policy)
    typer.echo(f"{_kind(operator=operator)} {name} is set")


@at_admin_port
def clear_policy(
    name: Annotated[str, typer.Argument(help="The name.")],
    *,
    at: str,
    vhost: InVhostOption = DEFAULT_VHOST,
    operator: OperatorOption = False,
) -> None:
    """Remove a policy that was set. It no longer applies."""
    with remote_amqp(at) as amqp:
        amqp.clear_policy(ClearPolicy(vhost=vhost, name=name, operator=operator))
    typer.echo(f"{_kind(operator=operator)} {name} is removed")


def _kind(*, operator: bool) -> str:
    return "operator policy" if operator else "policy"
