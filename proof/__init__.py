"""Tasks that nobody here wrote, played under faults: the four worlds of AgentDojo, through amends, bare, and over peers.

``make proof`` plays them (``__main__``). A world is a process of its own that survives every agent (``world``). Agents
reach it through ``destination``, which also injects the faults. ``declared`` says what each tool is for amends, and why.
"""
