"""What other packages get wrong, as properties that amends keeps. Rows and tests: README.md.

Left out, with the reason "later part": approvals and permits, budgets and gates, language-model wrappers and prices,
replay and export of runs, hash chains and signatures, MCP and HTTP servers, PostgreSQL and MySQL, framework adapters,
locks between runs.
Left out, with the reason "not a behaviour": how the other packages install, what their README promises of themselves.
"""
