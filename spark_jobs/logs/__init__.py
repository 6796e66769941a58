"""Log records of every process, of the user's bolts too: one layout, no password, no forged line.

formatters  readable lines, or JSON; without passwords, and without escape sequences
relay       logging in Spark's Python workers, and from there to the driver's log
"""
