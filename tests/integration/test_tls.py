"""``amqps://`` and ``rediss://``: only a fully valid certificate is accepted, and passwords stay
hidden.
"""

from __future__ import annotations

import http.server
import logging
import ssl
import threading
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.broker import Desk, add_user, put, ready, unique
from tests.support.certificates import (
    HOST,
    Certificate,
    make_ca,
    make_certificate,
    with_password,
)
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until
from tiercel import RedisRefusedError, RedisUnavailableError
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis.errors import translated
from tiercel.queues.broker import link
from tiercel.queues.broker.address import Address
from tiercel.queues.broker.declare import WorkQueue, declare_queue
from tiercel.queues.broker.management import ManagementSilentError, look_at_interface
from tiercel.queues.errors import AddressError, BrokerRefusedError, BrokerUnavailableError
from tiercel.queues.publishing.publisher import Publisher

pytestmark = pytest.mark.newest


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Certificate:
    return make_certificate(make_ca(tmp_path_factory.mktemp("tls") / "ours"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory) -> Path:
    """An authority that did not issue the servers' certificate."""
    return make_ca(tmp_path_factory.mktemp("tls") / "stranger")


@pytest.fixture(scope="module")
def renewed(tmp_path_factory) -> Certificate:
    """A certificate of another authority, for the same server."""
    return make_certificate(make_ca(tmp_path_factory.mktemp("tls") / "renewed"))


@pytest.fixture(scope="module")
def rabbitmq(servers, certificate):
    with servers.rabbitmq(certificate) as running:
        yield running


@pytest.fixture(scope="module")
def amqps(rabbitmq):
    return rabbitmq.tls_url


@pytest.fixture(scope="module")
def demanding(servers, renewed):
    """A broker with the renewed certificate, which demands one of its clients too."""
    with servers.rabbitmq(replace(renewed, of_clients_too=True)) as running:
        yield running


@pytest.fixture(scope="module")
def rediss(servers, certificate):
    with servers.redis(certificate) as running:
        yield running.tls_url


@pytest.fixture
def no_password(caplog, capfd, amqps, rediss):
    """No log record at any level, and no output, may contain a password."""
    caplog.set_level(logging.DEBUG)
    yield
    printed = "".join(capfd.readouterr())
    for url in (amqps, rediss):
        assert urlsplit(url).password not in caplog.text + printed


def own(certificate: Certificate) -> tuple[Path, Path]:
    """Return the files of a certificate and its key."""
    return certificate.ca.with_name("server.pem"), certificate.ca.with_name("server.key")


def by_address(url: str) -> str:
    """Return the URL of the same server with a name that its certificate lacks."""
    return url.replace(f"@{HOST}:", "@127.0.0.1:")


def assert_tells(error: BaseException, url: str, *words: str) -> None:
    for word in words:
        assert word in str(error)
    assert "\n" not in str(error)
    while error is not None:
        assert urlsplit(url).password not in str(error)
        error = error.__cause__ or error.__context__


def test_messages_come_and_go_over_tls(amqps, certificate, no_password):
    url = f"{amqps}?cafile={certificate.ca}"
    queue = unique()
    declare_queue(url, WorkQueue(name=queue))
    with Publisher(url) as publisher:
        publisher.publish(queue, [b"a", bytes(1_000_000)])
    with Desk(url, queue) as desk:
        for delivery in desk.take(2):
            desk.ack(delivery)
        desk.wait_for("acked_to_broker", 2)
    assert ready(url, queue) == 0


def test_a_broker_that_demands_a_certificate_of_its_clients_gets_one(demanding, renewed):
    url = f"{demanding.tls_url}?cafile={renewed.ca}"
    queue = WorkQueue(name=unique())
    with pytest.raises((BrokerUnavailableError, BrokerRefusedError), match="certfile"):
        declare_queue(url, queue)
    url += "&certfile={}&keyfile={}".format(*own(renewed))
    declare_queue(url, queue)
    with Publisher(url) as publisher:
        publisher.publish(queue.name, [b"a"])
    assert ready(url, queue.name) == 1


def test_renewed_certificates_need_no_restart(
    rabbitmq, demanding, certificate, renewed, tmp_path, monkeypatch
):
    monkeypatch.setattr(link, "_STABLE_S", 0)
    files = [tmp_path / name for name in ("ca.pem", "client.pem", "client.key")]

    def keep(these: Certificate) -> None:
        for file, one in zip(files, (these.ca, *own(these)), strict=True):
            file.write_bytes(one.read_bytes())

    keep(certificate)
    queue = unique()
    for server in (rabbitmq, demanding):
        add_user(server, "mover", configure=".*")
        declare_queue(server.url, WorkQueue(name=queue))
    with Proxy(rabbitmq.tls_url) as proxy:
        port = urlsplit(proxy.url).port
        options = "cafile={}&certfile={}&keyfile={}".format(*files)
        with Desk(f"amqps://mover:mover@{HOST}:{port}?{options}", queue) as desk:
            put(rabbitmq.url, queue, b"before")
            desk.ack(desk.next())
            proxy.retarget(demanding.tls_url)
            wait_until(lambda: desk.consumer._link._refusals > 5, 60, "refusals")
            assert desk.consumer.error() is None
            keep(renewed)
            put(demanding.url, queue, b"after")
            assert desk.next().body == b"after"


def test_redis_works_over_tls(rediss, certificate, no_password):
    metrics = RedisMetrics(f"{rediss}?ssl_ca_certs={certificate.ca}", unique("metrics"))
    metrics.add("split", 1, {"executed": 2})
    assert metrics.totals() == {"split": {1: {"executed": 2}}}
    metrics.close()


def test_an_authority_of_the_system_needs_no_option(amqps, rediss, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.ca))
    declare_queue(amqps, WorkQueue(name=unique()))
    with connect(rediss) as client:
        assert client.ping()


@pytest.mark.parametrize("option", ["", "?cafile={stranger}"])
def test_rabbitmq_with_a_certificate_of_nobody_we_know_is_refused(
    amqps, stranger, option, no_password
):
    url = amqps + option.format(stranger=stranger)
    with pytest.raises(BrokerRefusedError) as caught:
        declare_queue(url, WorkQueue(name=unique()))
    assert_tells(caught.value, url, "is not trusted", "?cafile=/path/to/ca.pem")
    with Desk(url, unique()) as desk:
        assert_tells(wait_until(desk.consumer.error), url, "is not trusted")


@pytest.mark.parametrize("option", ["", "?ssl_ca_certs={stranger}"])
def test_redis_with_a_certificate_of_nobody_we_know_is_refused(
    rediss, stranger, option, no_password
):
    url = rediss + option.format(stranger=stranger)
    metrics = RedisMetrics(url, "t")
    with pytest.raises(RedisRefusedError) as caught:
        metrics.totals()
    assert_tells(caught.value, url, "certificate verify failed", "?ssl_ca_certs=/path/to/ca.pem")
    metrics.close()


def test_rabbitmq_under_a_name_that_is_not_in_its_certificate_is_refused(
    amqps, certificate, no_password
):
    url = by_address(f"{amqps}?cafile={certificate.ca}")
    with pytest.raises(BrokerRefusedError) as caught:
        declare_queue(url, WorkQueue(name=unique()))
    assert_tells(caught.value, url, "127.0.0.1", "correct the host name")


def test_redis_under_a_name_that_is_not_in_its_certificate_is_refused(
    rediss, certificate, no_password
):
    url = by_address(f"{rediss}?ssl_ca_certs={certificate.ca}")
    with (
        connect(url) as client,
        pytest.raises(RedisRefusedError) as caught,
        translated("look", client),
    ):
        client.ping()
    assert_tells(caught.value, url, "127.0.0.1", "correct the host name")


@pytest.fixture
def http_api(certificate):
    """The address of an HTTPS server that demands a certificate, and answers 501."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*own(certificate))
    context.load_verify_locations(certificate.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    with http.server.HTTPServer((HOST, 0), http.server.BaseHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://{HOST}:{server.server_port}"
        server.shutdown()


def test_an_http_api_whose_authority_nobody_knows_says_where_to_name_it(http_api):
    with pytest.raises(ManagementSilentError, match=r"is not trusted.*\?cafile=.*SSL_CERT_FILE"):
        look_at_interface(http_api, Address.parse("amqp://host"))


def test_an_http_api_gets_the_certificates_of_the_amqps_address(http_api, certificate):
    options = "cafile={}&certfile={}&keyfile={}".format(certificate.ca, *own(certificate))
    with pytest.raises(ManagementSilentError, match="answers 501"):
        look_at_interface(http_api, Address.parse(f"amqps://host?{options}"))


def test_tls_to_a_port_without_it_says_to_check_that(amqp_url, redis_url, monkeypatch):
    # TLS adds five seconds to the wait for an answer.
    monkeypatch.setattr("tiercel.queues.broker.address._CONNECT_TIMEOUT_S", 1.0)
    with pytest.raises((BrokerRefusedError, BrokerUnavailableError), match="amqp or amqps"):
        declare_queue(amqp_url.replace("amqp://", "amqps://"), WorkQueue(name="q"))
    url = redis_url.replace("redis://", "rediss://")
    with (
        connect(url) as client,
        pytest.raises(RedisUnavailableError, match="redis:// or rediss://"),
        translated("look", client),
    ):
        client.ping()


def test_no_tls_to_a_port_with_it_says_to_check_that(amqps):
    with pytest.raises((BrokerRefusedError, BrokerUnavailableError), match="amqp or amqps"):
        declare_queue(amqps.replace("amqps://", "amqp://"), WorkQueue(name="q"))


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_an_authority_that_cannot_be_read_is_named_before_anything_is_tried(tmp_path, content):
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(AddressError, match=str(file)):
        declare_queue(f"amqps://user:hush@127.0.0.1:1?cafile={file}", WorkQueue(name="q"))
    with pytest.raises(RedisRefusedError, match=str(file)) as caught:
        connect(f"rediss://:hush@127.0.0.1:1?ssl_ca_certs={file}")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("lacking", ["certfile", "keyfile", "password"])
def test_a_client_certificate_that_cannot_be_read_is_named_before_anything_is_tried(
    tmp_path, certificate, lacking
):
    files = dict(zip(("certfile", "keyfile"), own(certificate), strict=True))
    if lacking == "password":
        files["keyfile"] = with_password(files["keyfile"], tmp_path / "locked.key")
    else:
        files[lacking] = tmp_path / "none.pem"
    options = "&".join(f"{name}={file}" for name, file in files.items())
    with pytest.raises(AddressError, match=r"must have no password") as caught:
        declare_queue(f"amqps://user:hush@127.0.0.1:1?{options}", WorkQueue(name="q"))
    assert str(files["keyfile"]) in str(caught.value)


@pytest.mark.parametrize("option", ["ssl_ca_cert=/x", "ssl_cert_reqs=maybe"])
def test_a_wrong_option_in_the_redis_url_is_named_before_anything_is_tried(option):
    with pytest.raises(
        RedisRefusedError, match=r"option in the Redis URL.*(ssl_ca_cert|maybe)"
    ) as caught:
        connect(f"rediss://:hush@127.0.0.1:1?{option}")
    assert "hush" not in str(caught.value)


def test_no_password_is_on_a_command_line(amqps, rediss, certificate):
    for url in (amqps, rediss):
        for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                assert urlsplit(url).password.encode() not in cmdline.read_bytes()
            except OSError:
                continue
