"""From the body of a message to the values of a tuple, and back; the columns that type them.

formats        a body as text, bytes or JSON
models         a body read by a dataclass or a pydantic model
json_values    from a JSON value to the value of a column
schema         typed columns
python_values  from Python values to columns, and back
"""
