"""Text to token ids and back: the tokenizer, the chat template, incremental decoding, stop strings.

Everything here is pure once a TextModel is loaded: the API (api/) calls it, the step loop never sees text.
"""
