"""Names of virtual hosts: none of one is a name of another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.vhosts import (
    check_vhost,
    exchange_address,
    in_vhost,
    queue_address,
    said,
    split_name,
    vhost_of_address,
)
from gateway.port.queues import address_of, exchange_root, exchange_root_of, routing_of

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="%", exclude_categories=["Cc"]), max_size=12)
VHOST = st.sampled_from(["/", "shop", "a/b", "+", "#", "amq.vhost"]) | TEXT.filter(bool)
NAME = st.sampled_from(["", "q", "a/b", "amq.topic", "amq.vhost/shop/q", "amq.vhost///"]) | TEXT


@given(VHOST, NAME)
def test_a_name_is_found_again(vhost, name):
    assert split_name(in_vhost(vhost, name)) == (vhost, name)


@given(VHOST, NAME, VHOST, NAME)
def test_no_two_things_have_one_name(vhost1, name1, vhost2, name2):
    same = (vhost1, name1) == (vhost2, name2)
    assert (in_vhost(vhost1, name1) == in_vhost(vhost2, name2)) == same


@pytest.mark.slow
@given(VHOST, NAME, TEXT)
def test_addresses_are_routed_back(vhost, exchange, key):
    address = address_of(in_vhost(vhost, exchange), key)
    assert routing_of(address) == (in_vhost(vhost, exchange), key)
    assert vhost_of_address(address) == vhost
    if address.startswith("$"):
        assert exchange_root_of(address) == exchange_root(in_vhost(vhost, exchange))


def test_names_of_the_default_vhost_are_as_they_were():
    assert in_vhost("/", "orders") == "orders"
    assert address_of("orders", "eu.new") == "$amqp/orders/eu/new"
    assert address_of("amq.topic", "eu.new") == "eu/new"
    assert (queue_address("q"), queue_address("amq.gen-x")) == ("$queue/q", "$queue/amq.gen/x")
    assert exchange_address("x") == "$exchange/x"


def test_all_of_another_vhost_is_below_one_level():
    def name(one):
        return in_vhost("shop", one)

    assert address_of(name("orders"), "eu.new") == "$vhost/shop/amqp/orders/eu/new"
    assert address_of(name("amq.topic"), "eu.new") == "$vhost/shop/amqp/amq.topic/eu/new"
    assert (queue_address(name("q")), queue_address(name(""))) == ("$vhost/shop/queue/q", "$vhost/shop/queue/amq.gen/")
    assert exchange_address(name("x")) == "$vhost/shop/exchange/x"
    assert said(name("x")) == "'x' in vhost 'shop'"


@pytest.mark.parametrize("name", ["", "a%b", "a\0b", "a\nb", "x" * 129])
def test_a_vhost_cannot_be_called_anything(name):
    with pytest.raises(ValueError, match="the name of a virtual host"):
        check_vhost(name)


@pytest.mark.parametrize("address", ["$vhost", "$vhost/shop", "$vhost/shop/amqp/x", "$vhost/shop/queue/q/k", "$amqp/x"])
def test_what_names_no_exchange_is_nobodys_address(address):
    assert exchange_root_of(address) is None
