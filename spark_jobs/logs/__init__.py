"""Log records of every process, of the user's bolts too: one layout, no password, no forged line.

formatters   readable lines, or JSON
printable    no escape sequence reaches a terminal
redaction    without passwords
speaking     the bolt task that logs
relay        from Spark's Python workers to the driver's log
worker_logs  logging in Spark's Python workers
"""
