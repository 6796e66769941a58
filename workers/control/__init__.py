"""Presence of processes and orders of operators, both in Redis; the scripts are in lua/.

registry       the known topologies, and the graph of each without its code
presence       who holds a seat: the driver's lease and its renewal, the seats of spout tasks
contract       orders and seats, and parsing of numbers of tasks
redis_control  orders and seats in Redis, with their contracts
steering       activate, deactivate, pause, resume, rebalance and kill, and the log of actions
"""
