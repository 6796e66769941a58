"""How Spark's Python processes start: ``FOLDER`` is for the front of their ``PYTHONPATH``.

sitecustomize  Python runs it by itself: pyspark comes from its folder, not from the archive inside it
"""

from pathlib import Path

FOLDER = Path(__file__).parent
