"""The parts of the demo: a foreign shop, a fleet of two processes, what is done to them, and what is counted.

Nothing here reads the product's counters or tables. What became of the orders is counted in the service's own table
and in the broker's queues; what the handler lived through is written by the handler to a file.
"""
