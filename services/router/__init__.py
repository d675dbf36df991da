"""Takes inference requests, batches them, hands them to model instances."""
