"""The PyTorch executor: the same models on a GPU, or on a CPU to test what a GPU would run.

Experimental: only the CPU has run it so far. Needs the extra `torch`.
"""
