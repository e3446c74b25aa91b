"""The options: each says what it means, and its default is allowed."""

import msgspec
import pytest

from adapters.mqtt.messages.options import Options
from gateway.base.config_reader import describe


@pytest.mark.parametrize("field", msgspec.structs.fields(Options), ids=lambda field: field.name)
def test_every_option_says_what_it_means(field):
    assert describe(field)


def test_the_defaults_are_within_the_limits():
    assert msgspec.convert(msgspec.to_builtins(Options()), Options) == Options()


@pytest.mark.parametrize("expiry_s", [-1, 4_294_967_295])
def test_an_expiry_that_no_client_could_be_told(expiry_s):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"session_expiry_max_s": expiry_s}, Options)
    assert msgspec.convert({"session_expiry_max_s": None}, Options).session_expiry_max_s is None
