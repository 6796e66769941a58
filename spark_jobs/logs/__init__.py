"""Log records of all processes and of the users' bolts: one layout, no passwords, no forged lines.

formatters  readable lines, or JSON; without passwords and escape sequences
relay       logging in Spark's Python workers, and the relay to the driver's log
"""
