"""``tiercel check`` on real servers: it names each fault by itself, and changes nothing."""

import json
import sys
import time
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from tests.support.broker import Desk, manage, plain_channel, set_policy, unique, version
from tests.support.presences import renewed
from tests.support.waiting import wait_until
from tiercel import BasicBolt, QueueSpout, TopologyBuilder, WorkQueue, declare_queue
from tiercel.acker.redis import clients
from tiercel.acker.redis.clients import connect
from tiercel.spark_jobs.state.redis_shard import StateKeys
from tiercel.workers import check
from tiercel.workers.cli.app import app
from tiercel.workers.control.contract import State
from tiercel.workers.control.presence import Holder, Lease, Presence, SpoutSeats
from tiercel.workers.control.redis_control import RedisControl, RedisPresences
from tiercel.workers.control.registry import Registry

NOWHERE = "127.0.0.1:9"
TOPOLOGY = """
from tiercel import BasicBolt, Config, QueueSink, QueueSpout, StatefulBolt, TopologyBuilder

class Count(StatefulBolt):
    def execute(self, tup, collector):
        pass

def topology():
    builder = TopologyBuilder({name!r}, Config({config}))
    builder.set_spout("orders", QueueSpout({name!r}{spout}))
    builder.set_bolt("work", {bolt}, config={{{overrides}}}).shuffle_grouping("orders")
    return builder.build()
"""


@pytest.fixture
def name():
    """The name of a topology, of its queue and of its module."""
    return unique("checked").replace("-", "_")


@pytest.fixture
def checked(name, amqp_url, redis_url, management_url, tmp_path, monkeypatch):
    """``checked(…)`` runs the command on a topology, and returns its faults: grade, subject, line.

    The exit code matches the worst fault.
    """
    monkeypatch.chdir(tmp_path)
    # Without a server of its own, the command checks those of a run on this machine.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    for variable in ("PYSPARK_PYTHON", "HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(variable, raising=False)
    servers = {"amqp": amqp_url, "redis": redis_url, "management": management_url}

    def run(config="", spout="", bolt="BasicBolt()", overrides="", topology=True, **other):
        given = {**servers, "master": "local[1]", **other}
        text = TOPOLOGY.format(
            name=name, config=config, spout=spout, bolt=bolt, overrides=overrides
        )
        (tmp_path / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
        words = [f"--{key}={value}" for key, value in given.items() if value]
        named = [f"{name}:topology"] if topology else []
        result = CliRunner().invoke(app, ["check", *named, "--json", *words])
        found = [json.loads(line) for line in result.stdout.splitlines()]
        faults = [tuple(each.values()) for each in found if each["grade"] != "ok"]
        grades = {grade for grade, _, _ in faults}
        assert result.exit_code == (2 if "error" in grades else 1 if grades else 0)
        assert found
        return faults

    return run


@pytest.fixture
def quick(monkeypatch):
    """Without starting Java, as intended."""
    monkeypatch.setattr(check, "check_versions", lambda: None)


pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def user(shared_rabbitmq, amqp_url):
    """``user(configure=…)`` is the address of a user with these rights, all by default."""

    def made(tags="", **rights):
        name = unique("user")
        manage(shared_rabbitmq, f"users/{name}", password=name, tags=tags)
        every = dict.fromkeys(("configure", "write", "read"), ".*")
        manage(shared_rabbitmq, f"permissions/%2F/{name}", **{**every, **rights})
        return f"amqp://{name}:{name}@{amqp_url.rpartition('@')[2]}"

    return made


def the(faults, grade, subject, *said):
    """Assert that this is the only fault."""
    assert len(faults) == 1, faults
    assert faults[0][:2] == (grade, subject)
    for each in said:
        assert each in faults[0][2]
    assert "\n" not in faults[0][2]


def place(url):
    return url.rpartition("@")[2].partition("/")[0]


# -- all is well -----------------------------------------------------------------------------------


def test_a_good_set_up_has_no_fault_and_is_as_it_was(checked, name, amqp_url, redis_url):
    assert checked(bolt="QueueSink('other')") == []
    with plain_channel(amqp_url) as channel, pytest.raises(Exception, match="NOT_FOUND"):
        channel.queue_declare(name, passive=True)
    with closing(connect(redis_url)) as client:
        assert not list(client.scan_iter(f"*{name}*"))


def test_a_queue_that_was_in_use_has_no_fault(checked, name, amqp_url):
    declare_queue(amqp_url, WorkQueue(name=name))
    assert checked() == []


def test_a_user_with_rights_on_its_own_queues_alone_has_no_fault(checked, name, user):
    own = rf"^({name}.*|amq\.default)$"
    address = user(configure=own, write=own, read=own, tags="monitoring")
    assert checked(amqp=address) == []


def test_the_rights_that_the_check_asks_for_are_enough_for_redis(checked, redis_url):
    with closing(connect(redis_url)) as client:
        name = unique("user")
        client.acl_setuser(
            name,
            enabled=True,
            passwords=["+pw"],
            keys=["tiercel:*"],
            commands=[
                "+eval",
                "+evalsha",
                *(f"+{call.split()[0].lower()}" for call in clients.CALLS),
            ],
        )
    for _ in range(3):
        assert checked(redis=f"redis://{name}:pw@{place(redis_url)}/0") == []


def test_addresses_in_parts_with_odd_characters_have_no_fault(
    checked, shared_rabbitmq, amqp_url, redis_url, monkeypatch
):
    """The parts come from a Secret of RabbitMQ's operator and from a managed Redis."""
    user = unique("parts")
    odd = "@/:%'\"?#"
    manage(shared_rabbitmq, f"users/{user}", password=odd, tags="monitoring")
    manage(shared_rabbitmq, f"permissions/%2F/{user}", configure=".*", write=".*", read=".*")
    with closing(connect(redis_url)) as client:
        given = {"passwords": [f"+{odd}"], "keys": ["*"], "channels": ["*"]}
        client.acl_setuser(user, enabled=True, categories=["+@all"], **given)
    for server, url in (("AMQP", amqp_url), ("REDIS", redis_url)):
        parts = {"HOST": urlsplit(url).hostname, "PORT": f"{urlsplit(url).port}"}
        for part, value in {**parts, "USER": user, "PASSWORD": odd}.items():
            monkeypatch.setenv(f"TIERCEL_{server}_{part}", value)
    assert checked(amqp="", redis="") == []


def test_without_a_server_there_is_nothing_to_complain_of(checked):
    assert checked(amqp="", redis="", management="") == []
    assert checked(amqp="", redis="", management="", topology=False) == []


# -- RabbitMQ --------------------------------------------------------------------------------------


def test_who_may_not_configure_needs_a_dead_letter_queue_that_exists(checked, name, user, amqp_url):
    reader = user(configure="^$", tags="monitoring")
    queue = WorkQueue(name=name)
    declare_queue(amqp_url, queue)
    found = partial(checked, amqp=reader, spout=", declare=False")
    later = ("warning", f"queue {name}")
    assert [fault[:2] for fault in found()] == [later]
    with plain_channel(amqp_url) as channel:
        channel.queue_delete(queue.dead)
    stays, postponed = found()
    assert postponed[:2] == later
    the([stays], "error", f"queue {name}", "cannot be processed would stay in it", queue.dead)


def test_a_broker_that_is_away(checked):
    faults = checked(amqp=f"amqp://u:hush@{NOWHERE}/", management="")
    the(faults, "error", "rabbitmq", "nothing listens at")
    assert "hush" not in faults[0][2]


def test_a_wrong_password(checked, amqp_url):
    the(
        checked(amqp=f"amqp://tiercel:no@{place(amqp_url)}/"),
        "error",
        "rabbitmq",
        "refused the login",
    )


def test_a_virtual_host_that_is_not_there(checked, amqp_url):
    url = f"{amqp_url.rpartition('/')[0]}/nowhere"
    the(checked(amqp=url), "error", "rabbitmq", "refused the virtual host 'nowhere'")


def test_one_server_without_the_other(checked):
    the(checked(amqp="", management=""), "error", "rabbitmq", "where is RabbitMQ?")
    the(checked(redis=""), "error", "redis", "where is Redis?")


def test_a_user_that_may_not_configure(checked, name, user, amqp_url, management_url):
    declare_queue(amqp_url, WorkQueue(name=name))
    faults = checked(amqp=user(configure="^$"), management="")
    subjects = {subject for _, subject, _ in faults}
    assert subjects == {f"queue {name}"}
    assert any(grade == "error" and "grant the permission" in said for grade, _, said in faults)


def test_a_user_that_may_not_read(checked, name, user, amqp_url):
    declare_queue(amqp_url, WorkQueue(name=name))
    faults = checked(amqp=user(read=r"\.d"), management="")
    the(faults, "error", f"queue {name}", f"queue '{name}'", "grant the permission")


def test_a_user_that_may_not_publish(checked, name, user, amqp_url):
    declare_queue(amqp_url, WorkQueue(name=name))
    faults = checked(amqp=user(write=f"^{name}"), management="")
    assert {grade for grade, _, _ in faults} <= {"error", "warning"}
    assert ("error", "rabbitmq") in [each[:2] for each in faults]
    assert all("amq.default" in said for _, _, said in faults)


def test_a_queue_that_is_missing_and_may_not_be_declared(checked, name):
    faults = checked(spout=", declare=False")
    the(faults, "error", f"queue {name}", "no queue", "declare it first")


def test_a_stream(checked, name, amqp_url):
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    the(checked(), "error", f"queue {name}", "is a stream")


def test_a_queue_that_another_connection_has_for_itself(checked, name, amqp_url):
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(name, exclusive=True)
        the(checked(), "error", f"queue {name}", "is exclusive: it belongs to another connection")


def test_a_queue_that_is_deleted_without_consumers(checked, name, amqp_url, shared_rabbitmq):
    declare_queue(amqp_url, WorkQueue(name=name))
    set_policy(shared_rabbitmq, name, f"^{name}$", {"expires": 900_000})
    the(checked(), "warning", f"queue {name}", "900 s without a consumer", f"policy '{name}'")


def test_a_delivery_limit_that_deletes(checked, name, amqp_url):
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 5}
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(name, durable=True, arguments=arguments)
    the(checked(), "warning", f"queue {name}", "after 5 deliveries", "no dead-letter exchange")


def test_a_policy_with_a_delivery_limit(checked, name, amqp_url, shared_rabbitmq):
    set_policy(shared_rabbitmq, name, f"^{name}$", {"delivery-limit": 3})
    said = [said for _, _, said in checked()]
    assert any("dead-letters messages of" in each and f"policy {name!r}" in each for each in said)
    declare_queue(amqp_url, WorkQueue(name=name))
    the(checked(), "warning", f"queue {name}", "come back more than 3 times", f"policy {name!r}")


def test_a_length_limit_without_a_dead_letter_exchange(checked, name, amqp_url, shared_rabbitmq):
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000}
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(name, durable=True, arguments=arguments)
    set_policy(shared_rabbitmq, name, f"^{name}$", {"max-length": 7})
    said = [said for _, _, said in checked()]
    assert any("the oldest are deleted above 7 messages" in each for each in said)


def test_a_classic_queue(checked, name, amqp_url):
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(name, durable=True)
    the(checked(), "warning", f"queue {name}", "is a classic queue")


def test_a_policy_on_delay_queues(checked, name, amqp_url, shared_rabbitmq):
    declare_queue(amqp_url, WorkQueue(name=name))
    set_policy(shared_rabbitmq, name, rf"^{name}\.delay", {"expires": 900_000})
    the(checked(), "warning", f"queue {name}", "ends the delay queues", "out of its pattern")


def test_a_consumer_timeout_below_the_time_limit_of_a_bolt(checked, name, amqp_url):
    declare_queue(amqp_url, WorkQueue(name=name))
    faults = checked(overrides='"execute_timeout_secs": 7200')
    if version(amqp_url) >= (4, 3):  # on these versions the consumer sets it
        assert faults == []
    else:
        the(faults, "warning", f"queue {name}", "takes it back after 1800 s", "consumer")


def test_an_exchange_of_a_sink_that_is_missing(checked):
    faults = checked(bolt="QueueSink(exchange='nowhere', routing_key='x')")
    the(faults, "error", "bolt work", "nowhere", "declare it first")


def test_an_exchange_that_a_sink_declares_may_be_missing(checked, name):
    sink = f"QueueSink(exchange='made-{name}', routing_key='x', exchange_type='topic')"
    assert checked(bolt=sink) == []


def test_an_exchange_that_a_sink_may_not_publish_to(checked, name, user, amqp_url):
    with plain_channel(amqp_url) as channel:
        channel.exchange_declare(f"events-{name}", "fanout")
    url = user(write=rf"^({name}|amq\.default)")
    faults = checked(
        bolt=f"QueueSink(exchange='events-{name}', routing_key='')", amqp=url, management=""
    )
    the(faults, "error", "bolt work", f"events-{name}", "grant the permission")


def test_a_binding_that_an_exchange_misunderstands(checked, name, amqp_url):
    with plain_channel(amqp_url) as channel:
        channel.exchange_declare(f"events-{name}", "direct", durable=True)
    faults = checked(spout=f", bindings=[('events-{name}', 'order.*')]")
    the(faults, "warning", f"queue {name}", "a direct exchange knows no patterns")


def test_a_management_address_where_nothing_listens(checked):
    faults = checked(management=f"http://{NOWHERE}")
    the(faults, "error", "management", NOWHERE, "Connection refused", "rabbitmq_management")


def test_a_login_that_the_management_interface_refuses(checked, management_url):
    faults = checked(management=f"http://guest:no@{place(management_url)}")
    the(faults, "error", "management", "refuses the login", "tag monitoring")


def test_a_user_of_the_management_interface_without_a_tag(checked, user, management_url):
    login = urlsplit(user()).netloc.rpartition("@")[0]
    faults = checked(management=f"http://{login}@{place(management_url)}")
    the(faults, "error", "management", "refuses the login", "tag monitoring")


def test_the_management_address_of_another_broker(checked, rabbitmq):
    other = rabbitmq()
    manage(other, "cluster-name", name="other")
    faults = checked(management=other.management_url)
    the(faults, "error", "management", "address of another RabbitMQ, other")


@pytest.mark.embedded
@pytest.mark.rest
def test_a_broker_that_takes_no_messages(checked, rabbitmq):
    broker = rabbitmq()
    broker.control("set_vm_memory_high_watermark", "absolute", "1MiB")
    servers = {"amqp": broker.url, "management": broker.management_url}
    wait_until(lambda: checked(topology=False, **servers) != [], 30, "the alarm")
    the(checked(**servers), "error", "rabbitmq", "a memory or disk alarm", "disk space")


# -- Redis -----------------------------------------------------------------------------------------


def test_a_redis_that_is_away(checked):
    faults = checked(redis=f"redis://:hush@{NOWHERE}/0")
    the(faults, "error", f"redis {NOWHERE}", "does not answer")


def test_a_wrong_redis_password(checked, redis_url):
    faults = checked(redis=f"redis://:no@{place(redis_url)}/0")
    the(faults, "error", f"redis {place(redis_url)}", "check the user and password")


@pytest.fixture
def visitor(redis_url):
    """``visitor(…)`` is the address of a Redis user with limited permissions."""

    def made(**rights):
        name = unique("visitor")
        with closing(connect(redis_url)) as client:
            given = {"keys": ["*"], "categories": ["+@all"], **rights}
            client.acl_setuser(name, enabled=True, passwords=["+pw"], **given)
        return f"redis://{name}:pw@{place(redis_url)}/0"

    return made


def test_commands_that_the_user_may_not_call(checked, visitor, redis_url):
    faults = checked(redis=visitor(commands=["-xadd", "-blpop"]))
    the(faults, "error", f"redis {place(redis_url)}", "may not call BLPOP, XADD: ", "ACL SETUSER")


def test_keys_that_the_user_may_not_use(checked, visitor, redis_url):
    faults = checked(redis=visitor(keys=["other:*"]))
    the(faults, "error", f"redis {place(redis_url)}", "what the user may do")


def test_a_redis_that_drops_keys(checked, redis):
    url = redis().url
    with closing(connect(url)) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("maxmemory", "100mb")
        client.config_set("appendonly", "yes")
    the(checked(redis=url), "warning", "redis", "maxmemory-policy allkeys-lru", "noeviction")
    the(checked(redis=url, bolt="Count()"), "error", "redis", "with them the state of work")


def test_a_redis_that_is_full(checked, redis):
    url = redis().url
    with closing(connect(url)) as client:
        client.config_set("maxmemory", "1mb")
        wait_until(lambda: client.info("memory")["used_memory"] > 0)
        client.config_set("maxmemory", "1")
    the(checked(redis=url), "error", f"redis {place(url)}", "memory is full", "maxmemory")


def test_a_replica(checked, redis):
    url = redis().url
    with closing(connect(url)) as client:
        client.replicaof("127.0.0.1", "9")
    the(checked(redis=url), "error", f"redis {place(url)}", "replica", "primary")


def test_a_state_that_a_restart_loses(checked, redis):
    url = redis().url
    with closing(connect(url)) as client:
        client.config_set("save", "")
    the(checked(redis=url, bolt="Count()"), "warning", f"redis {place(url)}", "state of work")
    assert checked(redis=url) == [], "without a state nothing is lost"


def test_a_clock_that_differs(checked, redis_url, monkeypatch):
    slow = SimpleNamespace(time=lambda: time.time() - 60)
    monkeypatch.setattr(clients, "time", slow)
    faults = checked()
    the(faults, "warning", f"redis {place(redis_url)}", "clock is 60 s ahead of", "NTP")


def test_a_topology_that_was_killed(checked, name, redis_url):
    with closing(RedisControl(redis_url, name)) as control:
        control.order(State.KILLED)
    the(checked(), "warning", f"topology {name}", f"tiercel activate {name}")


def test_a_driver_of_another_version(checked, name, redis_url):
    with closing(RedisPresences(redis_url, name)) as presences:
        lease, holder = Lease(presences), Holder(driver="driver", run="1", shape="0123abcd")
        with renewed(lambda: lease.take(holder)):
            the(checked(), "warning", f"topology {name}", "restart the driver")


def test_a_state_of_another_number_of_shards(checked, name, redis):
    url = redis().url
    with closing(connect(url)) as client:
        client.config_set("appendonly", "yes")
        client.hset(StateKeys(name, 0, "work").run, mapping={"shards": 2, "ran": 1})
    faults = checked(redis=url, bolt="Count()")
    the(faults, "error", f"topology {name}", "ackers=2")


# -- two topologies on one queue -------------------------------------------------------------------


def test_another_topology_that_reads_the_queue(checked, name, amqp_url, redis_url):
    declare_queue(amqp_url, WorkQueue(name=name))
    other = f"other-{name}"
    builder = TopologyBuilder(other)
    builder.set_spout("lines", QueueSpout(name))
    builder.set_bolt("sink", BasicBolt()).shuffle_grouping("lines")
    with closing(Registry(redis_url)) as registry:
        registry.announce(builder.build())
    assert checked() == [], "one that only ran some day is no matter"
    with (
        Desk(amqp_url, name),
        closing(SpoutSeats(RedisPresences(redis_url, other))) as seats,
        renewed(lambda: seats.report("worker", 1, Presence(active=True, pending=0))),
    ):
        wait_until(lambda: checked() != [])
        the(checked(), "error", f"queue {name}", f"topology {other} reads it too")


def test_another_program_that_reads_the_queue(checked, name, amqp_url, redis_url):
    declare_queue(amqp_url, WorkQueue(name=name))
    with Desk(amqp_url, name):
        wait_until(lambda: checked() != [])
        the(checked(), "warning", f"queue {name}", "1 consumer of other programs read")
        builder = TopologyBuilder(name)
        builder.set_spout("orders", QueueSpout(name))
        builder.set_bolt("work", BasicBolt()).shuffle_grouping("orders")
        with (
            closing(Registry(redis_url)) as registry,
            closing(SpoutSeats(RedisPresences(redis_url, name))) as seats,
        ):
            registry.announce(builder.build())
            with renewed(lambda: seats.report("worker", 1, Presence(active=True, pending=0))):
                assert checked() == [], "the topology itself reads it"


# -- Spark and the code ----------------------------------------------------------------------------


def test_a_spark_master_that_is_away(checked):
    faults = checked(master=f"spark://{NOWHERE}")
    the(faults, "error", "spark", NOWHERE, "start the master")


def test_a_python_that_is_not_there_or_another_one(checked, tmp_path, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python")
    the(checked(), "error", "spark", "there is no program '/nowhere/python'")
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 3.9\n")
    other.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    the(checked(), "error", "spark", "is Python 3.9", "the same in both")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert checked() == []


def test_yarn_without_hadoops_settings(checked):
    the(checked(master="yarn"), "error", "spark", "HADOOP_CONF_DIR or YARN_CONF_DIR")


def test_too_little_memory_for_a_process_of_python(checked):
    faults = checked(config="spark_options={'spark.executor.pyspark.memory': '1g'}")
    the(faults, "warning", "spark", "1,024 MiB of address space", "at least 2,048 MiB")


def test_an_option_of_spark_that_cannot_be(checked):
    faults = checked(config="spark_options={'spark.speculation': 'true'}")
    the(faults, "error", "spark", "cannot run with spark.speculation")


def test_no_java(checked, monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    the(checked(), "error", "spark", "Spark needs Java 17")


def test_a_topology_that_does_not_build(checked):
    faults = checked(bolt="object()")
    assert faults[0][:2] == ("error", "topology")
    assert len(faults) == 1


# -- settings --------------------------------------------------------------------------------------


def test_settings_that_cannot_be_loaded_are_one_line_and_exit_code_2(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiercel.toml").write_text('reddis = "redis://x"')
    result = CliRunner().invoke(app, ["check"])
    assert "did you mean 'redis'" in str(result.exception)


def test_a_table_for_people_has_one_line_per_check(checked, amqp_url, redis_url):
    result = CliRunner().invoke(
        app, ["check", f"--amqp={amqp_url}", f"--redis=redis://:no@{place(redis_url)}/0"]
    )
    assert result.exit_code == 2
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"error    redis {place(redis_url)}: ")
    assert any(line.startswith("ok       rabbitmq: version ") for line in lines)
