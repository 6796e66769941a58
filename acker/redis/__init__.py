"""Clients of Redis, their errors, and scripts that are sent together.

clients  making clients, and checking servers
pool     addresses; pools of connections to one server or to the primary, with pipelining
errors   translation of errors: retry or refuse
scripts  scripts and commands as effects of one server
"""
