"""OpenAI's Responses API over the chat path: items in and out, one response kept for the next to go on from.

request.py  the body, and the chat request that it means
items.py    input items -> messages
output.py   pieces of an answer -> output items and their events
layout.py   the response object around them, whole and streamed
kept.py     responses that may be gone on from
"""
