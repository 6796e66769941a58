"""Words to the reader of a query, from other processes of the driver's host.

post      a word to a reader, and its answer
listener  tells readers of commits
failing   fails single messages of a batch
"""
