"""What is shown: readable formulas, tables as text, markdown and JSON. Nothing here derives or prices."""
