"""The page of ``tiercel monitor``: one topology at a time, live.

server       serves the page and ``/metrics``, under the host names that it may be called by
connections  bounds on connections, and on what peers send
limits       bounds on open pages and log lines, and a lock that slows guesses at the token
view         the page
drawing      the data of the charts and of the graph
component    the panel of one component, and the dialog that shows a traceback
tables       its tables, in the form that NiceGUI takes
letters      the section of dead letters
actions      actions that need the token, and the prompt that asks for it
"""
