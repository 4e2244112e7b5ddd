"""The parts of the soak: a sender, three processes under a supervisor, faults by a seed, and a judge that counts.

The judge believes what happened outside the product: what the sender was confirmed, what the handlers wrote in their
transactions and in a file, how each process ended. The inbox's own tables are compared with that.
"""
