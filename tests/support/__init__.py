"""Helpers of the tests, beside the fixtures of conftest.py.

waiting        waiting for a condition: tests never sleep for a fixed time
clock          a clock that a test moves
kinds          topologies with other kinds of bolts
entered        context managers for building tests
choice         which tests `make test` takes: the one rule
lanes          which of three test processes takes which file
second_try     which tests are run again after a timeout
pages          pages of the documentation that are test modules
tutorial       follows docs/tutorial.md from top to bottom
terminal       ``tiercel`` as typed at a terminal
children       the processes of a running topology, for tests that kill them

Servers:

servers        which servers the tests run on: embedded ones, or containers
troubled       embedded servers that tests freeze and restart
containers     RabbitMQ, Redis and Valkey in containers
brokers        a RabbitMQ cluster of three embedded nodes
replicas       a Redis with a replica under Sentinels, and a Redis Cluster
certificates   an authority of our own and a server's certificate
proxy          a TCP proxy that does to connections what networks do
saying         a Redis that answers every command with one error
stacks         the stack of the compose file
stack_image    its image
docker_cli     the commands of Docker, fetched if missing
docker_engine  the engine: without one a test is skipped, and fails in CI
pip_settings   this machine's pip settings, for builds in containers
helm           helm, downloaded if missing, and its output for the chart

RabbitMQ:

broker         a second, plain client beside the code under test
fake_broker    a fake broker, for rare orders of events
raw            messages with properties as bytes
spout_stage    a spout without a worker
sink_stage     a sink behind a feeder
rpc            a client that sends a request and waits for the reply

Redis:

ledgers        helpers for tests of the ledger
trees          whole runs made up for the property tests
inboxes        helpers for tests of the inboxes
chunks         chunks of tuples for tests of their roots
states         turns of a state store
presences      the seats of a topology, while time passes
orders         the orders to a topology, in memory
marks          keys of tuples

PostgreSQL:

postgres       its address, as its clients expect it

Topologies:

pump           bolt tasks in turn, in this thread, in memory
inbox_cluster  bolt tasks in threads of this process, in memory
executor_model  executors and a load, on simulated time
case_book      the case book of suspects, in memory
spout_worker   a spout worker on memory twins
emitter        a spout's collector with given roots
windowed       events with random lateness, and their windows by a batch
reasons        reasons of failures without the line that raised
otlp           a receiver of OTLP that records the spans
trace          the files that one message enters, from delivery to ack
traces         recorded spans, for tests
zipkin         a viewer of traces, with a page
runs           ``tiercel run`` with a user's commands, and its leftovers
running        a topology on private servers, which a test may disrupt
load           messages at a fixed rate, until it is stopped
ran            a topology that has run, without its processes
staged         a topology that seems to run, by its processes' traces in Redis
overviews      monitors' overviews of a topology, without a server

Data frames:

data_frames    plain Spark with the format "rabbitmq", and the traces of its queries
frame_driver   a Spark driver with a query over a queue, which a test may kill
standalone     a Spark cluster whose workers are separate hosts
connect        a server of Spark Connect
without        Python processes without an installed package

The monitor, and strangers:

monitors       ``tiercel monitor`` in a process, and a real browser
prometheus     Debian's Prometheus with the alert rules, on a shortened time scale
strangers      its page, driven by a script
block_thief    a stranger that asks Spark for its broadcasts
body_cost      the time and memory that one JSON body takes
memory_bound   bounds the memory of processes
jvm_memory     memory needs of a JVM
"""
