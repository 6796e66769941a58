"""Topologies on clusters that are really run: ``make test-yarn`` and ``make test-kubernetes``.

slow_work.py      a topology whose bolt takes 0.2 s per tuple; the cluster gets it as a user's file
exam.py           publishes a steady load, has executors killed, and tells what it saw
mini_yarn.py      Hadoop's own YARN in a process, with NodeManagers that start real containers
on_yarn.py        the program behind ``make test-yarn``
one_node.py       a Kubernetes of one node, compiled from Go modules, in namespaces of its own
on_kubernetes.py  the program behind ``make test-kubernetes``: the chart on a cluster
"""
