"""The OpenAI HTTP API: requests are checked and turned into token ids, deltas into JSON or server-sent events.

It knows the step loop only through generation.Generator; FakeGenerator (fake.py) stands in for it.
"""
