"""Notes that processes leave for each other in Redis, and orders of an operator; scripts in lua/.

registry         which topologies and queues there are
graph            a topology without its code: published when it starts
presence         the contract: which processes are there, and for how long after they fell silent
memory_presence  within one process
redis_presence   in Redis
lease            the driver's seat: it runs the topology, and says where spout workers send to
spout_seats      the seats of spout tasks: which worker runs which one
contract         active, deactivated, killed: what is wanted
redis_control    in Redis
parallelism      numbers of tasks that an operator orders
steering         what activate, deactivate, rebalance and kill do
audit            what operators did
unreadable       things in Redis that are passed over
"""
