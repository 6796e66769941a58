"""Every client of Redis, its errors, and calls that leave together.

address         URLs: one server, Sentinels, a cluster
client          where clients are made
primary         connections that look for the primary
errors          their errors as ours: retry or refuse
pool            connections that exchange a batch of commands for its replies
server          one server whose calls leave alone or together
"""
