"""The launcher ``torchrun``: the ranks that torchrun or SLURM started, on one node or many.

Rank 0 is pytest. On every rank, rank 0's node included, an *agent* forks the ranks of each world
that is asked for; they talk to rank 0 directly. So a world has any size up to the one given, each
lane has processes of its own, and a rank that dies takes neither pytest nor its agent along.

Importing this package imports no torch.
"""
