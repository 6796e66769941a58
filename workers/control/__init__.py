"""Presence of processes and orders of operators, both in Redis; the scripts are in lua/.

registry       the known topologies and queues, and each topology's graph without its code
presence       seats, each held by one live process: contract, the driver's lease and its renewal,
               the seats of spout tasks
contract       orders: contract and memory twin, and parsing of numbers of tasks
redis_control  orders and presence in Redis
steering       activate, deactivate, rebalance and kill, and the log of operators' actions
"""
