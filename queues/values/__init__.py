"""From the body of a message to the values of a tuple, and back; the columns that type them.

formats        a body as text, bytes or JSON
models         the same by a dataclass or a pydantic model
json_values    from a value of JSON to the value of a column
schema         typed columns
python_values  Python's values for columns, and back
"""
