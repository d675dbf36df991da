"""The worker: one process per device that executes batches."""
