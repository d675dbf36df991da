"""The model's side: what runs in a process of the Python backend."""
