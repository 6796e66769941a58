"""The driver: keeps one run of the topology going on long-lived Spark tasks.

process     the process: starts Spark, takes over from the previous run
jvm_output  what Spark's JVM and its Python workers write, as log records
runs        begins one run after the other while the driver holds the lease
executors   looks at what waits and who works, and asks Spark for executors
deletion_cost   has Kubernetes delete workers without executors first
scaling     decides how many executors the topology wants
joining     extra tasks for executors that join during a run, and their end
run_watch   watches a run until it must end, and judges how it ended
"""
