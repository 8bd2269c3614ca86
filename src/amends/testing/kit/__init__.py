"""The kit for your own tools: it checks what they declare against your own sandbox, and kills them everywhere.

``sandbox.py`` reads what you give (a runtime, ``snapshot``, ``reset``, ``examples``), ``child.py`` is the process that
calls your tools and is killed, ``kit.py`` starts such processes and judges what they leave, ``checks.py`` has the names
of the checks and what to do about each.
"""
