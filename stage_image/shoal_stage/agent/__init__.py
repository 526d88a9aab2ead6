"""`agent`: on every PC of a cluster, tells in the PC's Node object whether somebody uses it, and what the doctor found.

    readings (/proc, /sys) ──┐                          ┌──> condition ──┐
    logind (D-Bus) ──────────┴──> observation ──> use ──┤                ├──> node_object (the API server)
                                                        └──> checkup ────┘
                                                             (the doctor, once a boot, while nobody is there)

observation, use, condition and what checkup makes of a report are pure; readings, logind and node_object are the edges.
Nothing here is ever written to the PC, and of the cluster only this node's status: the condition when it changes and
every five minutes, the doctor's annotations once. What follows from it the operator decides, for each ShardedModel.
"""
