"""What the router shows to whoever watches: the picture of its pipelines and the timeline of its requests.

    StepLoop ──> Journal (requests, events; steps only while somebody watches)
    Fleet.look() ──┐
    plan.json ─────┴──> Watch ──> api/page: one stream of events, which the page draws

A token costs one addition here, a request a handful of stamps. Whatever else is shown is taken from what schedulers and
stages count anyway, when it is looked at.
"""
