"""Notes that processes leave for each other in Redis, and orders of an operator; scripts in lua/.

registry       which topologies and queues there are
graph          a topology without its code: published when it starts
presence       the contract of seats, each held by one live process, and its memory twin
lease          the driver's seat: it runs the topology, and names the run that spouts send to
spout_seats    the seats of spout tasks: which worker runs which one
contract       the contract of orders, with its memory twin, and numbers of tasks as text
redis_control  orders and presence in Redis
steering       activate, deactivate, rebalance and kill, and the log of operators' actions
"""
