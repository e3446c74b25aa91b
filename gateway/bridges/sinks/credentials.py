"""The credentials of subscriptions as user name and password, which brokers ask for."""

from gateway.port.push import SubscriptionSpec


def login_of(spec: SubscriptionSpec) -> tuple[str | None, str | None]:
    """Returns user name and password, None for each that there is none of; an access token is a password."""
    credential = spec.sinkcredential
    if credential is None:
        return None, None
    if credential.credentialtype == "PLAIN":
        return credential.identifier, credential.secret
    return credential.identifier or "", credential.accesstoken
