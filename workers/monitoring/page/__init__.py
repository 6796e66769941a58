"""The pages of ``tiercel monitor``: all topologies, and one topology at a time, live.

server       serves the pages and ``/metrics``, under allowed host names only
limits       bounds on connections, pages, log lines, and guesses at the token
view         the two pages
drawing      the data of the charts and of the graph
sections     tables, and the addresses of the pages
dialogs      one component, one error, one dead letter; the list of dead letters
actions      actions that need the token, and the prompt that asks for it
"""
