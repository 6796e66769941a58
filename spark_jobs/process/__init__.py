"""One process of bolt tasks, and the care that nothing in it hangs or is forgotten.

host         one Spark task: its bolt tasks in threads, attempt after attempt; heartbeat, end
interpreter  how seldom its process collects garbage, how often its threads take turns
"""
