"""Libraries log nothing about failures that tiercel reports itself."""

import logging
import socket
import threading

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError

from tiercel.spark_jobs.logs import formatters
from tiercel.spark_jobs.logs.formatters import hush_libraries
from tiercel.spark_jobs.tracing.spans import parent_in


@pytest.fixture
def hushed():
    before = {name: logging.getLogger(name).level for name in formatters.QUIET}
    hush_libraries()
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger().removeFilter(formatters._is_not_of_py4j)


@pytest.fixture
def dying_jvm():
    """Listen on a port that cuts each caller off, like a JVM that is killed in the middle of a
    call.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:

        def cut_off():
            while True:
                try:
                    caller, _ = server.accept()
                except OSError:
                    return
                caller.recv(1)
                caller.close()

        thread = threading.Thread(target=cut_off, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def call(port):
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        with pytest.raises(Py4JError):
            gateway.jvm.System.currentTimeMillis()
    finally:
        gateway.close()


def test_py4j_says_nothing_of_a_call_that_was_cut_off(hushed, dying_jvm, caplog):
    with caplog.at_level(logging.INFO):
        call(dying_jvm)
        logging.getLogger().info("of the user's own")
    assert caplog.messages == ["of the user's own"]


@pytest.mark.parametrize(
    "state", ["=", "A=1", "a=\n\x1b[2J", ",".join(f"a{n}=1" for n in range(40))]
)
def test_a_publisher_s_bad_tracestate_is_no_line_per_message(hushed, caplog, state):
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    found = parent_in({"traceparent": parent, "tracestate": state})
    assert found is not None
    assert found.state == ""
    assert not caplog.records
