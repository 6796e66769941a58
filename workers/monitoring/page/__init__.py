"""The page of ``tiercel monitor``: one topology at a time, live.

server       serves the page and ``/metrics``, under allowed host names only
limits       bounds on connections, pages, log lines, and guesses at the token
view         the page
drawing      the data of the charts and of the graph
sections     tables, the section of dead letters, the panel of one component, tracebacks
actions      actions that need the token, and the prompt that asks for it
"""
