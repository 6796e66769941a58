"""Helpers of the tests, beside the fixtures of conftest.py.

waiting        waiting for a condition: tests never sleep for a fixed time
clock          a clock that a test moves
kinds          topologies with other kinds of bolts
entered        context managers that tests are made of
choice         which tests `make test` takes: the one rule
second_try     which tests are run again when they ran out of time
pages          pages of the documentation whose Python is a test module
tutorial       does what docs/tutorial.md says, from top to bottom
terminal       ``tiercel`` as typed at a terminal
children       the processes of a running topology, for tests that kill them

Servers:

servers        which servers the tests run on: embedded ones, or containers
containers     RabbitMQ, Redis and Valkey in containers
brokers        a RabbitMQ cluster of three embedded nodes
replicas       a Redis with a replica under Sentinels, and a Redis Cluster
certificates   an authority of our own and a server's certificate
proxy          a TCP proxy that does to connections what networks do
saying         a Redis that answers every command with one error
stacks         the stack of the compose file
stack_image    its image
docker_cli     the commands of Docker, fetched where they are missing
docker_engine  the engine: without one a test is left out, and in CI it fails
pip_settings   this machine's pip settings, for builds in containers
helm           helm, built by Go where it is missing, and what it makes of the chart

RabbitMQ:

broker         a second, plain client beside the code under test
fake_broker    a broker made of notes, for rare orders of events
raw            messages with properties as bytes
spout_stage    a spout without a worker
sink_stage     a sink behind a feeder
rpc            a client that asks and waits for the answer

Redis:

ledgers        words for tests of the ledger
trees          whole runs made up for the property tests
inboxes        words for tests of the inboxes
chunks         chunks of tuples of which only the roots matter
states         turns of a store of state
presences      the seats of a topology, while time passes
orders         the orders to a topology, in memory
marks          keys of tuples

PostgreSQL:

postgres       its address as its clients are told it

Topologies:

pump           bolt tasks in turn, in this thread, in memory
inbox_cluster  bolt tasks in threads of this process, in memory
executor_model  executors and a load, on simulated time
case_book      the case book of suspects, in memory
spout_worker   a spout worker on memory twins
emitter        a spout's collector with given roots
windowed       events with random lateness, and their windows by a batch
reasons        reasons of failures without the line that raised
otlp           a receiver of OTLP, with the spans that arrived
trace          the files that one message enters, from delivery to ack
traces         spans that a test looks at
zipkin         a viewer of traces, with a page
runs           ``tiercel run`` as a user types it, and what is left of it
running        a topology on servers of its own, which a test may hurt
load           messages at a fixed rate, until it is stopped
ran            a topology that has run, without its processes
staged         a topology that seems to run: all that its processes would leave in Redis
overviews      what monitors make of a topology, without a server

Data frames:

data_frames    plain Spark with the format "rabbitmq", and what its queries leave behind
frame_driver   a Spark driver with a query over a queue, which a test may kill
standalone     a cluster of Spark whose workers are hosts of their own
connect        a server of Spark Connect
without        processes of Python where a package is not installed

The monitor, and strangers:

monitors       ``tiercel monitor`` as a process, and a real browser
prometheus     Debian's Prometheus with the alert rules, in quick motion
strangers      its page as a script drives it
block_thief    a stranger that asks Spark for its broadcasts
body_cost      the time and memory that one JSON body takes
memory_bound   bounds the memory of processes
jvm_memory     what a JVM needs
"""
