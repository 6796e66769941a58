"""The stack below tiercel: private servers for one machine, and the files for containers.

embedded      private servers: RabbitMQ, Redis or Valkey, PostgreSQL; the first two together
server        the base of embedded servers: free ports, folder, readiness, restart
guard         child processes that cannot outlive their parent
install       finds programs, and installs missing ones with apt, without starting services
credentials   passwords for the stack of the compose file
errors        the errors that the servers and the installer raise

``__main__`` runs the installer, for make.
"""
