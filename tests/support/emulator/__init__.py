"""The CUDA kernels on a CPU: their PTX, as NVRTC makes it, translated to C and run thread by thread.

It proves what a kernel computes, in any order of its threads. What it cannot prove is left to a GPU: what ptxas makes
of the PTX, how memory orders accesses of different multiprocessors, and how long anything takes.
"""
