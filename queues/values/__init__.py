"""From the body of a message to the values of a tuple, and back; the columns that type them.

formats        a body as text, bytes or JSON
models         the same by a dataclass or a pydantic model
json_text      JSON, bounded
json_values    from a value of JSON to the value of a column
decimals       exact or refused
schema         typed columns
ddl            parsing columns in Spark's DDL
python_values  Python's values for columns, and back
bodies         from the values of a tuple to the body of a message
"""
