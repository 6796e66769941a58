"""Notes that processes leave for each other in Redis, and orders of an operator; scripts in lua/.

registry       which topologies and queues there are
graph          a topology without its code: published when it starts
lease          the contract: which driver runs a topology, and which run the spout workers send to
memory_lease   within one process
redis_lease    in Redis
claims         the contract: which worker runs which spout task
redis_claims   in Redis
contract       active, deactivated, killed: what is wanted, and which spout tasks are there to do it
redis_control  in Redis
parallelism    numbers of tasks that an operator orders
steering       what activate, deactivate, rebalance and kill do
audit          what operators did
unreadable     things in Redis that are passed over
"""
