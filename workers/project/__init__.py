"""The folder that ``tiercel new`` writes; its files are in ``templates``.

writer  its files
"""
