"""AMQP URLs."""

import ssl
from contextlib import suppress
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercel.queues.broker.address import Address
from tiercel.queues.errors import AddressError


def test_a_full_url_is_read():
    address = Address.parse("amqp://me:p%40ss@one:5673,two,[::1]:5674/my%2Fhost?heartbeat=7")
    assert address.hosts == (("one", 5673), ("two", 5672), ("::1", 5674))
    assert (address.user, address.password, address.vhost, address.heartbeat_s) == (
        "me",
        "p@ss",
        "my/host",
        7,
    )


def test_what_is_left_out_is_rabbitmqs_default():
    address = Address.parse("amqp://localhost")
    assert (address.hosts, address.user, address.password, address.vhost) == (
        (("localhost", 5672),),
        "guest",
        "guest",
        "/",
    )
    assert Address.parse("amqp://localhost/").vhost == "/"
    assert Address.parse("AMQPS://localhost").hosts == (("localhost", 5671),)


def test_it_is_shown_without_the_password():
    address = Address.parse("amqp://me:hush@one,two:1/v")
    assert str(address) == "amqp://me@one:5672,two:1/v"
    assert "hush" not in repr(address)


def test_pika_gets_one_set_of_parameters_a_host():
    one, two = Address.parse("amqp://me:hush@one,two:1/v?heartbeat=9").parameters("a name")
    assert (one.host, one.port, two.host, two.port) == ("one", 5672, "two", 1)
    assert (one.virtual_host, one.heartbeat, one.credentials.username) == ("v", 9, "me")
    assert one.client_properties["connection_name"] == "a name"


def test_tls_checks_the_certificate_and_the_host_name():
    (parameters,) = Address.parse("amqps://host").parameters("test")
    context = parameters.ssl_options.context
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert parameters.ssl_options.server_hostname == "host"


def test_a_ca_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(AddressError, match=r"nothing\.pem"):
        Address.parse(f"amqps://host?cafile={tmp_path}/nothing.pem").parameters("test")


@pytest.mark.parametrize(
    "url",
    [
        "", "localhost", "http://localhost", "redis://me:hush@host", "amqp://", "amqp://me:hush@",
        "amqp://host:port",
        "amqp://me:hush@host:0", "amqp://me:hush@host:70000", "amqp://me:hush@host,,",
        "amqp://me:hu/sh@host", "amqp://me:hu?sh@host",
        "amqp://me:hu#sh@host", "amqp://me:hush", "amqp://me:hush@host?heartbeat=soon",
        "amqp://me:hush@host?heartbeat=99999",
        "amqp://me:hu@sh/hush:1@host", "amqp://me:hu@sh?hush@host", "amqp://me:hu@sh#hush@host/v",
        "amqp://me:hush@host?colour=red", "amqp://me:hush@[::1", "hush@host",
    ],
)  # fmt: skip
def test_a_bad_url_is_one_clear_line_without_the_password(url):
    with pytest.raises(AddressError) as caught:
        Address.parse(url)
    message = str(caught.value)
    assert "hush" not in message
    assert "sh@" not in message
    assert "\n" not in message
    assert "amqp" in message.lower()


@pytest.mark.parametrize("character", "/?#")
def test_a_password_that_is_not_percent_encoded_is_refused_with_the_remedy(character):
    for password in (f"hu{character}sh", f"h@u{character}sh", f"hu{character}sh@"):
        with pytest.raises(AddressError, match="percent-encode the password") as caught:
            Address.parse(f"amqp://ops:{password}@host:5672/vhost?heartbeat=10")
        assert "sh" not in str(caught.value)


@given(st.text())
def test_any_text_is_an_address_or_an_address_error(text):
    for url in (text, f"amqp://{text}", f"amqp://me:hush@{text}"):
        with suppress(AddressError):
            Address.parse(url).parameters("test")


@given(st.text(min_size=1), st.text(min_size=1))
def test_any_password_can_be_written(user, password):
    try:
        user.encode(), password.encode()
    except UnicodeEncodeError:
        return
    address = Address.parse(f"amqp://{quote(user, safe='')}:{quote(password, safe='')}@host/")
    assert (address.user, address.password) == (user, password)


@pytest.mark.parametrize("option", ["cafile", "certfile", "keyfile"])
def test_a_file_for_tls_without_tls_is_not_ignored(option):
    with pytest.raises(AddressError, match=f"{option}, but no TLS: begin it with amqps"):
        Address.parse(f"amqp://rabbit/?{option}=/file.pem")


def test_a_key_without_its_certificate_is_not_ignored():
    with pytest.raises(AddressError, match="keyfile without its certfile: name both"):
        Address.parse("amqps://rabbit/?keyfile=/client.key")
