"""Container images of the servers that tests run on, and the Docker engine that runs them.

server_images  official ones where they can be pulled, else built from Debian's packages
debian         what they are built from
engine         a Docker engine, found or started
"""
