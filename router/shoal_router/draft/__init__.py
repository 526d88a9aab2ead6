"""Sources of drafts behind `shoal_router.schedule.drafting.Drafter`. All but `model` are pure and know no clock.

matches      a text with an index of its n-grams: where did what now ends occur before, and how much of it
shared       finished answers of each group, in bounded memory
suffix       continues the longest match in the sequence itself or in finished answers
ngram        continues the last occurrence of the last few ids, in the sequence only
composite    several sources as one: the first that has something, or a model's ids and the text's own behind them
choice       which of them a router uses
model        a small model in a process of its own, talked to by gRPC
ahead, pace  what is known of its drafts of one sequence, and how fast that grows
"""
