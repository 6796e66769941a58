"""The stack that tiercel runs on: private servers for one machine, and what containers need.

embedded      all embedded services together
rabbitmq      a private RabbitMQ
redis_server  a private Redis or Valkey
postgres      a private PostgreSQL
server        what embedded servers have in common: folder, readiness, restart
guard         child processes that cannot outlive this one
install       finds the programs, installs missing ones
credentials   passwords of the compose file's stack
errors        what is raised

``__main__`` is the installer as a command, for make.
"""
