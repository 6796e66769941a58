"""What people see of running topologies: one data layer, several views.

graph         a topology without its code: published when it starts
watcher       reads Redis and RabbitMQ; a server that is away is told of
raw           what was read of a topology at one moment                rates     what happens now
overview      what every view shows, worked out of the counters        bolts     of bolts and their tasks
survey        all queues: ``tiercel depths``
top           ``tiercel top``                                          tables    what terminals show
station       looks every two seconds, for any number of pages
history       what it remembers of the depths
page          the page of ``tiercel monitor``        page_server   serves it
page_tables   its tables                             page_charts   its graph and chart
page_letters  its dead letters                       page_actions  what it can do with the token
page_token    asks for the token, and limits guesses page_limits   how much of it strangers can use up
page_gate     who is let in, and where to            hosts         under which names
page_headers  what the browser must not do           allowance     a few at once, then one now and again
exposition    ``/metrics``
wording       numbers as people read them
"""
