"""Every client of Redis, its errors, and scripts that leave together.

clients  where clients are made; checks of a server
pool     addresses; connections to one server, or to the primary, that exchange commands in batches
errors   translation of their errors: retry or refuse
scripts  scripts and commands as effects of one server
"""
