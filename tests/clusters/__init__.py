"""Topologies on clusters that are really run: make test-{yarn,scaling,keda,kubernetes}.

slow_work.py      a topology whose bolt takes 0.2 s per tuple; the cluster gets it as a user's file
exam.py           publishes a steady load, has executors killed, and tells what it saw
mini_yarn.py      Hadoop's own YARN in a process, with NodeManagers that start real containers
on_yarn.py        the program behind ``make test-yarn``
waiting_work.py   a topology whose bolt waits for 0.2 s per tuple, and writes the tuple down
on_standalone.py  the program behind ``make test-scaling``: the load changes, and executors with it
one_node.py       a Kubernetes of one node, compiled from Go modules, in namespaces of its own
on_api_server.py  the program behind ``make test-keda``: workers that go, without a node
on_kubernetes.py  the program behind ``make test-kubernetes``: the chart on a cluster
"""
