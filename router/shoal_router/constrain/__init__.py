"""What an answer may be: from a schema, an expression, a grammar or tools to the grammar that the last stage follows.

constraint  what a request asks for, and the grammar's text: pure
tools       forced and strict tool calls as a grammar: pure
check       whether a grammar can be used: asked of a process that may be killed
worker      that process
"""
