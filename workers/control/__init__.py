"""Notes that processes leave for each other in Redis, and orders of an operator; scripts in lua/.

registry       which topologies and queues there are, and each topology's graph without its code
presence       seats, each held by one live process: their contract and memory twin; the driver's
               lease and its renewal; the seats of spout tasks
contract       the contract of orders, with its memory twin, and numbers of tasks as text
redis_control  orders and presence in Redis
steering       activate, deactivate, rebalance and kill, and the log of operators' actions
"""
