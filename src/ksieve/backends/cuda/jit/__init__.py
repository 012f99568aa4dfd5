"""From a plan to machine code: specialisation, NVRTC, cache."""
