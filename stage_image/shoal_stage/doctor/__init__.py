"""`doctor`: is this PC fit to hold stages, and what is wrong if it is not?

    look (files, OpenVINO) ──┐
    device_test              ├──> Surroundings ──> findings (pure) ──> text, JSON, node annotations
    link (other nodes) ──────┘

It runs on a PC, and as an init container before a stage. Every finding says what was found and what to do about it.
"""
