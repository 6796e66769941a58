"""What people see of running topologies: one data layer, four views.

graph       a topology without its code: published when it starts
"""
