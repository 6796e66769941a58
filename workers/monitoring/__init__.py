"""What people see of running topologies: one data layer, several views.

graph         a topology without its code: published when it starts
watcher       reads Redis and RabbitMQ; a server that is away is told of
overview      what every view shows, worked out of the counters        rates     what happens now
survey        all queues: ``tiercel depths``
top           ``tiercel top``                                          tables    what terminals show
wording       numbers as people read them
"""
