"""The stack that tiercel runs on: private servers for one machine, and what containers need.

embedded      all embedded services together
rabbitmq      a private RabbitMQ
redis_server  a private Redis or Valkey
postgres      a private PostgreSQL
server        the base of embedded servers: free ports, folder, readiness, restart
guard         child processes that cannot outlive this one
install       finds programs, and installs missing ones with apt, without starting services
credentials   passwords of the compose file's stack
errors        the errors that the servers and the installer raise

``__main__`` is the installer as a command, for make.
"""
