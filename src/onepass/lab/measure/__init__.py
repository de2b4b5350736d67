"""Taking times: clocks, the order of sampling, and what held the GPU back."""
