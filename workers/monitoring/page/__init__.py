"""The page of ``tiercel monitor``: one topology at a time, live.

server       serves the page and ``/metrics``
gate         which requests come in, and where to
hosts        under which names it answers
headers      what the browser must not do
connections  bounds on connections, and on what they send
limits       how many pages and lines of the log strangers can use up
token        asks for the token, and limits guesses
view         the page
verdict      its state, and where it hurts
tiles        figures of the moment
canvas       its drawings, whose JavaScript and style sheet are in look/
drawing      the graph, laid out
lines        the charts, as lines
component    one component, opened by a click
tables       its tables, as NiceGUI takes them
letters      its dead letters
tracebacks   what bolts raised
actions      what it can do with the token
"""
