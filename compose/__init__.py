"""The stack that tiercel runs on: private servers for one machine, and what containers need.

embedded      a private RabbitMQ, Redis or Valkey, and PostgreSQL, and the first two together
server        the base of embedded servers: free ports, folder, readiness, restart
guard         child processes that cannot outlive this one
install       finds programs, and installs missing ones with apt, without starting services
credentials   passwords of the compose file's stack
errors        the errors that the servers and the installer raise

``__main__`` is the installer as a command, for make.
"""
