"""A node's certificate, as other nodes judge it."""

import pytest
from cryptography import x509

from store.base.expiry import expiry_warnings
from store.rpc.credentials import CredentialFiles
from tests.support.process.certificates import Authority, node_files

DAY_S = 86_400


def test_a_certificate_that_others_would_refuse_is_known_before_they_do(tmp_path):
    """A node with an expired one started, was refused by all others, and logged nothing."""
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs", "other")
    sound = node_files(ours, "n1.example")
    for reached_at in (None, "n1.example"):
        assert sound.refusal(reached_at) == ""
    assert "n2.example" in sound.refusal("n2.example")
    expired = node_files(ours, "n1.example", days=(-9, -1))
    for reached_at in (None, "n1.example"):
        assert expired.refusal(reached_at) == "certificate has expired"
    assert node_files(ours, "n1.example", days=(1, 2)).refusal() == "certificate is not yet valid"
    foreign = node_files(theirs, "n1.example", ca_file=ours.file)
    assert foreign.refusal("n1.example") == "unable to get local issuer certificate"
    assert foreign.refusal() == ""  # a proxy's peers may trust an authority that it does not
    assert "is no name of a host" in sound.refusal(f"{'n' * 64}.example")


@pytest.mark.parametrize("server", [False, True])
def test_a_certificate_for_one_purpose_is_enough_where_a_node_is_not_both(tmp_path, server):
    authority = Authority(tmp_path)
    issued = authority.issue("node", x509.DNSName("n1.example"), server=server)
    files = CredentialFiles(issued.cert_file, issued.key_file, authority.file)
    assert files.refusal() == ""
    assert "purpose" in files.refusal("n1.example")


def test_a_certificate_that_ends_soon_or_has_ended_is_a_warning(tmp_path):
    """A replica whose certificate had expired became master of a group, which stood still; /readyz said "ready"."""
    authority = Authority(tmp_path)
    credentials = node_files(authority, "n1.example", days=(-1, 20)).channel()
    end_s = int(authority.now.timestamp()) + 20 * DAY_S
    assert credentials.until_s == node_files(authority, "n1.example", days=(-1, 20)).server().until_s == end_s
    assert expiry_warnings(None, end_s) == expiry_warnings(credentials, end_s - 15 * DAY_S) == ()
    (soon,) = expiry_warnings(credentials, end_s - 13 * DAY_S)
    assert " UTC: restart this node with a renewed one before" in soon
    (expired,) = expiry_warnings(credentials, end_s)
    assert "has expired at " in expired
