"""Addresses in parts, as in the Secrets of operators and managed servers."""

from urllib.parse import unquote, urlsplit

import pytest

from tiercel.queues.broker.address import Address
from tiercel.workers.config import Settings
from tiercel.workers.errors import ConfigError

pytestmark = pytest.mark.usefixtures("folder")

ODD = "p@ss/w:r%d'\"?#"


def given(monkeypatch, **values):
    for name, value in values.items():
        monkeypatch.setenv(f"TIERCEL_{name.upper()}", value)


def refused(**options):
    with pytest.raises(ConfigError) as error:
        Settings.load(**options)
    line = str(error.value)
    assert "\n" not in line
    assert ODD not in line
    return line


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ({"amqp_host": "rabbit"}, "amqp://rabbit"),
        ({"amqp_host": "rabbit", "amqp_port": "5673"}, "amqp://rabbit:5673"),
        ({"amqp_host": "rabbit", "amqp_port": "5671"}, "amqps://rabbit:5671"),
        ({"amqp_host": "rabbit", "amqp_port": "5671", "amqp_tls": "no"}, "amqp://rabbit:5671"),
        ({"amqp_host": "a, b", "amqp_port": "1"}, "amqp://a:1,b:1"),
        ({"amqp_host": "::1", "amqp_vhost": "/"}, "amqp://[::1]/%2F"),
        ({"amqp_host": "a", "amqp_vhost": "a/b"}, "amqp://a/a%2Fb"),
        ({"amqp_host": "a", "amqp_ca": "/tls/ca.crt"}, "amqps://a/?cafile=/tls/ca.crt"),
        (
            {"amqp_host": "a", "amqp_ca": "/ca", "amqp_cert": "/crt", "amqp_key": "/a b"},
            "amqps://a/?cafile=/ca&certfile=/crt&keyfile=/a%20b",
        ),
        (
            {"redis_host": "a,b", "redis_cert": "/crt", "redis_key": "/key"},
            "rediss://a/?ssl_certfile=/crt&ssl_keyfile=/key,rediss://b/?ssl_certfile=/crt&ssl_keyfile=/key",
        ),
        ({"redis_host": "redis"}, "redis://redis"),
        ({"redis_host": "redis", "redis_database": "3"}, "redis://redis/3"),
        ({"redis_host": "a,b", "redis_port": "1"}, "redis://a:1,redis://b:1"),
        (
            {"redis_host": "r", "redis_tls": "true", "redis_port": "6380", "redis_ca": "/ca"},
            "rediss://r:6380/?ssl_ca_certs=/ca",
        ),
        ({"management_host": "rabbit"}, "http://rabbit:15672"),
        ({"management_host": "rabbit", "management_tls": "true"}, "https://rabbit:15671"),
        ({"management_host": "rabbit", "management_port": "80"}, "http://rabbit:80"),
    ],
)
def test_parts_are_put_together(parts, whole, monkeypatch):
    given(monkeypatch, **parts)
    name = next(iter(parts)).partition("_")[0]
    assert getattr(Settings.load(), name) == whole


def test_a_login_keeps_each_of_its_characters(monkeypatch):
    given(monkeypatch, amqp_host="rabbit", amqp_user="a:b", amqp_password=ODD, amqp_vhost=ODD)
    given(monkeypatch, redis_host="redis", redis_user="acl@user", redis_password=ODD)
    given(monkeypatch, management_host="rabbit", management_user="w", management_password=ODD)
    settings = Settings.load()
    address = Address.parse(settings.amqp)
    assert (address.user, address.password, address.vhost) == ("a:b", ODD, ODD)
    for url in (*settings.redis_urls, settings.management):
        assert unquote(urlsplit(url).password) == ODD
    assert urlsplit(settings.redis).username == "acl%40user"
    assert ODD not in repr(settings)


@pytest.mark.parametrize("part", ["amqp_host", "amqp_port", "amqp_vhost", "amqp_tls", "amqp_ca"])
def test_a_whole_address_and_a_part_in_one_place_are_one_line(part, monkeypatch):
    value = {"amqp_port": "5672", "amqp_tls": "true"}.get(part, "x")
    given(monkeypatch, amqp="amqp://rabbit", amqp_password=ODD, **{part: value})
    assert refused() == (
        f"TIERCEL_AMQP: this is the whole address, and TIERCEL_{part.upper()} is a part of one: "
        "give one of the two"
    )


def test_a_part_without_a_host_is_one_line(monkeypatch):
    given(monkeypatch, redis_port="6379", redis_password=ODD)
    assert refused() == "TIERCEL_REDIS: there is TIERCEL_REDIS_PORT, but no TIERCEL_REDIS_HOST"


@pytest.mark.parametrize("file", ["ca", "cert"])
@pytest.mark.parametrize("name", ["amqp", "redis"])
def test_a_certificate_without_tls_is_not_ignored(name, file, monkeypatch):
    given(monkeypatch, **{f"{name}_host": "a", f"{name}_{file}": "/pem", f"{name}_tls": "no"})
    here = f"TIERCEL_{name.upper()}"
    assert refused().startswith(f"{here}: there is {here}_{file.upper()}, but {here}_TLS is false")


def test_a_key_without_its_certificate_is_one_line(monkeypatch):
    given(monkeypatch, redis_host="a", redis_key="/key")
    assert refused() == "TIERCEL_REDIS: there is TIERCEL_REDIS_KEY, but no TIERCEL_REDIS_CERT"


@pytest.mark.parametrize("host", ["amqp://rabbit", "rabbit:5672", "me@rabbit", "a b", "a,,b"])
def test_a_host_is_no_more_than_a_host(host, monkeypatch):
    given(monkeypatch, amqp_host=host)
    assert refused().startswith("TIERCEL_AMQP_HOST: must be the name or the IP address of a host")


@pytest.mark.parametrize("port", ["0", "65536", "many"])
def test_a_port_is_a_number_of_a_port(port, monkeypatch):
    given(monkeypatch, redis_host="redis", redis_port=port)
    assert refused().startswith("TIERCEL_REDIS_PORT: Input should be ")


def test_an_address_of_an_earlier_place_overrides_one_of_a_later_place_in_either_form(
    folder, monkeypatch
):
    """For example, a variable for one command overrides the project's file."""
    (folder / "tiercel.toml").write_text('amqp = "amqp://of-file"\nredis_host = "of-file"')
    given(monkeypatch, amqp_host="of-variable", redis="redis://of-variable")
    settings = Settings.load()
    assert (settings.amqp, settings.redis) == ("amqp://of-variable", "redis://of-variable")
    assert Settings.load(amqp="amqp://of-option").amqp == "amqp://of-option"


def test_parts_may_come_from_several_places(folder, monkeypatch):
    (folder / "tiercel.toml").write_text('amqp_vhost = "orders"\namqp_port = 5671')
    (folder / ".env").write_text("TIERCEL_AMQP_PASSWORD=p@w\nTIERCEL_AMQP_USER=ops")
    given(monkeypatch, amqp_host="rabbit")
    assert Settings.load().amqp == "amqps://ops:p%40w@rabbit:5671/orders"


def test_a_child_of_a_process_with_parts_has_the_whole_address(folder, monkeypatch):
    (folder / "tiercel.toml").write_text('redis_host = "redis"')
    given(monkeypatch, amqp_host="rabbit", amqp_password=ODD)
    settings = Settings.load()
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)
    child = Settings.load()
    assert (child.amqp, child.redis) == (settings.amqp, settings.redis)


def test_the_port_that_kubernetes_makes_of_a_service_is_no_part(monkeypatch):
    """For example, of a Service named tiercel-redis, in a pod with enableServiceLinks."""
    given(monkeypatch, redis_port="tcp://10.0.0.1:6379", redis="redis://redis")
    assert Settings.load().redis == "redis://redis"
    monkeypatch.delenv("TIERCEL_REDIS")
    assert Settings.load().redis is None
