"""The laboratory: benches, studies, workloads, traces and reports. The library never imports it."""
