"""The folder that ``tiercel new`` writes; its files are in ``templates``.

names   what is named after the folder
stack   its compose file: the package's own, for one topology
writer  its files
"""
