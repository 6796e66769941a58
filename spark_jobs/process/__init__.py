"""One process of bolt tasks, and its supervision.

host         one Spark task: its bolt tasks in threads, attempt after attempt; heartbeat, end
interpreter  settings of the garbage collector and of the switches between threads
"""
