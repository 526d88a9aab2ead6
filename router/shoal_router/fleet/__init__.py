"""Several pipelines of one model behind one Generator.

choice    which pipeline a request goes to: pure
moves     a sequence goes on at another pipeline
fleet     a step loop for each pipeline of the plan, and who does what where
"""
