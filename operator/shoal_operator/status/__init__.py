"""What is said of a ShardedModel: conditions with reasons that pods really gave, the plan in force, events. Pure."""
