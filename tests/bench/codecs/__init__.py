"""Our own codecs and readers beside libraries that could do their work: their time, and the malformed input each takes.

A file for each subject; `__main__` measures. Decision records 22 and 39 have the figures.
"""
