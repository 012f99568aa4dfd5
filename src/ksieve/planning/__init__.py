"""From host-known facts to a plan: pure arithmetic, no device."""
