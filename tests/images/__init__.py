"""Container images of the servers for tests, and the Docker engine that runs them.

server_images  official images if they can be pulled, else images built from Debian's packages
debian         releases of Debian, from which images are built
engine         a Docker engine, found or started
"""
