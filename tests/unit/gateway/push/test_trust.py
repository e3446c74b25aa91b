"""The authorities that may vouch for sinks: the system's, and those of a file that the configuration names."""

import ssl

import pytest

from gateway.push.settings import SubscriptionsConfig, subscription_mistakes
from gateway.push.trust import SinkTrust, refused_certificate
from tests.support.process.certificates import Authority


def names(context: ssl.SSLContext) -> set[object]:
    return {certificate["serialNumber"] for certificate in context.get_ca_certs()}


def test_a_files_authorities_come_besides_the_systems(tmp_path):
    authority = Authority(tmp_path)
    authority.file.write_text(f"# Grüße\n{authority.file.read_text()}")
    alone, both = SinkTrust(None), SinkTrust(authority.file)
    authority.file.unlink()
    for kind in ("http", "brokers"):
        ours = getattr(both, kind)
        assert ours is getattr(both, kind)
        assert len(names(ours) - names(getattr(alone, kind))) == 1
        assert names(getattr(alone, kind)) <= names(ours)
        assert (ours.verify_mode, ours.check_hostname) == (ssl.CERT_REQUIRED, True)
        assert ours.minimum_version == ssl.TLSVersion.TLSv1_2
    assert both.http is not both.brokers, "HTTP's client adds protocols to its context"


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot be read"), (b"", "holds no certificates"), (b"x", "holds no certificates")]
)
def test_a_file_that_cannot_be_used_is_a_mistake_of_the_configuration(tmp_path, content, words):
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    [(key, mistake)] = subscription_mistakes(SubscriptionsConfig(ca_file=file))
    assert (key, words in mistake, str(file) in mistake) == ("subscriptions.ca_file", True, True)


def test_a_good_file_is_no_mistake(tmp_path):
    assert list(subscription_mistakes(SubscriptionsConfig(ca_file=Authority(tmp_path).file))) == []


def test_a_refused_certificate_is_found_below_other_errors():
    assert refused_certificate(OSError("x")) == ""
    refused = ssl.SSLCertVerificationError(1, "certificate verify failed")
    refused.verify_message = "Hostname mismatch"
    outer = ConnectionError("no")
    outer.__cause__ = refused
    assert refused_certificate(outer).startswith("the sink's certificate is refused: Hostname mismatch;")
    outer.__cause__ = outer  # a circle
    assert refused_certificate(outer) == ""
